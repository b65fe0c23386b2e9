"""Whether a change left every run as it was: what small runs of all benchmarks write, in digests.

    python bench/tools/same_bytes.py before.json --python OLD_TREE/.venv/bin/python
    python bench/tools/same_bytes.py after.json --against before.json

Every benchmark in its small variant is trained with six methods and multi-task training under
three policies, one by one by `longtail run` and, where it can be stacked, by `longtail study`. The
toy has further methods, optimizers and settings, the synthetic tasks have Table 1 in miniature.

Of each run are kept: scores, summary, settings and tasks as parsed values; digests of weights, of
the average of weights, and of everything in the last snapshot, which holds the optimizer's state,
what a method remembers and the state of each random stream; and the memory file that `save_memory`
makes of that optimizer's state, with what `load_memory` gets from it. Times, ids, file names and
versions are left out.

A run has one key in every tree, and names are compared as the tree of today spells them: OLD below
says what a tree calls things that has no `--policy` yet. A comparison names each part that differs,
and prints apart what the later tree adds. What a commit takes away on purpose is a pattern in
TAKEN_AWAY. Exit code 1 where a part differs or is missing.

Several files of before may be given, as some CUDA kernels add in another order each time: parts on
which they disagree are not compared. Another kind of machine may give other numbers.
"""

import argparse
import collections
import contextlib
import fnmatch
import functools
import hashlib
import importlib.util
import io
import json
import math
import os
import platform
import shutil
import subprocess
import sys
import tempfile
import time
import tomllib
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

METHODS = ("finetune", "ewc", "ewcpp", "reservoir", "derpp", "agem", "multitask")
POLICIES = ("continual", "new", "kept")
BENCHMARKS: dict[str, dict[str, Any]] = {
    "toy": {"data.tasks": 12},
    "synthetic": {"data.tasks": 6, "data.cap": 200, "train.epochs": 3, "train.batch_size": 32},
    "mnist": {"data.miniature": True, "train.batch_size": 32},
    "cifar10": {"data.miniature": True, "data.width": 8, "train.batch_size": 128},
    "cifar100": {"data.miniature": True, "data.model": "mlp", "train.batch_size": 128},
    "fashion_mnist": {"data.miniature": True, "train.batch_size": 64},
    "nlp5": {"data.miniature": True, "data.per_task": 8, "data.test_per_task": 4},
    "wsd": {"data.miniature": True, "data.tasks": 12, "train.epochs": 2},
    "vqa": {"data.miniature": True, "data.tasks": 4, "train.epochs": 1},
    "fsmol": {"data.miniature": True, "data.tasks": 20, "train.evaluate_every": 5},
}
STACKED = ("toy", "synthetic", "mnist", "wsd", "vqa", "fsmol")

# Further runs of the toy: methods, then settings, then optimizers under a policy.
FURTHER_METHODS = (
    *("l2", "si", "lwf", "ewc_adam", "ewc_routed", "agem_routed", "coma", "cofima"),
    *("reservoir_l2", "reservoir_ewc_adam", "reservoir_coma", "reservoir_cofima"),
)
FURTHER_SETTINGS: dict[str, dict[str, Any]] = {
    "accumulate": {"train.accumulate": 2},
    "clip": {"train.clip": 0.5},
    "decayed": {"train.schedule": "linear", "train.warmup": 0.1, "train.weight_decay": 0.1},
    "over the sequence": {"train.schedule": "linear", "train.span": "sequence"},
    "bf16": {"train.autocast": "bf16"},
    "validated": {"train.validation": 0.2, "train.evaluate_every": 4},
    "last of equals": {"train.validation": 0.2, "train.tie": "last"},
    "task average": {"train.average": "task"},
    "moving average": {"train.average": "ema", "train.average_decay": 0.9},
    "not fused": {"train.fused": False},
    "past in a byte": {"past_dtype": "uint8"},
    "both moments kept": {"first_moment": "ema", "second_moment": "ema"},
    "both moments averaged": {"first_moment": "task", "second_moment": "task"},
    "seen tasks only": {"second_moment": "task_seen"},
}
ON_A_GPU = {"captured": {"train.cuda_graph": True}, "compiled": {"train.compile": True}}
FURTHER_OPTIMIZERS = (
    *(("adam", policy) for policy in POLICIES),
    *(("sgd", policy) for policy in ("new", "kept")),
    *(("muon", policy) for policy in POLICIES),
    *(("badam:BAdam", "kept"), ("upgd:UPGD", "kept")),
    *(("mofo:MoFO", "kept"), ("mofo:MoFO", "continual")),
)
FURTHER_POLICIES = ("continual_seen", "adam_rel:restart_time")

