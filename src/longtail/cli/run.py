"""`longtail run`: every setting of the benchmark, of training and of the method is a flag."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from longtail.cli.parser import Parser, flag_of, folder, unknown_argument

if TYPE_CHECKING:
    from longtail.runs.config import Option, RunConfig
    from longtail.runs.session import RunOptions

EXAMPLES = """examples:
  longtail run toy                                     finetune with Continual AdamW, seed 0
  longtail run toy --method derpp --buffer 200         a method and one of its settings
  longtail run toy --policy new --seed 3               the same sequence, a new AdamW for each task
  longtail run toy --replicas 5                        seeds 0 to 4 as one program, and their mean
  longtail run toy --config my.toml --set train.lr=3e-4
  longtail run toy --optimizer sgd --momentum 0.9      another optimizer and its settings
  longtail run toy --method ewc --help                 all settings, with their defaults

Calling it again with the same --out resumes an interrupted run and leaves a finished one alone,
unless your own code or data files have changed: then it is computed anew.
"""
USAGE = "%(prog)s BENCHMARK [--method M] [--policy P] [--seed N] [--out DIR] [settings]"
RESERVED = {"config", "set", "out", "device", "threads", "snapshot-minutes", "quiet", "json", "log"}
RESERVED |= {"help", "benchmark", "stop-on-nan", "no-weights", "keep", "fresh", "replicas"}
TITLES = {"data": "the benchmark", "train": "training", "moments": "the policy"}
TITLES |= {"optim": "the optimizer"}
MOST_REPLICAS = 10_000  # all are in memory at once, which a mistyped number would fill
NO_WEIGHTS = "a finished run leaves its scores, not its weights"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Flags that every run has."""
    parser.usage, parser.epilog = USAGE, EXAMPLES
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    add = parser.add_argument
    add("benchmark", nargs="?", metavar="BENCHMARK", help="a name from `longtail list`")
    add("--method", default=argparse.SUPPRESS, metavar="M", help="a method (default: finetune)")
    add(
        "--policy",
        default=argparse.SUPPRESS,
        metavar="P",
        help="what becomes of the optimizer's state at a task's end: continual, kept, new or "
        "module:function (default: continual)",
    )
    add(
        "--optimizer",
        default=argparse.SUPPRESS,
        metavar="O",
        help="adamw, adam, one of torch.optim such as sgd, or module:Class; where no policy is "
        "given, it is kept (default: the benchmark's)",
    )
    add("--seed", default=argparse.SUPPRESS, metavar="N", help="seed of the run (default: 0)")
    add(
        "--replicas",
        type=int,
        metavar="N",
        help="train N seeds, from --seed on, as one program; for more: longtail study",
    )
    add("--config", type=Path, metavar="FILE", help="settings from a TOML file; flags override it")
    add(
        "--set",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="any setting, such as train.lr=0.01; may be given more than once",
    )
    add("--out", type=folder, metavar="DIR", help="run folder (default: runs/<what it is>)")
    add(
        "--device", default="auto", help="cpu, cuda, cuda:1, ... (default: cuda where there is one)"
    )
    add("--threads", type=int, metavar="N", help="CPU threads (default: torch's own choice)")
    add(
        "--snapshot-minutes",
        type=float,
        default=2.0,
        metavar="X",
        help="least time between snapshots (default: 2); 0: after every step; inf: none",
    )
    add(
        "--log",
        action="append",
        default=[],
        metavar="TOOL",
        help="also log to tensorboard, wandb or mlflow; may be given more than once",
    )
    add_freshness(parser)
    add(
        "--stop-on-nan",
        action="store_true",
        help="stop where weights or losses are infinite or NaN",
    )
    add("--no-weights", action="store_true", help=NO_WEIGHTS)
    add("--quiet", action="store_true", help="print only warnings and errors")
    add("--json", action="store_true", help="JSON lines on stdout")


def add_freshness(parser: argparse.ArgumentParser) -> None:
    """What becomes of runs that are there: a user's code or data may have changed since."""
    add = parser.add_argument
    add("--keep", action="store_true", help="refuse where code or data changed, compute none anew")
    add("--fresh", action="store_true", help="compute anew, whatever is there")


def parse(argv: list[str]) -> argparse.Namespace:
    """Arguments after `run`; settings flags arrive in ``args.flags`` under their dotted keys."""
    parser = Parser(prog="longtail run", description=__doc__, allow_abbrev=False)
    add_arguments(parser)
    if not argv or argv in (["-h"], ["--help"]):
        parser.print_help()
        raise SystemExit(0 if argv else 2)
    first = Parser(prog="longtail run", add_help=False, allow_abbrev=False)
    for flag in ("--method", "--policy", "--optimizer", "--config"):
        first.add_argument(flag)
    first.add_argument("--set", action="append", default=[])
    named = argv[0] if not argv[0].startswith("-") else None
    known, _ = first.parse_known_args(argv[1:] if named else argv)

    from longtail.runs.config import check, options, read_toml, whose_setting

    file = read_toml(known.config) if known.config else {}
    benchmark = named or file.get("benchmark")
    if benchmark is None:
        raise ValueError("name a benchmark right after `run`, such as `longtail run toy`")
    check(benchmark, str, "benchmark")  # a file may hold anything
    named = {key: _named(key, file, known) for key in ("method", "policy", "optimizer")}
    method = named["method"] or "finetune"
    settings = options(benchmark, method, named["policy"], named["optimizer"])
    add_setting_flags(parser, settings, method)
    args, extra = parser.parse_known_args(argv)
    if extra:
        flag = flag_of(extra[0])
        whose = whose_setting(flag.removeprefix("--").replace("-", "_"))
        known_elsewhere = f"unknown flag {flag}: {whose}"
        parser.error(known_elsewhere if whose else unknown_argument(extra[0], parser))
    given = vars(args)
    args.flags = {o.key: _value(given.pop(o.key)) for o in settings if o.key in given}
    args.benchmark = benchmark
    return args


