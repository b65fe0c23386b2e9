"""`longtail data vqa`: what to get and where to put it, checks and statistics, generated files."""

import argparse
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from longtail.benchmarks.vqa.gqa.prepare import prepare, prepare_questions
from longtail.benchmarks.vqa.gqa.stream import Problems
from longtail.benchmarks.vqa.gqa.tasks import PAPER, PAPER_ANSWERS
from longtail.benchmarks.vqa.options import DataOptions
from longtail.benchmarks.vqa.prepared import PreparedVQA
from longtail.benchmarks.vqa.world.generator import MARK
from longtail.support.downloads import cache_folder

OFFICIAL = "https://downloads.cs.stanford.edu/nlp/data/gqa"
VINVL = "https://biglmdiag.blob.core.windows.net/vinvl/image_features/gqa_X152C4_frcnnbig2_"
GUIDE = f"""GQA is published by Stanford and fetched by hand: its files are large, and no checksums
of them are published. Put into {{folder}}:

  sceneGraphs/train_sceneGraphs.json, val_sceneGraphs.json
      {OFFICIAL}/sceneGraphs.zip   (43 MB)
  questions1.2/train_balanced_questions.json, val_balanced_questions.json
      {OFFICIAL}/questions1.2.zip   (1.4 GB)

and region features in one of three forms, in the folder itself, in features/ or in objects/:

  gqa_objects_info.json and gqa_objects_0.h5 to gqa_objects_15.h5   (122 GB; needs h5py)
      {OFFICIAL}/objectFeatures.zip
  features.tsv and predictions.tsv of Oscar / VinVL   (62 GB)
      the folder {VINVL}...
      named in VinVL_DOWNLOAD.md of the repository microsoft/Oscar
  IMAGE.npz for each image, with features [n, F], boxes [n, 4], width, height

Then: longtail data vqa --check {{folder}}
Without GQA: longtail data vqa --source generated writes a world of the same form (270 MB), and
longtail run vqa makes it by itself."""


def statistics(prepared: PreparedVQA) -> dict[str, Any]:
    """Sizes of a benchmark, named as the paper names them."""
    train, test = np.diff(prepared.train_offsets), np.diff(prepared.test_offsets)
    found: dict[str, Any] = {
        "tasks": len(prepared.task_names),
        "largest_name": prepared.task_names[int(train.argmax())],
        "largest": int(train.max()),
        "mean": float(train.mean()),
        "median": float(np.median(train)),
        "smallest": int(train.min()),
        "pairs": int(train.sum()),
        "test_pairs": int(test.sum()),
        "answers": len(prepared.answer_names),
        "distinct_questions": len(prepared),
        **{k: v for k, v in prepared.facts.items() if isinstance(v, int)},
    }
    if len(prepared.regions.images):
        counts = np.diff(prepared.regions.offsets)
        found["images"] = int(np.count_nonzero(counts))
        found["regions_per_image"] = float(counts.mean())
        found["feature_width"] = prepared.regions.width
    return found


def _table(found: dict[str, Any]) -> str:
    rows = [
        ("tasks", f"{found['tasks']:,}", f"{PAPER['tasks']:,}"),
        (
            "largest task",
            f"{found['largest_name']}, {found['largest']:,}",
            f"{PAPER['largest_name']}, {PAPER['largest']:,}",
        ),
        ("question-image pairs a task", f"{found['mean']:.2f}", f"{PAPER['mean']}"),
        ("answers", f"{found['answers']:,}", f"{PAPER_ANSWERS:,}"),
        ("median, smallest task", f"{found['median']:.0f}, {found['smallest']}", ""),
        ("training pairs", f"{found['pairs']:,}", "about 140,000"),
        ("test pairs", f"{found['test_pairs']:,}", ""),
        ("training questions read", f"{found['train_questions']:,}", ""),
        ("test questions read", f"{found['test_questions']:,}", ""),
        ("objects left out as too frequent", f"{found['objects_above_largest']:,}", ""),
    ]
    if "images" in found:
        seen = f"{found['images']:,} x {found['regions_per_image']:.1f}"
        rows.append(("images x regions", seen, ""))
        rows.append(("feature width", f"{found['feature_width']:,}", "2,048"))
    wide = [max(len(row[i]) for row in rows) for i in range(3)]
    lines = [f"{'':<{wide[0]}}  {'here':>{wide[1]}}  {'paper':>{wide[2]}}"]
    lines += [f"{a:<{wide[0]}}  {b:>{wide[1]}}  {c:>{wide[2]}}" for a, b, c in rows]
    return "\n".join(line.rstrip() for line in lines)


def data_command(args: argparse.Namespace) -> int:
    """`longtail data vqa [--check DIR] [--source generated] [--strict]`."""
    source = getattr(args, "source", None)
    folder = Path(args.dir).expanduser() if args.dir else cache_folder("gqa")
    if source is None:
        generated = not args.check and args.dir and (folder / MARK).is_file()
        source = "generated" if generated else "gqa"
    if source not in ("generated", "miniature", "gqa"):
        raise ValueError(f"Invalid source: {source!r} (generated, miniature or gqa)")
    if source == "gqa" and not args.check and not folder.is_dir():
        if args.json:
            print(json.dumps({"benchmark": "vqa", "folder": str(folder), "found": False}))
        elif not args.quiet:
            print(GUIDE.format(folder=folder))
        return 0
    strict = bool(getattr(args, "strict", False))
    options = DataOptions(source=source, folder=args.dir or "", strict=strict)
    return _check(options, args, folder)


def _check(options: DataOptions, args: argparse.Namespace, folder: Path) -> int:
    problems = Problems(options.strict)
    missing = ""
    if (folder / MARK).is_file():  # a generated world has no objects to leave out
        options = replace(options, largest_task=0)
    try:
        prepared = prepare(options, problems)
    except ValueError as error:
        if options.strict or "holds no region features" not in str(error):
            raise
        missing = str(error)
        problems = Problems(options.strict)
        prepared = prepare_questions(options, problems)
    found = statistics(prepared)
    if args.json:
        content = {"benchmark": "vqa", "source": options.source, **found}
        noted = {"problems": dict(problems.counts), "listed": problems.examples}
        print(json.dumps({**content, **noted, "features": not missing}))
        return 0
    if not args.quiet:
        print(_table(found))
    for line in problems.lines():
        print(line)
    if missing:
        print(f"questions only: {missing}")
    return 0
