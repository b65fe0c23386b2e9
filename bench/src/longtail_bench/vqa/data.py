"""`longtail data vqa`: what to get of GQA and where to put it; checks and statistics of files."""

import argparse
import json
from typing import Any

import numpy as np

from longtail_bench.vqa.gqa.files import Files, files_folder
from longtail_bench.vqa.options import DataOptions
from longtail_bench.vqa.prepared import PreparedVQA
from longtail_bench.vqa.problems import Problems
from longtail_bench.vqa.sources import prepare, read_questions
from longtail_bench.vqa.tasks import PAPER, PAPER_ANSWERS, TaskQuestions

OFFICIAL = "https://downloads.cs.stanford.edu/nlp/data/gqa"
VINVL = "https://biglmdiag.blob.core.windows.net/vinvl/image_features/gqa_X152C4_frcnnbig2_"
GUIDE = f"""GQA is published by Stanford and fetched by hand: its files are large, and no checksums
of them are published. Put into {{folder}}:

  sceneGraphs/train_sceneGraphs.json, val_sceneGraphs.json
      {OFFICIAL}/sceneGraphs.zip   (43 MB)
  questions1.2/train_balanced_questions.json, val_balanced_questions.json
      {OFFICIAL}/questions1.2.zip   (1.4 GB)

and region features in one of two forms, in the folder itself or in features/:

  features.tsv and predictions.tsv of Oscar / VinVL   (62 GB)
      the folder {VINVL}...
      named in VinVL_DOWNLOAD.md of the repository microsoft/Oscar
  IMAGE.npz for each image, with features [n, F], boxes [n, 4], width, height

Then: longtail data vqa --check {{folder}}
Without GQA: longtail run vqa, which makes a world of its own."""


def statistics(content: TaskQuestions | PreparedVQA) -> dict[str, Any]:
    """Sizes of a benchmark, named as the paper names them."""
    train, test = np.diff(content.train_offsets), np.diff(content.test_offsets)
    sizes: dict[str, Any] = {
        "tasks": len(content.task_names),
        "largest_name": content.task_names[int(train.argmax())],
        "largest": int(train.max()),
        "mean": float(train.mean()),
        "median": float(np.median(train)),
        "smallest": int(train.min()),
        "pairs": int(train.sum()),
        "test_pairs": int(test.sum()),
        "answers": len(content.answer_names),
        "distinct_questions": len(content.questions),
        **content.counts,
    }
    if isinstance(content, PreparedVQA):
        sizes["images"] = len(content.regions.image_names)
        sizes["regions_per_image"] = float(np.diff(content.regions.offsets).mean())
        sizes["feature_width"] = content.regions.width
    return sizes


def _table(sizes: dict[str, Any]) -> str:
    rows = [
        ("tasks", f"{sizes['tasks']:,}", f"{PAPER['tasks']:,}"),
        (
            "largest task",
            f"{sizes['largest_name']}, {sizes['largest']:,}",
            f"{PAPER['largest_name']}, {PAPER['largest']:,}",
        ),
        ("question-image pairs a task", f"{sizes['mean']:.2f}", f"{PAPER['mean']}"),
        ("answers", f"{sizes['answers']:,}", f"{PAPER_ANSWERS:,}"),
        ("median, smallest task", f"{sizes['median']:.0f}, {sizes['smallest']}", ""),
        ("training pairs", f"{sizes['pairs']:,}", "about 140,000"),
        ("test pairs", f"{sizes['test_pairs']:,}", ""),
        ("training questions read", f"{sizes['train_questions']:,}", ""),
        ("test questions read", f"{sizes['test_questions']:,}", ""),
        ("objects left out as too frequent", f"{sizes['objects_above_largest']:,}", ""),
    ]
    if "images" in sizes:
        seen = f"{sizes['images']:,} x {sizes['regions_per_image']:.1f}"
        rows.append(("images x regions", seen, ""))
        rows.append(("feature width", f"{sizes['feature_width']:,}", "2,048"))
    wide = [max(len(row[i]) for row in rows) for i in range(3)]
    lines = [f"{'':<{wide[0]}}  {'here':>{wide[1]}}  {'paper':>{wide[2]}}"]
    lines += [f"{a:<{wide[0]}}  {b:>{wide[1]}}  {c:>{wide[2]}}" for a, b, c in rows]
    return "\n".join(line.rstrip() for line in lines)


def data_command(args: argparse.Namespace) -> int:
    """`longtail data vqa [--check DIR] [--strict]`."""
    folder = files_folder(args.dir)
    if not args.check and not folder.is_dir():
        if args.json:
            print(json.dumps({"benchmark": "vqa", "folder": str(folder), "found": False}))
        elif not args.quiet:
            print(GUIDE.format(folder=folder))
        return 0
    options = DataOptions(source="gqa", folder=args.dir or "", strict=args.strict)
    problems = Problems(options.strict)
    files = Files(options)
    seen = files.features is not None or options.strict
    content = prepare(options, problems) if seen else read_questions(files, options, problems)
    sizes = statistics(content)
    if args.json:
        noted = {"problems": dict(problems.counts), "listed": problems.examples}
        print(json.dumps({"benchmark": "vqa", **sizes, **noted, "features": seen}))
        return 0
    if not args.quiet:
        print(_table(sizes))
    for line in problems.lines():
        print(line)
    if not seen:
        print(f"questions only: {folder} holds no region features")
    return 0
