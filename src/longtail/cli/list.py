"""`longtail list`: what there is, and what one benchmark is made of."""

from __future__ import annotations

import argparse
import ast
import importlib.util
import json
import os
from pathlib import Path
from typing import Any

from longtail.cli.parser import Parser
from longtail.support import doors

EXAMPLES = """examples:
  longtail list                                  benchmarks, methods, policies, studies
  longtail list toy                              a benchmark's settings and their defaults
  longtail list toy --tasks                      how large its tasks are, as numbers and a plot
  longtail list toy --tasks --set data.tasks=50  the same with other settings
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.epilog = EXAMPLES
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("benchmark", nargs="?", metavar="BENCHMARK", help="look at this one")
    parser.add_argument("--tasks", action="store_true", help="task sizes and long-tail plot")
    parser.add_argument("--method", help="whose settings to show (default: finetune)")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help=_SET)
    parser.add_argument("--json", action="store_true", help="JSON on stdout")


_SET = "with --tasks, a setting of the benchmark"


def main(args: argparse.Namespace) -> int:
    _refuse_idle_flags(args)
    if args.benchmark is None:
        content = everything()
        text = _everything_text(content)
    elif args.tasks:
        content, text = task_sizes(args.benchmark, args.set)
    else:
        content = settings_of(args.benchmark, args.method or "finetune")
        text = _settings_text(args.benchmark, content)
    print(json.dumps(content, indent=2) if args.json else text)
    return 0


def _refuse_idle_flags(args: argparse.Namespace) -> None:
    """Refuses flags that would change nothing of what is shown."""
    refuse = Parser(prog="longtail list").error
    if args.benchmark is None and (args.tasks or args.set or args.method is not None):
        refuse("--tasks, --set and --method need a BENCHMARK")
    if args.set and not args.tasks:
        refuse(f"--set {args.set[0]} goes with --tasks, which shows the sizes it leads to")
    if args.tasks and args.method is not None:
        refuse(f"--method {args.method} goes without --tasks: no method changes the tasks")


def everything() -> dict[str, dict[str, str]]:
    """Names and one line each."""
    from longtail import benchmarks, methods
    from longtail.study.named import named_studies
    from longtail.training import POLICIES
    from longtail.training.optimizer_class import names

    method_lines = {name: first_line(methods.find(name).__doc__) for name in methods.names()}
    method_lines["multitask"] = "Finetune on the union of all tasks: what there is to reach."
    return {
        "benchmarks": {name: module_line(path) for name, path in benchmarks.paths().items()},
        "methods": method_lines,
        "policies": {n: policy_line(p) for n, p in POLICIES.items()},
        "optimizers": names()
        | {"module:Class": "any other, such as schedulefree:AdamWScheduleFree"},
        "studies": {name: comment_line(path) for name, path in named_studies().items()},
    }


def settings_of(benchmark: str, method: str) -> dict[str, dict[str, Any]]:
    from longtail.runs.config import options
    from longtail.runs.values import describe, plain

    return {
        o.key: {"default": plain(o.default), "type": describe(o.type), "help": o.help}
        for o in options(benchmark, method)
    }


def task_sizes(benchmark: str, sets: list[str]) -> tuple[dict[str, Any], str]:
    from longtail.runs.config import load_benchmark, resolve
    from longtail.runs.progress import finite
    from longtail.tasks import size_statistics, tail_plot

    config = resolve(benchmark, sets=sets)
    sequence = load_benchmark(benchmark).build(config.data, config.seed).sequence
    statistics = size_statistics(sequence)
    width = max(map(len, statistics))
    lines = [f"{name.ljust(width)}  {_number(value)}" for name, value in statistics.items()]
    return finite(statistics), "\n".join([*lines, "", tail_plot(sequence.train_sizes)])


def first_line(text: str | None) -> str:
    return (text or "").strip().partition("\n")[0]


def module_line(module: str) -> str:
    """The first line of a module's docstring, without importing it: some need extras."""
    try:
        spec = importlib.util.find_spec(module)
    except ModuleNotFoundError:
        spec = None
    if spec is None or spec.origin is None or not os.path.exists(spec.origin):
        return "(not installed)"
    return first_line(ast.get_docstring(ast.parse(Path(spec.origin).read_text("utf-8"))))


def comment_line(path: Path) -> str:
    lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
    return next((line.lstrip("# ").strip() for line in lines if line.startswith("#")), "")


def policy_line(policy: Any) -> str:
    if not policy.boundary:
        return "plain Adam(W) that never hears of task boundaries"
    text = f"first moment {policy.first_moment}, second moment {policy.second_moment}"
    return text + (f", warm-up beta3 {policy.beta3}" if policy.beta3 else "")


def _everything_text(content: dict[str, dict[str, str]]) -> str:
    blocks = []
    for title, entries in content.items():
        width = max(map(len, entries), default=0)
        lines = [f"  {name.ljust(width)}  {text}".rstrip() for name, text in entries.items()]
        blocks.append("\n".join([title, *(lines or [f"  none{doors.hint()}"])]))
    return "\n\n".join(blocks)


def _settings_text(benchmark: str, content: dict[str, dict[str, Any]]) -> str:
    width = max(map(len, content))
    lines = [
        f"  {key.ljust(width)}  {json.dumps(entry['default'])}  {entry['help']}".rstrip()
        for key, entry in content.items()
    ]
    return "\n".join([f"settings of {benchmark}", *lines])


def _number(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)
