"""How much of the library one has to read to follow it: functions and files that a call passes.

    python perf/walks.py [--json FILE] [--names]

Counted are the functions of longtail and longtail_bench that are called, each once, and the files
they stand in, as `sys.setprofile` sees them: in a run of the toy with EWC, from the command line to
the last file; in a study of the toy, up to its page; in a step of Continual AdamW that has taken
many like it, on the CPU and, where there is one, on CUDA. What a module does while it is imported
is left out, and so are comprehensions, which are no functions to their reader. `--names` lists them
by file. On a slow machine a run shows its progress once more, which is a function or two.
"""

import argparse
import json
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import provenance
import torch
from torch import nn

PACKAGES = ("longtail", "longtail_bench")
STUDY = """
benchmark = "toy"
methods = ["finetune", "ewc"]
{key} = {policies}
seeds = "0-1"
[data]
tasks = 30
[train]
validation = 0.2
evaluate_every = 5
[grid]
"train.lr" = [0.001, 0.01]
[select]
key = "train.lr"
[report]
checks = ["mc_improves"]
"""


def roots() -> tuple[str, ...]:
    """The folders of the packages that are installed."""
    import importlib.util

    specs = [importlib.util.find_spec(name) for name in PACKAGES]
    return tuple(str(Path(s.origin).parent) for s in specs if s is not None and s.origin)


def passed(call: Callable[[], object]) -> set[CodeType]:
    """The functions of ours that a call passes in this thread, but for those that imports call."""
    inside, seen = roots(), set[CodeType]()
    importing = 0

    def note(frame: FrameType, event: str, argument: object) -> None:
        nonlocal importing
        if frame.f_code.co_name == "<module>":
            importing += {"call": 1, "return": -1}.get(event, 0)
        elif event == "call" and not importing:
            seen.add(frame.f_code)

    sys.setprofile(note)
    try:
        call()
    finally:
        sys.setprofile(None)
    ours = {code for code in seen if code.co_filename.startswith(inside)}
    return {code for code in ours if not code.co_name.startswith("<") or code.co_name == "<lambda>"}


def command(*words: str) -> Callable[[], object]:
    from longtail.cli import main

    def call() -> None:
        code = main(words)
        if code:
            raise SystemExit(f"longtail {' '.join(words)} ended with code {code}")

    return call


def toy(folder: Path) -> set[CodeType]:
    words = ("run", "toy", "--method", "ewc", "--device=cpu", "--threads=1", "--quiet")
    return passed(command(*words, f"--out={folder / 'toy'}"))


def study(folder: Path) -> set[CodeType]:
    file = folder / "walk.toml"
    from longtail.names import POLICIES

    today = "kept" in POLICIES
    names = ["continual", "new"] if today else ["continual", "reset"]
    key = "policies" if today else "optimizers"
    file.write_text(STUDY.format(key=key, policies=json.dumps(names)), encoding="utf-8")
    out = folder / "study"
    words = ("study", str(file), f"--out={out}", "--device=cpu", "--jobs=1", "--quiet")
    seen = passed(command(*words))
    assert (out / "report.html").exists(), "no page was made"
    return seen


def step(device: str) -> set[CodeType]:
    """One step in the second task of an MLP, after some that were alike."""
    from longtail import ContinualAdamW

    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(20, 20), nn.ReLU(), nn.Linear(20, 5)).to(device)
    optimizer = ContinualAdamW(model.parameters(), fused=True)
    x = torch.randn(8, 20, device=device)

    def gradients() -> None:
        optimizer.zero_grad()
        model(x).square().mean().backward()

    for _ in range(2):
        for _ in range(12):
            gradients()
            optimizer.step()
        optimizer.end_task()
    for _ in range(12):
        gradients()
        optimizer.step()
    gradients()
    return passed(optimizer.step)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the counts there too")
    parser.add_argument("--names", action="store_true", help="list the functions by file")
    args = parser.parse_args()
    torch.set_num_threads(1)
    counts: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        walks = {
            "a warm step on the CPU": lambda: step("cpu"),
            "a toy run with EWC": lambda: toy(folder),
            "a study up to its page": lambda: study(folder),
        }
        if torch.cuda.is_available():
            walks["a warm step on CUDA"] = lambda: step("cuda")
        for name, walk in walks.items():
            seen = walk()
            files = {code.co_filename for code in seen}
            counts[name] = {"functions": len(seen), "files": len(files)}
            print(f"{name}: {len(seen)} functions in {len(files)} files")
            for file in sorted(files) if args.names else ():
                own = sorted(c.co_qualname for c in seen if c.co_filename == file)
                print(f"    {Path(*Path(file).parts[-3:])}: {', '.join(own)}")
    if args.json:
        rows = [{"walk": name, **count} for name, count in counts.items()]
        provenance.write(args.json, rows, "cpu")
    return 0


if __name__ == "__main__":
    sys.exit(main())