def _named(key: str, file: dict[str, Any], known: argparse.Namespace) -> str | None:
    """A name as --set, a flag or the file give it, which says what flags there are."""
    given = [text.partition("=")[2] for text in known.set if _key(text) == key]
    value = given[-1].strip() if given else getattr(known, key) or file.get(key)
    return None if value is None else str(_value(value))


def _key(text: str) -> str:
    return text.partition("=")[0].strip()


def _value(text: Any) -> Any:
    from longtail.runs.values import parse as parse_value

    return parse_value(text) if isinstance(text, str) else text


def add_setting_flags(parser: argparse.ArgumentParser, settings: list[Option], method: str) -> None:
    """A flag per setting: `--lr`, or `--optim-noise` where the short name is taken."""
    from longtail.runs.values import describe, plain

    names = [o.name for o in settings]
    groups: dict[str, Any] = {}
    for option in settings:
        if not option.table:
            continue
        title = TITLES.get(option.table, f"the method {method}")
        if option.table not in groups:
            groups[option.table] = parser.add_argument_group(f"settings of {title}")
        flag = option.name.replace("_", "-")
        if names.count(option.name) > 1 or flag in RESERVED:
            flag = f"{option.table}-{flag}"
        default = plain(option.default)
        text = f"{option.help} (default: {default})".replace("%", "%%").strip()
        common: dict[str, Any] = {"dest": option.key, "default": argparse.SUPPRESS, "help": text}
        if option.type is bool:
            action = argparse.BooleanOptionalAction
            groups[option.table].add_argument(f"--{flag}", action=action, **common)
        else:
            metavar = _metavar(describe(option.type))
            groups[option.table].add_argument(f"--{flag}", metavar=metavar, **common)


def _metavar(kind: str) -> str:
    """`NUMBER`, `adamw|adam`, `A,B,...`: choices are shown as they must be written."""
    if kind.startswith("a list"):
        return "A,B,..."
    kind = kind.replace(" ", "")
    for name in ("integer", "number", "text", "path"):
        kind = kind.replace(name, name.upper())
    return kind if len(kind) <= 24 else "VALUE"


def default_out(config: RunConfig, replicas: int | None = None) -> Path:
    parts = [config.benchmark, config.method, config.policy, f"s{config.seed}"]
    if config.optimizer not in ("adamw", "adam"):
        parts.insert(2, config.optimizer)
    if replicas is not None:
        parts.append(f"x{replicas}")
    return Path("runs") / "-".join(parts).replace(":", ".").replace("/", "-")


def main(args: argparse.Namespace) -> int:
    from longtail.runs.config import resolve
    from longtail.runs.loggers import logged
    from longtail.runs.progress import reporter
    from longtail.runs.session import RunOptions, train_run

    config = resolve(args.benchmark, args.config, args.flags, args.set)
    out = args.out or default_out(config, args.replicas)
    options = RunOptions(
        args.device,
        args.threads,
        args.snapshot_minutes,
        stop_on_nan=args.stop_on_nan,
        keep=args.keep,
        fresh=args.fresh,
        weights=not args.no_weights,
    )
    if args.replicas is not None:
        return train_replicas(config, out, options, args)
    tell = logged(reporter(args.quiet, args.json), args.log, config, out)
    train_run(config, out, options, reporter=tell)
    return 0


def train_replicas(
    config: RunConfig, out: Path, options: RunOptions, args: argparse.Namespace
) -> int:
    """Trains seeds as one program where the benchmark can, and prints their mean."""
    from longtail.runs.config import load_benchmark
    from longtail.runs.progress import reporter
    from longtail.runs.session import train_stack
    from longtail.runs.summary import mean_summary

    if args.replicas < 1:
        raise ValueError(f"--replicas must be at least 1, got {args.replicas}")
    if args.replicas > MOST_REPLICAS:
        text = f"--replicas must be at most {MOST_REPLICAS:,}, got {args.replicas}"
        raise ValueError(f"{text}; `longtail study FILE` trains more seeds, in several programs")
    if config.seed + args.replicas > 2**63:  # a stack keeps its seeds in a tensor
        last = f"{config.seed} + {args.replicas} - 1"
        raise ValueError(f"--replicas: the last seed must be below 2**63, got {last}")
    if not load_benchmark(config.benchmark).can_stack(config.data):
        raise ValueError(
            f"--replicas: {config.benchmark} does not train as one program with these settings; "
            '`longtail study FILE` with seeds = "0-4" trains such runs one by one'
        )
    if args.log:
        raise ValueError(
            "--log is for one run; `longtail report DIR --log TOOL` logs replicas that are done"
        )
    configs = [config.with_seed(config.seed + i) for i in range(args.replicas)]
    tell = reporter(args.quiet, args.json)
    entries = train_stack(configs, out, options, reporter=tell)
    tell.finish(mean_summary([entry["summary"] for entry in entries]), str(out))
    return 0
