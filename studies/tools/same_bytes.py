"""Whether a change left every run as it was: hashes of what small runs of all benchmarks write.

    python studies/tools/same_bytes.py before.json              # on the old tree
    python studies/tools/same_bytes.py after.json --against before.json

Every benchmark's miniature is trained with every method under two policies, one by one through
`longtail run` and, where it can be stacked, as a stack of two seeds through `longtail study`. Of
each run's folder `scores.jsonl`, `summary.json` and `model.safetensors` are hashed; of a stack's
`runs.json`, `scores.npz` and `model.safetensors`. Exit code 1 where anything differs.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import shutil
import sys
import tempfile
import zipfile
from pathlib import Path

METHODS = ("finetune", "ewc", "ewcpp", "reservoir", "derpp", "agem", "multitask")
BENCHMARKS: dict[str, dict[str, object]] = {
    "toy": {"data.tasks": 12},
    "synthetic": {"data.tasks": 6, "data.cap": 200, "train.epochs": 3, "train.batch_size": 32},
    "mnist": {"data.miniature": True, "train.batch_size": 32},
    "cifar10": {"data.miniature": True, "data.width": 8, "train.batch_size": 128},
    "cifar100": {"data.miniature": True, "data.model": "mlp", "train.batch_size": 128},
    "fashion_mnist": {"data.miniature": True, "train.batch_size": 64},
    "nlp5": {"data.miniature": True, "data.per_task": 8, "data.test_per_task": 4},
    "wsd": {"data.miniature": True, "train.epochs": 2},
    "vqa": {"data.miniature": True, "data.tasks": 4, "train.epochs": 1},
    "fsmol": {"data.miniature": True, "data.tasks": 40, "train.evaluate_every": 10},
}
STACKED = ("toy", "synthetic", "mnist", "wsd", "vqa", "fsmol")
FILES = ("scores.jsonl", "summary.json", "model.safetensors", "runs.json", "scores.npz")


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("out", type=Path, help="where the hashes go")
    parser.add_argument("--against", type=Path, help="hashes of before")
    parser.add_argument("--only", nargs="*", default=list(BENCHMARKS), help="these benchmarks")
    parser.add_argument("--methods", nargs="*", default=list(METHODS), help="these methods")
    return parser.parse_args()


def call(*words: str) -> None:
    from longtail.cli import main

    code = main(list(words))
    if code:
        raise SystemExit(f"longtail {' '.join(words)} ended with code {code}")


def digest(path: Path) -> str:
    """Of the content; a zip's members carry dates, so they are hashed one by one."""
    found = hashlib.sha256()
    if path.suffix == ".npz":
        with zipfile.ZipFile(path) as archive:
            for name in sorted(archive.namelist()):
                found.update(name.encode() + archive.read(name))
    else:
        found.update(path.read_bytes())
    return found.hexdigest()


def run_all(folder: Path, names: list[str], methods: list[str]) -> None:
    for name in names:
        sets = [f"--set={key}={json.dumps(value)}" for key, value in BENCHMARKS[name].items()]
        for method in methods:
            for policy in ("continual", "reset"):
                out = folder / "single" / f"{name}-{method}-{policy}"
                named = ["--method", method, "--optimizer", policy, "--out", str(out)]
                call("run", name, *named, "--device=cpu", "--threads=1", "--quiet", *sets)
        if name in STACKED:
            study(folder, name, methods)
        print(f"{name} done", file=sys.stderr, flush=True)


def study(folder: Path, name: str, methods: list[str]) -> None:
    tables: dict[str, dict[str, object]] = {}
    for key, value in BENCHMARKS[name].items():
        table, _, field = key.partition(".")
        tables.setdefault(table, {})[field] = value
    lines = [
        f'benchmark = "{name}"',
        f"methods = {json.dumps(methods)}",
        'optimizers = ["continual", "reset", "carry"]',
        'seeds = "0-1"',
    ]
    for table, values in tables.items():
        lines.append(f"[{table}]")
        lines += [f"{key} = {json.dumps(value)}" for key, value in values.items()]
    file = folder / f"{name}.toml"
    file.write_text("\n".join(lines) + "\n", encoding="utf-8")
    out = folder / "stacked" / name
    call("study", str(file), f"--out={out}", "--jobs=1", "--device=cpu", "--quiet")


def main() -> int:
    args = arguments()
    os.environ["OMP_NUM_THREADS"] = "1"
    folder = Path(tempfile.mkdtemp())
    try:
        run_all(folder, args.only, args.methods)
        found = {
            str(path.relative_to(folder)): digest(path)
            for path in sorted(folder.rglob("*"))
            if path.name in FILES and "report" not in path.parts
        }
    finally:
        shutil.rmtree(folder)
    args.out.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    if args.against is None:
        print(f"{len(found)} files hashed")
        return 0
    before = json.loads(args.against.read_text(encoding="utf-8"))
    differ = sorted(k for k in before.keys() | found.keys() if before.get(k) != found.get(k))
    for name in differ:
        print(f"differs: {name}")
    print(f"{len(before.keys() & found.keys()) - len(differ)} of {len(before)} files are the same")
    return 1 if differ else 0


if __name__ == "__main__":
    raise SystemExit(main())