# Rows of Table 1, by first moment, second moment and beta3.
TABLE_1 = (
    *(("reset", "reset", 0.9), ("reset", "reset", 0.0), ("reset", "ema", 0.9)),
    *(("ema", "ema", 0.0), ("reset", "task", 0.9), ("task", "task", 0.0)),
)

# What identifies a run of a study, as paths in its settings.
PLAIN = ("method", "policy", "seed")
TABLE = ("data.setting", "moments.first_moment", "moments.second_moment", "moments.beta3")

# Features that went, by patterns of RUN/PART/PATH (of RUN/ where whole runs go), as in
# "toy/finetune/*/badam:BAdam/*"; the commit that takes one away says so here.
TAKEN_AWAY: tuple[str, ...] = (
    "*/summary/higher_is_better",  # each score says it, in `scores`
    "wsd*/summary/tables",  # by which `longtail wsd predict` found a run's tables
    "fsmol*/settings/data.heads",
    "fsmol*/settings/data.order",
    "*/settings/data.class_order",
    "*/memory/memory.made_by.groups*",  # settings of the optimizer, which nobody read there
    "*/memory/memory.code*",  # of one byte a number: there is one code
    "*/snapshot method/buffer.dims",  # are `slots`, counted from the last one
    "vqa*/settings/data.feature_width",  # two of the generated world, which every study left alone
    "vqa*/settings/data.test_split",
    "vqa*/settings/data.mention",  # there is one rule: a question's text names the object
    "nlp5*/settings/data.generate",  # two that nobody used: a precision of answers, and a seed
    "nlp5*/settings/data.subset",
)

# Runs that are computed in another order since, by patterns of RUN/: what they measure is the same
# up to rounding, and their digests are not compared.
ROUNDED: tuple[str, ...] = (
    "synthetic, study/finetune/*",  # gradients of linear models were once written without autograd
    "synthetic, study/multitask/*",
    "table 1, study/*",
)

LEFT_OUT = ("scores", "scores_sha256", "seconds", "sessions", "started")  # of a snapshot
VERSIONS = ("memory.made_by.longtail", "memory.made_by.torch")  # in the head of a memory file
OURS = "second_moment"  # a parameter group of Continual Adam has it, others do not
LONG = 64  # characters: longer values are kept as digests

Part = dict[str, Any]
Parts = dict[str, Part]  # of a run, by what they are: weights, summary, ...


# Names ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Spelling:
    """What a tree calls things; each mapping is from today's name to the tree's."""

    policies: Mapping[str, str] = field(default_factory=dict)
    paths: Mapping[str, str] = field(default_factory=dict)  # heads of paths in a run's settings
    words: Mapping[str, str] = field(default_factory=dict)  # of tables, figures and claims
    policy_flag: str = "--policy"
    optimizer_flag: str = "--optimizer"
    rivals: str = "longtail_bench.rivals."

    def policy(self, name: str) -> str:
        return self.rivals + name if ":" in name else self.policies.get(name, name)

    def optimizer(self, name: str) -> str:
        return self.rivals + name if ":" in name else name

    def today(self, values: Part) -> Part:
        """Settings or a summary, flattened, with the names of today."""
        renamed: Part = {}
        for path, value in values.items():
            path = self._path_of_today(path)
            renamed[path] = self._value_of_today(path, value)
        return renamed

    def text_of_today(self, text: str) -> str:
        """What a report says, with the names of today."""
        for today, then in self.words.items():
            text = text.replace(then, today)
        return text

    def _path_of_today(self, path: str) -> str:
        for today, then in self.paths.items():
            if path == then or path.startswith(f"{then}."):
                return today + path[len(then) :]
        return path

    def _value_of_today(self, path: str, value: Any) -> Any:
        if path not in ("policy", "optimizer") or not isinstance(value, str):
            return value
        for today, then in self.policies.items():
            if value == then or value.startswith(f"{then} ("):
                return today + value[len(then) :]
        return value.removeprefix(self.rivals)


OLD = Spelling(
    policies={"new": "reset", "kept": "carry"},
    # In this order: the first that fits renames.
    paths={"optimizer": "train.optimizer", "moments": "policy", "policy": "optimizer"},
    # In this order: a label first, then what tables call it.
    words={
        '"policy": "kept': '"policy": "carry',
        '"policy": "new"': '"policy": "reset"',
        "numbers / new": "numbers / reset",
        "Continual AdamW": "w/ MC",
        "AdamW new": "w/o MC",
        "AdamW kept": "carry",
    },
    policy_flag="--optimizer",
    optimizer_flag="--train-optimizer",
    rivals="longtail.optim.",
)
TODAY = Spelling()


def spelling_of_this_tree() -> Spelling:
    shown = io.StringIO()
    with contextlib.redirect_stdout(shown):
        call("run", "toy", "--help")
    chosen = TODAY if "--policy " in shown.getvalue() else OLD
    in_bench = importlib.util.find_spec("longtail_bench") is not None
    return replace(chosen, rivals=TODAY.rivals if in_bench else OLD.rivals)


# Runs ----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Case:
    """A run by `longtail run`."""

    benchmark: str
    method: str
    policy: str
    optimizer: str | None = None
    settings: Mapping[str, Any] = field(default_factory=dict)
    called: str = ""

    @property
    def key(self) -> str:
        further = [text for text in (self.optimizer, self.called) if text]
        return "/".join((self.benchmark, self.method, self.policy, *further))


def cases(benchmark: str, methods: list[str], *, cuda: bool) -> Iterator[Case]:
    usual = BENCHMARKS[benchmark]
    for method in methods:
        for policy in POLICIES:
            yield Case(benchmark, method, policy, settings=usual)
    if benchmark != "toy":
        return
    if methods == list(METHODS):
        for method in FURTHER_METHODS:
            yield Case(benchmark, method, "continual", settings=usual)
    if "finetune" not in methods:
        return
    further = FURTHER_SETTINGS | (ON_A_GPU if cuda else {})
    for called, settings in further.items():
        yield Case(benchmark, "finetune", "continual", None, {**usual, **settings}, called)
    for optimizer, policy in FURTHER_OPTIMIZERS:
        yield Case(benchmark, "finetune", policy, optimizer, usual)
    for policy in FURTHER_POLICIES:
        yield Case(benchmark, "finetune", policy, None, usual)


def call(*words: str) -> None:
    """Run a command in this process; what a failing one says is raised."""
    from longtail.cli import main

    said = io.StringIO()
    with contextlib.redirect_stderr(said):
        code = main(list(words))
    if code:
        lines = said.getvalue().strip().splitlines() or ["it said nothing"]
        raise RuntimeError(f"longtail {words[0]} ended with code {code}: {lines[-1]}")


def train(case: Case, out: Path, spelling: Spelling, device: str) -> None:
    words = ["run", case.benchmark, "--method", case.method]
    words += [spelling.policy_flag, spelling.policy(case.policy)]
    if case.optimizer:
        words += [spelling.optimizer_flag, spelling.optimizer(case.optimizer)]
    words += [f"--set={key}={json.dumps(value)}" for key, value in case.settings.items()]
    call(*words, f"--out={out}", f"--device={device}", "--threads=1", "--quiet")


def study_file(benchmark: str, methods: list[str], spelling: Spelling) -> str:
    """Every method under every policy, by two seeds."""
    policies = json.dumps([spelling.policy(name) for name in POLICIES])
    key = "policies" if spelling.policy_flag == "--policy" else "optimizers"
    head = [f'benchmark = "{benchmark}"', f"methods = {json.dumps(methods)}", 'seeds = "0-1"']
    return "\n".join([*head, f"{key} = {policies}", *_tables(BENCHMARKS[benchmark]), ""])


def table_1_file(spelling: Spelling) -> str:
    """Rows of moments in three settings."""
    lines = ['benchmark = "synthetic"', 'methods = ["finetune"]', 'seeds = "0-1"']
    lines += _tables(BENCHMARKS["synthetic"])
    lines += ["[grid]", '"data.setting" = ["same", "perturb", "shift"]']
    for number, (first, second, beta3) in enumerate(TABLE_1):
        lines += ["[[policies]]", f'name = "row {number}"']
        if spelling.policy_flag == "--policy":
            lines += ['policy = "continual"', "[policies.moments]"]
        lines += [f'first_moment = "{first}"', f'second_moment = "{second}"', f"beta3 = {beta3}"]
    return "\n".join([*lines, ""])


def _tables(settings: Mapping[str, Any]) -> list[str]:
    tables: dict[str, list[str]] = {}
    for path, value in settings.items():
        table, _, name = path.partition(".")
        tables.setdefault(table, []).append(f"{name} = {json.dumps(value)}")
    lines: list[str] = []
    for table, values in tables.items():
        lines += [f"[{table}]", *values]
    return lines


def execute(text: str, out: Path, device: str) -> None:
    file = out.with_suffix(".toml")
    file.write_text(text, encoding="utf-8")
    words = ["study", str(file), f"--out={out}", f"--device={device}"]
    call(*words, "--jobs=1", "--no-report", "--quiet")


# What a run left -----------------------------------------------------------------------------


def digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()[:16]


def flat(tree: Any, prefix: str = "") -> Part:
    """Nested values by their dotted paths: tensors, arrays and long values as digests."""
    import numpy as np
    import torch

    if isinstance(tree, Mapping):
        found: Part = {}
        for key, value in tree.items():
            found |= flat(value, f"{prefix}{key}.")
        return found
    path = prefix.removesuffix(".")
    if isinstance(tree, torch.Tensor):
        plain = tree.detach().cpu().contiguous()
        content = plain.reshape(-1).view(torch.uint8).numpy().tobytes()
        return {path: f"{str(plain.dtype)[6:]}{list(plain.shape)} {digest(content)}"}
    if isinstance(tree, np.ndarray):
        return {path: f"{tree.dtype}{list(tree.shape)} {digest(np.ascontiguousarray(tree))}"}
    if isinstance(tree, list | tuple) and _holds_tensors(tree):
        return flat(dict(enumerate(tree)), prefix)
    text = json.dumps(tree)  # of a float all digits
    return {path: tree if len(text) <= LONG else digest(text.encode())}


def _holds_tensors(values: Any) -> bool:
    import torch

    if isinstance(values, list | tuple):
        return any(map(_holds_tensors, values))
    return isinstance(values, torch.Tensor | Mapping)


def read_settings(folder: Path, spelling: Spelling) -> Part:
    content = tomllib.loads((folder / "config.toml").read_text(encoding="utf-8"))
    content.pop("fingerprint", None)
    return spelling.today(flat(content))


def read_run(folder: Path, spelling: Spelling, device: str) -> Parts:
    """All parts of the run in this folder."""
    parts: Parts = {"settings": read_settings(folder, spelling)}
    summary = json.loads((folder / "summary.json").read_text(encoding="utf-8"))
    parts["summary"] = spelling.today(flat(summary))
    parts["tasks"] = flat(json.loads((folder / "tasks.json").read_text(encoding="utf-8")))
    parts["scores"] = {}
    lines = (folder / "scores.jsonl").read_text(encoding="utf-8").splitlines()
    for number, line in enumerate(lines):
        parts["scores"] |= flat({f"line {number}": _hashed_scores(json.loads(line))})
    for part, name in (("weights", "model"), ("average", "average")):
        path = folder / f"{name}.safetensors"
        if path.exists():
            parts[part] = _tensors(path)
    return parts | read_snapshot(folder, device)


def _hashed_scores(entry: dict[str, Any]) -> dict[str, Any]:
    return {**entry, "scores": digest(json.dumps(entry["scores"]).encode())}


def _tensors(path: Path) -> Part:
    import safetensors.torch

    return flat(dict(sorted(safetensors.torch.load_file(path).items())))


def read_snapshot(folder: Path, device: str) -> Parts:
    """What the last snapshot holds, and the memory file of its optimizer."""
    import torch

    files = sorted((folder / "snapshot").glob("*.pt"))
    if not files:
        return {}
    state = torch.load(files[-1], map_location="cpu", weights_only=True)["state"]
    kept = {key: value for key, value in state.items() if key not in LEFT_OUT}
    parts: Parts = {}
    run = kept.pop("run", {})
    optimizer = run.pop("optimizer", {})
    if "beside" in optimizer:  # what a class keeps outside of its state, and the state
        parts["snapshot optimizer beside"] = flat(optimizer["beside"])
        optimizer = optimizer["state"]
    if optimizer:
        parts["snapshot optimizer"] = flat(_by_name(optimizer))
    for name, value in run.items():
        parts[f"snapshot {name}"] = flat(value)
    parts["snapshot"] = flat(kept)
    if all(OURS in group for group in optimizer.get("param_groups", [{}])):
        parts |= memory_of(optimizer, folder, device)
    return parts


def _by_name(optimizer: dict[str, Any]) -> dict[str, Any]:
    groups = {f"group {i}": group for i, group in enumerate(optimizer["param_groups"])}
    return {**{k: v for k, v in optimizer.items() if k != "param_groups"}, **groups}


def memory_of(optimizer_state: dict[str, Any], folder: Path, device: str) -> Parts:
    """The memory file of an optimizer in this state, and the state of one that has loaded it."""
    import torch
    from safetensors import safe_open

    from longtail import ContinualAdamW, load_memory, save_memory

    def built() -> tuple[torch.nn.Module, Any]:
        model, groups = torch.nn.Module(), []
        for group in optimizer_state["param_groups"]:
            parameters = []
            for index in group["params"]:
                like = optimizer_state["state"].get(index, {}).get("exp_avg", torch.zeros(()))
                parameter = torch.nn.Parameter(torch.zeros_like(like, device=device))
                model.register_parameter(f"p{index}", parameter)
                parameters.append(parameter)
            moments = {k: group[k] for k in ("first_moment", "second_moment", "past_dtype")}
            groups.append({"params": parameters, **moments})
        return model, ContinualAdamW(groups)

    model, optimizer = built()
    optimizer.load_state_dict(optimizer_state)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that nothing is remembered
        path = Path(save_memory(optimizer, folder, model))
    with safe_open(path, "pt") as file:
        head: dict[str, Any] = dict(file.metadata())
        tensors = {name: file.get_tensor(name) for name in sorted(file.keys())}
    head["memory"] = json.loads(head["memory"])
    told = {k: v for k, v in flat(head).items() if k not in VERSIONS}
    model, optimizer = built()
    load_memory(optimizer, path, model, quiet=True)
    loaded = flat(_by_name(optimizer.state_dict())["state"])
    return {"memory": told | flat(tensors), "memory, loaded": loaded}


def read_study(
    folder: Path, benchmark: str, identity: tuple[str, ...], spelling: Spelling, device: str
) -> dict[str, Parts]:
    """The parts of every run of a study, and of every stack what its runs share."""
    found: dict[str, Parts] = {}

    def key_of(settings: Part) -> str:
        return "/".join([f"{benchmark}, study", *(str(settings.get(path)) for path in identity)])

    for path in sorted(folder.glob("runs/*")):
        parts = read_run(path, spelling, device)
        found[key_of(parts["settings"])] = parts
    for path in sorted(folder.glob("stacks/*")):
        keys = []
        with _arrays(path / "scores.npz") as arrays:
            runs = json.loads((path / "runs.json").read_text(encoding="utf-8"))
            for place, run in enumerate(runs):
                settings = spelling.today(flat(run["config"]))
                keys.append(key_of(settings))
                scores = {n: v[[place]] for n, v in arrays.items() if v.shape[:1] == (len(runs),)}
                found[keys[-1]] = {
                    "settings": settings,
                    "summary": spelling.today(flat(run["summary"])),
                    "scores": flat(scores),
                }
            shared = {n: v for n, v in arrays.items() if v.shape[:1] != (len(runs),)}
        parts = {"scores": flat(shared), **read_snapshot(path, device)}
        parts["tasks"] = flat(json.loads((path / "tasks.json").read_text(encoding="utf-8")))
        found[f"{keys[0]} and {len(keys) - 1} more, as one"] = parts
    return found


@contextlib.contextmanager
def _arrays(path: Path) -> Iterator[dict[str, Any]]:
    import numpy as np

    with np.load(path) as file:
        yield {name: file[name] for name in file.files}


# The command ---------------------------------------------------------------------------------


def run_all(only: list[str], methods: list[str], device: str) -> dict[str, Parts]:
    spelling = spelling_of_this_tree()
    found: dict[str, Parts] = {}
    folder = Path(tempfile.mkdtemp())

    def attempt(key: str, make: Any) -> None:
        place = folder / "run"
        try:
            found.update(make(place))
        except Exception as error:
            found[key] = {"error": {"it says": f"{type(error).__name__}: {error}"}}
            print(f"{key}: {error}", file=sys.stderr)
        finally:
            shutil.rmtree(place, ignore_errors=True)

    def one_run(case: Case, place: Path) -> dict[str, Parts]:
        train(case, place, spelling, device)
        return {case.key: read_run(place, spelling, device)}

    def one_study(name: str, text: str, identity: tuple[str, ...], place: Path) -> Any:
        execute(text, place, device)
        return read_study(place, name, identity, spelling, device)

    try:
        for name in only:
            began = time.process_time()
            for case in cases(name, methods, cuda=device != "cpu"):
                attempt(case.key, functools.partial(one_run, case))
            if name in STACKED:
                text = study_file(name, methods, spelling)
                attempt(f"{name}, study", functools.partial(one_study, name, text, PLAIN))
            if name == "synthetic" and "finetune" in methods:
                called, text = "table 1", table_1_file(spelling)
                identity = (*TABLE, "seed")
                attempt(f"{called}, study", functools.partial(one_study, called, text, identity))
            seconds = time.process_time() - began
            print(f"{name}: {seconds:.0f} s of a core", file=sys.stderr, flush=True)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return found


def machine(device: str) -> dict[str, Any]:
    """What numbers may depend on, beside the code."""
    import torch

    info = Path("/proc/cpuinfo")
    lines = info.read_text(encoding="utf-8").splitlines() if info.exists() else []
    models = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return {
        "cpu": models[0] if models else platform.processor(),
        "gpu": torch.cuda.get_device_name() if device != "cpu" else "",
        "capability": torch.backends.cpu.get_cpu_capability(),
        "onednn": os.environ.get("ONEDNN_MAX_CPU_ISA", ""),
        "torch": torch.__version__,
    }


@dataclass
class Difference:
    """Parts by what became of them, each as (run, part, path)."""

    differ: list[tuple[str, str, str]] = field(default_factory=list)
    gone: list[tuple[str, str, str]] = field(default_factory=list)
    added: list[tuple[str, str, str]] = field(default_factory=list)
    taken_away: list[tuple[str, str, str]] = field(default_factory=list)
    rounded: list[tuple[str, str, str]] = field(default_factory=list)
    unsteady: int = 0
    same: int = 0


WHOLE = "the whole run"


def paths_of(runs: Mapping[str, Parts]) -> dict[tuple[str, str, str], Any]:
    """Every value by its run, its part and its path there."""
    found: dict[tuple[str, str, str], Any] = {}
    for run, parts in runs.items():
        for part, values in parts.items():
            for path, value in values.items():
                found[run, part, path] = value
    return found


def compare(befores: list[Mapping[str, Parts]], after: Mapping[str, Parts]) -> Difference:
    before = befores[0]
    first, *others = map(paths_of, befores)
    now, difference = paths_of(after), Difference()
    difference.added += [(run, WHOLE, "") for run in sorted(after.keys() - before.keys())]
    for run in sorted(before.keys() - after.keys()):
        went = any(fnmatch.fnmatch(f"{run}/", pattern) for pattern in TAKEN_AWAY)
        (difference.taken_away if went else difference.gone).append((run, WHOLE, ""))
    for key in sorted(first.keys() | now.keys()):
        if key[0] not in before or key[0] not in after:
            continue
        if any(other.get(key) != first.get(key) for other in others):
            difference.unsteady += 1
        elif key not in now:
            went = any(fnmatch.fnmatch("/".join(key), pattern) for pattern in TAKEN_AWAY)
            (difference.taken_away if went else difference.gone).append(key)
        elif key not in first:
            difference.added.append(key)
        elif first[key] == now[key]:
            difference.same += 1
        elif _rounded(key[0], first[key], now[key]):
            difference.rounded.append(key)
        else:
            difference.differ.append(key)
    return difference


def _rounded(run: str, before: Any, after: Any) -> bool:
    """Whether the values of a run that may differ by rounding differ by no more."""
    if not any(fnmatch.fnmatch(f"{run}/", pattern) for pattern in ROUNDED):
        return False
    if isinstance(before, float) and isinstance(after, float):
        return math.isclose(before, after, rel_tol=1e-4, abs_tol=1e-5)
    return isinstance(before, str) and isinstance(after, str)


def show(what: str, keys: list[tuple[str, str, str]], most: int) -> None:
    """The parts, and of each the runs in which it is so: the first ones of many."""
    runs: dict[str, list[str]] = collections.defaultdict(list)
    for run, part, path in keys:
        runs[f"{part}: {path}" if path else part].append(run)
    for path, names in list(runs.items())[:most]:
        more = f" and {len(names) - 3} more" if len(names) > 3 and most < sys.maxsize else ""
        print(f"{what}: {path}, in {'; '.join(names[:3] if more else names)}{more}")
    if len(runs) > most:
        print(f"{what}: {len(runs) - most} more parts; --all names each")


def arguments(argv: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    add = parser.add_argument
    add("out", type=Path, help="where the digests go")
    add("--against", type=Path, nargs="+", default=[], help="digests of before")
    add("--only", nargs="+", default=list(BENCHMARKS), choices=BENCHMARKS, help="these benchmarks")
    add("--methods", nargs="+", default=list(METHODS), choices=METHODS, help="these methods")
    add("--device", default="cpu", help="cpu or cuda")
    add("--python", metavar="PATH", help="the interpreter of another tree, whose longtail is run")
    add("--reuse", action="store_true", help="compare `out` as it is, run nothing")
    add("--all", action="store_true", help="name every part that differs")
    return parser.parse_args(argv)


def main(argv: list[str]) -> int:
    args = arguments(argv)
    if args.python:
        place = argv.index("--python")
        return subprocess.call([args.python, __file__, *argv[:place], *argv[place + 2 :]])
    if not args.reuse:
        os.environ["OMP_NUM_THREADS"] = "1"
        os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_BF16")
        runs = run_all(args.only, args.methods, args.device)
        content = {"machine": machine(args.device), "runs": runs}
        args.out.write_text(json.dumps(content, indent=0) + "\n", encoding="utf-8")
        print(f"{len(runs)} runs, {len(paths_of(runs))} parts in {args.out}")
    if not args.against:
        return 0
    now = json.loads(args.out.read_text(encoding="utf-8"))
    befores = [json.loads(path.read_text(encoding="utf-8")) for path in args.against]
    for before in befores:
        if before["machine"] != now["machine"]:
            print(f"on another machine: {before['machine']}, now {now['machine']}")
    difference = compare([_of(b["runs"], args) for b in befores], _of(now["runs"], args))
    most = sys.maxsize if args.all else 12
    show("added", difference.added, most)
    show("taken away", difference.taken_away, most)
    show("rounded", difference.rounded, most)
    show("gone", difference.gone, most)
    show("differs", difference.differ, most)
    counts = {
        name: getattr(difference, name)
        for name in ("differ", "gone", "taken_away", "rounded", "added")
    }
    words = ", ".join(f"{len(paths)} {name.replace('_', ' ')}" for name, paths in counts.items())
    unsteady = f", {difference.unsteady} not compared" if difference.unsteady else ""
    print(f"{difference.same} parts are the same, {words}{unsteady}")
    return 1 if difference.differ or difference.gone else 0


def _of(runs: Mapping[str, Parts], args: argparse.Namespace) -> dict[str, Parts]:
    """The runs that were asked for; all of them where nothing was left out."""
    names = {f"{name}{end}" for name in args.only for end in ("", ", study")}
    if "synthetic" in args.only:
        names.add("table 1, study")
    chosen = {key: parts for key, parts in runs.items() if key.partition("/")[0] in names}
    if args.methods == list(METHODS):
        return chosen
    asked = set(args.methods)
    return {
        key: p for key, p in chosen.items() if key.split("/")[1:2] and key.split("/")[1] in asked
    }


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
