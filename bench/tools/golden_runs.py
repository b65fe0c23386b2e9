"""The folders of runs that `report_goldens.py` reports on, in miniature: every kind that there is.

The demo with few seeds; a study with [select] on validation; one with seeds that choose, two keys
and rows that diverged; the published tables of all rates, as runs that have their numbers; single
runs without a plan; damaged and unfinished ones; averages of weights; scores of unlike units; names
that want to be code. They are trained by the command line of the tree at hand, in its spelling, so
that a later tree makes the same runs in its own formats.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import json
import shutil
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from same_bytes import Spelling, call, spelling_of_this_tree

TREE = Path(__file__).resolve().parents[2]
POLICIES = ("continual", "new", "kept")
HOSTILE = {
    "html": "<script>alert(1)</script> & <b>bold</b>",
    "latex": r"50% of $x_1$ & {y}^2 ~ \input{/etc/passwd} #1",
    "markdown": "a | b `code` **not bold** [link](http://example.org)",
    "terminal": "[red]markup[/red] \x1b[31mred\x1b[0m [/]",
    "wide": "宽字符 \N{COMBINING ACUTE ACCENT} \N{RIGHT-TO-LEFT OVERRIDE}txet " + "long " * 12,
    "field": "{{data}} {0} %s \\1 two\nlines",
}


@dataclass(frozen=True)
class Golden:
    """A folder of runs, and the reports made of it: names, and the words behind the folder."""

    name: str
    build: Callable[[Path, Spelling], None]
    reports: Mapping[str, tuple[str, ...]]


PLAIN: dict[str, tuple[str, ...]] = {"report": ()}
SELECTED: dict[str, tuple[str, ...]] = {"report": (), "all values": ("--no-select",)}


def study_file(name: str) -> Path:
    """A study file of this tree, wherever it keeps them."""
    import longtail

    places = [TREE, Path(longtail.__file__).parents[2]]
    with contextlib.suppress(ImportError):
        import longtail_bench  # pyright: ignore[reportMissingImports]

        places.append(Path(longtail_bench.__file__).parent)
    for place in places:
        found = [p for p in sorted(place.rglob(f"{name}.toml")) if ".venv" not in p.parts]
        if found:
            return found[0]
    raise FileNotFoundError(f"{name}.toml, in none of {', '.join(map(str, places))}")


def run_study(out: Path, file: Path, *words: str) -> None:
    flags = ("--jobs=1", "--device=cpu", "--no-report", "--quiet", "--snapshot-minutes=inf")
    call("study", str(file), f"--out={out}", *flags, *words)


def written_study(out: Path, text: str, *words: str) -> None:
    out.parent.mkdir(parents=True, exist_ok=True)
    file = out.parent / f"{out.name}.toml"
    file.write_text(text, encoding="utf-8")
    run_study(out, file, *words)
    file.unlink()


def policies(spelling: Spelling) -> str:
    """The line of a study file that names all three."""
    key = "policies" if spelling.policy_flag == "--policy" else "optimizers"
    return f"{key} = {json.dumps([spelling.policy(name) for name in POLICIES])}"


def row(spelling: Spelling, name: str, policy: str, further: str = "") -> str:
    """A row of [[policies]]."""
    key = "policy" if spelling.policy_flag == "--policy" else "optimizer"
    named = f'name = {json.dumps(name)}\n{key} = "{spelling.policy(policy)}"'
    return f"[[policies]]\n{named}\n{further}\n"


def train(out: Path, spelling: Spelling, method: str, policy: str, *words: str) -> None:
    flags = ("--device=cpu", "--threads=1", "--quiet", "--snapshot-minutes=inf", "--no-weights")
    named = ("--method", method, spelling.policy_flag, spelling.policy(policy))
    benchmark = "toy" if not words or words[0].startswith("-") else words[0]
    further = [word for word in words if word != benchmark]
    call("run", benchmark, *named, f"--out={out}", *flags, *further)


def edit(folder: Path, name: str, change: Callable[[Any], Any]) -> None:
    """Change a JSON file of a finished folder, and its checksum with it."""
    path, sums = folder / name, folder / "checksums.json"
    content = change(json.loads(path.read_text(encoding="utf-8")))
    path.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
    seal(folder, name) if sums.exists() else None


def seal(folder: Path, name: str) -> None:
    """Write the checksum of a changed file."""
    sums = folder / "checksums.json"
    content = json.loads(sums.read_text(encoding="utf-8"))
    content["sha256"][name] = hashlib.sha256((folder / name).read_bytes()).hexdigest()
    sums.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")


def diverge(folder: Path, spelling: Spelling, which: Callable[[dict[str, Any]], bool]) -> None:
    """Mark the runs of a study's stacks whose settings are such as diverged at task 3."""

    def change(entries: list[dict[str, Any]]) -> list[dict[str, Any]]:
        for entry in entries:
            settings = spelling.today(flat(entry["config"]))
            if which(settings):
                entry["summary"]["diverged_at"] = 3
        return entries

    for path in sorted(folder.glob("stacks/*/runs.json")):
        edit(path.parent, "runs.json", change)


def flat(tree: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in tree.items():
        nested = isinstance(value, Mapping)
        found |= flat(value, f"{prefix}{key}.") if nested else {f"{prefix}{key}": value}
    return found


def demo(out: Path, spelling: Spelling) -> None:
    run_study(out, study_file("table1"), "--seeds", "0-2")


def selected(out: Path, spelling: Spelling) -> None:
    text = f"""
benchmark = "toy"
methods = ["finetune", "ewc", "reservoir", "multitask"]
{policies(spelling)}
seeds = "0-2"
data.tasks = 30
train = {{ validation = 0.2, evaluate_every = 5 }}
grid."train.lr" = [0.001, 0.01, 0.1]
select.key = "train.lr"
[report]
metrics = ["RP", "LP", "FGT", "BWT", "breakdown.tail.RP"]
further = ["breakdown.head.RP"]
checks = ["mc_improves", "mc_forgets_less", "multitask_is_best"]
"""
    written_study(out, text)


def choosing(out: Path, spelling: Spelling) -> None:
    """Two keys, seeds that choose, rows of which one seed, or all, diverged."""
    text = f"""
benchmark = "toy"
methods = ["finetune", "ewc", "si"]
{policies(spelling)}
seeds = "0-2"
data.tasks = 20
[grid]
"train.lr" = [0.001, 0.01, 1e20]
"method.ewc.strength" = [0.01, 1.0]
"method.si.strength" = [1.0, 100.0]
[select]
key = ["train.lr", "methods.strength"]
seeds = "100-101"
train = {{ validation = 0.1 }}
[report]
title = "Two keys, and some that diverged"
index = ["method"]
columns = "policy"
"""
    written_study(out, text)

    def lost(settings: dict[str, Any]) -> bool:
        named = settings["method"], settings["policy"]
        every_seed = named == ("ewc", "kept") and settings["seed"] < 3
        return every_seed or (*named, settings["seed"]) == ("finetune", "new", 1)

    diverge(out, spelling, lost)


def images(out: Path, spelling: Spelling) -> None:
    """A second score of the same runs, the paper's numbers, a label of some methods alone."""
    text = f"""
benchmark = "mnist"
methods = ["finetune", "reservoir", "multitask"]
{policies(spelling)}
seeds = "0-1"
data.miniature = true
train.batch_size = 32
grid."methods.buffer" = [20, 50]
[report]
paper = "seq_mnist"
index = ["method", "buffer"]
columns = "policy"
metrics = ["RP", "task_incremental.RP", "no.such.score"]
checks = ["mc_improves", "order_of_methods"]
"""
    written_study(out, text)


AVERAGED = """
benchmark = "toy"
methods = ["finetune", "reservoir"]
seeds = "0-2"
data.tasks = 30
"""


def beside(out: Path, spelling: Spelling) -> None:
    """Each run's average of its weights has a row of its own."""
    rows = row(spelling, spelling.policy("continual"), "continual")
    rows += row(spelling, spelling.policy("kept"), "kept")
    train = 'train = { evaluate_every = 5, average = "task" }\n'
    written_study(out, AVERAGED + train + 'report.average = "beside"\n' + rows)


def averages(out: Path, spelling: Spelling) -> None:
    """Rows with an average of their weights are scored by it."""
    rows = row(spelling, "continual", "continual")
    rows += row(spelling, "task average", "continual", 'train = { average = "task" }')
    moving = 'train = { average = "ema", average_decay = 0.9 }'
    rows += row(spelling, "moving average", "continual", moving)
    head = AVERAGED + "train.evaluate_every = 5\nreport.average = true\n"
    written_study(out, head + rows)


def singles(out: Path, spelling: Spelling) -> None:
    """Runs without a plan, at several depths, that differ in more than method and policy."""
    small = ("--tasks=20", "--evaluate-every=4")
    for policy in POLICIES:
        for seed in range(3):
            train(out / policy / f"s{seed}", spelling, "finetune", policy, *small, f"--seed={seed}")
    for buffer in (20, 200):
        train(out / f"b{buffer}", spelling, "reservoir", "continual", *small, f"--buffer={buffer}")
    for lr in (0.001, 0.02):
        train(out / f"lr{lr}", spelling, "ewc", "new", *small, f"--lr={lr}")
    beta3 = ("--beta3=0.5", "--set=second_moment=task_seen")
    train(out / "other moments", spelling, "finetune", "continual", *small, *beta3)


def one(out: Path, spelling: Spelling) -> None:
    train(out / "only", spelling, "derpp", "continual", "--tasks=12", "--evaluate-every=1")


def unlike(out: Path, spelling: Spelling) -> None:
    """Three benchmarks in one folder: accuracies, and a squared error, of which less is better."""
    of = {
        "toy": ("--tasks=12",),
        "mnist": ("mnist", "--miniature", "--set=train.batch_size=32"),
        "synthetic": ("synthetic", "--tasks=6", "--set=data.cap=200", "--epochs=2"),
    }
    for name, words in of.items():
        for policy in ("continual", "kept"):
            for seed in range(2):
                place = out / f"{name}-{policy}-{seed}"
                train(place, spelling, "finetune", policy, *words, f"--seed={seed}")


def damaged(out: Path, spelling: Spelling) -> None:
    """What a folder of a long study may hold: each kind of damage once, beside whole runs."""
    small = ("--tasks=12", "--evaluate-every=4")
    train(out / "whole", spelling, "finetune", "continual", *small)
    for seed in range(2):
        train(out / f"whole-new-{seed}", spelling, "finetune", "new", *small, f"--seed={seed}")
    number = 10

    def another(name: str) -> Path:
        nonlocal number
        number += 1
        train(out / name, spelling, "finetune", "continual", *small, f"--seed={number}")
        return out / name

    (another("no summary") / "summary.json").unlink()
    cut(another("half a summary") / "summary.json")
    (another("a list for a summary") / "summary.json").write_text("[1, 2]\n", encoding="utf-8")
    cut(another("half of the scores") / "scores.jsonl")
    (another("no scores") / "scores.jsonl").unlink()
    place = another("a line that is no JSON")
    with (place / "scores.jsonl").open("a", encoding="utf-8") as file:
        file.write("this is not JSON\n")
    seal(place, "scores.jsonl")
    edit(another("another RP"), "summary.json", lambda summary: {**summary, "RP": 0.123})
    edit(another("RP in words"), "summary.json", lambda summary: {**summary, "RP": "high"})
    (another("no settings") / "config.toml").write_text("seed = \n", encoding="utf-8")
    cut(another("half of the checksums") / "checksums.json")
    edit(another("names that are no list"), "tasks.json", lambda tasks: {**tasks, "names": "abc"})
    place = another("failed")
    (place / "summary.json").unlink()
    text = json.dumps({"error": "ValueError: no such file", "traceback": "Traceback ..."})
    (place / "error.json").write_text(text, encoding="utf-8")
    place = another("diverged")
    edit(place, "summary.json", lambda summary: {**summary, "diverged_at": 2})
    (out / "empty").mkdir()
    other = out.parent / "other files"
    train(other, spelling, "finetune", "continual", *small, "--seed=99")
    for name in ("scores.jsonl", "summary.json"):
        shutil.copy(other / name, another(f"the {name} of another run") / name)
    shutil.rmtree(other)


def cut(path: Path) -> None:
    """Leave its first bytes, so few that a sentence on them is the same in every format."""
    path.write_bytes(path.read_bytes()[:20])


def unfinished(out: Path, spelling: Spelling) -> None:
    """A study of which stacks are damaged or begun, and that has runs its plan does not know."""
    text = f"""
benchmark = "toy"
methods = ["finetune", "ewc", "reservoir"]
{policies(spelling)}
seeds = "0-1"
data.tasks = 12
"""
    written_study(out, text)
    # Their own names are of ids, so that what is said of them would come in another order.
    stacks = []
    for path in sorted(out.glob("stacks/*"), key=lambda path: _first_of(path, spelling)):
        stacks.append(path.rename(path.with_name(f"stack {len(stacks)}")))
    (stacks[0] / "runs.json").unlink()
    cut(stacks[3] / "scores.npz")
    text = json.dumps({"error": "MemoryError: out of memory", "traceback": "Traceback ..."})
    (stacks[4] / "runs.json").unlink()
    (stacks[4] / "error.json").write_text(text, encoding="utf-8")
    train(out / "runs" / "of another day", spelling, "derpp", "continual", "--tasks=12")
    plan = json.loads((out / "plan.json").read_text(encoding="utf-8"))
    plan["report"] = {"title": "Half of it", "pair": "continual", "metrics": ["RP", "LP"]}
    (out / "plan.json").write_text(json.dumps(plan), encoding="utf-8")


def _first_of(stack: Path, spelling: Spelling) -> str:
    content = json.loads((stack / "stack.json").read_text(encoding="utf-8"))
    content.pop("fingerprint", None)
    first = next(spelling.today(flat(v)) for v in content.values() if isinstance(v, dict))
    return f"{first['method']} {first['policy']}"


def hostile(out: Path, spelling: Spelling) -> None:
    """A title, rows, methods and tasks whose names want to be markup or code."""
    rows = [row(spelling, name, policy) for name, policy in _hostile_rows()]
    text = f"""
benchmark = "toy"
methods = ["finetune", "ewc"]
seeds = "0-1"
data.tasks = 12
train.evaluate_every = 4
report.title = {json.dumps(HOSTILE["html"])}
report.pair = {json.dumps([name for name, _ in _hostile_rows()][:2])}
{"".join(rows)}
"""
    written_study(out, text)
    for stack in sorted(out.glob("stacks/*")):
        edit(stack, "tasks.json", _hostile_tasks)


def hostile_singles(out: Path, spelling: Spelling) -> None:
    """The same in runs that no plan names, of methods that a user wrote."""
    from longtail.runs.integrity import identity

    for number, name in enumerate(HOSTILE.values()):
        place = out / f"run {number} & <b>"
        train(place, spelling, "finetune", "continual", "--tasks=12")
        edit(place, "tasks.json", _hostile_tasks)
        edit(place, "summary.json", lambda summary, name=name: {**summary, "method_name": name})
        settings = (place / "config.toml").read_text(encoding="utf-8")
        settings = settings.replace('method = "finetune"', f'method = "mine:M{number}"')
        (place / "config.toml").write_text(settings, encoding="utf-8")
        seal(place, "config.toml")
        plain = tomllib.loads(settings)
        plain.pop("fingerprint", None)
        sums = json.loads((place / "checksums.json").read_text(encoding="utf-8"))
        text = json.dumps({**sums, "runs": [identity(plain)]})
        (place / "checksums.json").write_text(text, encoding="utf-8")


def _hostile_rows() -> list[tuple[str, str]]:
    return [
        (HOSTILE["html"], "continual"),
        (HOSTILE["latex"], "new"),
        (HOSTILE["markdown"], "kept"),
        (HOSTILE["terminal"].replace("\x1b", ""), "continual_seen"),
    ]


def _hostile_tasks(tasks: dict[str, Any]) -> dict[str, Any]:
    names = [*HOSTILE.values(), *tasks["names"][len(HOSTILE) :]]
    return {**tasks, "names": names}


# Published tables: study, folder of its table of all rates. Rows that choose have no seeds there.
PUBLISHED = {
    "nlp5": "nlp5/all_rates",
    "seq_cifar10": "seq_cifar10/all_rates",
    "vqa": "vqa/all_rates",
    "rivals_mnist": "rivals/mnist/all_rates",
    "rivals_synthetic": "rivals/synthetic/all_rates",
    "rivals_wsd": "rivals/wsd/all_rates",
    "wsd_capped": "wsd/capped_rates/all_rates",
}


def published(study: str, out: Path, spelling: Spelling) -> None:
    """Runs that have the numbers of a published table: a seed each, of means where no more stands.

    A row's runs have its curve, where it has one, as the curve of each.
    """
    table = json.loads(published_table(study).read_text(encoding="utf-8"))
    content = tomllib.loads(study_file(study).read_text(encoding="utf-8"))
    keys = content["select"]["key"]
    keys = keys if isinstance(keys, list) else [keys]
    path_of = {key.rpartition(".")[2]: key for key in keys}
    seeds = _seeds(content["select"].get("seeds", ""))
    stacks: dict[str, list[tuple[dict[str, Any], dict[str, Any], dict[str, Any]]]] = {}
    for number, line in enumerate(table["rows"]):
        curve = line.get("RP_after") or []
        for seed in _seeds_of(line, seeds):
            labels = {k: line[k] for k in list(line)[: list(line).index("seeds")]}
            labels.pop("chooses", None)
            config = _config(content, labels, path_of, seed, number, spelling)
            summary = _summary(line, seed, table)
            member = config, summary, {"labels": labels, "row": line}
            stacks.setdefault(json.dumps(curve), []).append(member)
    _write_published(out, study, content, stacks)


def published_table(study: str) -> Path:
    import longtail

    for tree in (Path(longtail.__file__).parents[2], TREE):
        for place in ("results", "bench/results"):
            path = tree / place / PUBLISHED[study] / "table.json"
            if path.exists():
                return path
    raise FileNotFoundError(PUBLISHED[study])


def _seeds(told: str | list[int]) -> list[int]:
    if isinstance(told, list) or not told:
        return list(told or ())
    first, _, last = told.partition("-")
    return list(range(int(first), int(last or first) + 1))


def _seeds_of(line: dict[str, Any], choosing: list[int]) -> list[int]:
    if line.get("chooses"):
        return choosing[: line["seeds"]]
    known = [int(seed) for seed in line.get("RP_by_seed", {})]
    free = [seed for seed in range(1000) if seed not in (*known, *choosing)]
    return sorted([*known, *free[: line["seeds"] - len(known)]])


def _config(
    content: dict[str, Any],
    labels: dict[str, Any],
    path_of: dict[str, str],
    seed: int,
    number: int,
    spelling: Spelling,
) -> dict[str, Any]:
    """Settings of such a run, as far as a report reads them; the number tells rows apart."""
    tables: dict[str, dict[str, Any]] = {"data": {"row": number}, "train": {}, "methods": {}}
    for name, value in labels.items():
        if name in path_of:
            table, _, field = path_of[name].partition(".")
            tables.setdefault(table, {})[field] = value
    key = "policy" if spelling.policy_flag == "--policy" else "optimizer"
    benchmark = content["benchmark"]
    head = {"benchmark": benchmark, "method": labels["method"], key: labels["policy"]}
    return {**head, "seed": seed, **tables}


def _summary(line: dict[str, Any], seed: int, table: dict[str, Any]) -> dict[str, Any]:
    scale = 100.0 if table["unit"] == "percent" else 1.0
    score = "accuracy" if table["unit"] == "percent" else table["unit"]
    higher = table["higher_is_better"]
    summary: dict[str, Any] = {
        "tasks": line["tasks"],
        "score": score,
        "scores": {score: {"unit": table["unit"], "higher_is_better": higher}},
        "higher_is_better": higher,  # as trees say it that know no `scores`
    }
    for name in list(line)[list(line).index("seeds") + 1 :]:
        value = line[name]
        ours = name in ("RP", "LP", "FGT", "BWT", "validation") or "." in name
        if not ours or name.endswith(("_se", "_by_seed", "_after", "_curve", "_paper")):
            continue
        if name == "validation" and value is None:  # nothing was held out
            continue
        value = line.get(f"{name}_by_seed", {}).get(str(seed), value)
        place, *parts = summary, *name.split(".")
        for part in parts[:-1]:
            place = place.setdefault(part, {})
        place[parts[-1]] = None if value is None else value / scale
    known = line.get("RP_by_seed")
    if line["RP"] is None or (line.get("diverged") and known and str(seed) not in known):
        summary["diverged_at"] = 0
    if "average.RP_after" in line:
        curve = {"tasks": line["average.RP_after"], "RP": line["average.RP_curve"]}
        curve["RP"] = [value / scale for value in curve["RP"]]
        summary["average"] = {**{k: summary[k] for k in ("RP", "LP", "FGT", "BWT")}, "curve": curve}
    return summary


def _write_published(
    out: Path, study: str, content: dict[str, Any], stacks: dict[str, list[Any]]
) -> None:
    import numpy as np

    from longtail.runs.files import StackFiles, StudyFiles
    from longtail.runs.integrity import identity

    planned = []
    for number, (after, members) in enumerate(stacks.items()):
        files = StackFiles(out / "stacks" / f"stack {number}")
        files.folder.mkdir(parents=True)
        entries, curves, own, last = [], [], [], []
        points = json.loads(after) or [members[0][1]["tasks"]]
        for config, summary, told in members:
            entries.append({"id": identity(config), "config": config, "summary": summary})
            planned.append({"id": entries[-1]["id"], "labels": told["labels"]})
            scale = 100.0 if summary["score"] == "accuracy" else 1.0
            told_curve = told["row"].get("RP_curve") or [float("nan")]
            curves.append([value / scale for value in told_curve])
            values = [summary.get(name) for name in ("LP", "RP")]
            for place, value in zip((own, last), values, strict=True):
                place.append([float("nan") if value is None else value])
        files.write_settings({entry["id"]: entry["config"] for entry in entries})
        files.write_tasks(["all of them"], [1], [1])
        arrays = {"own": np.array(own), "best": np.array(last), "last": np.array(last)}
        arrays |= {"curve": np.array(curves), "after": np.array(points) - 1}
        files.write_scores({**arrays, "train_sizes": np.array([1]), "test_sizes": np.array([1])})
        files.finish([entry["id"] for entry in entries], entries)
    select = {**content["select"], "seeds": _seeds(content["select"].get("seeds", ""))}
    plan = {"name": study, "file": f"{study}.toml", "report": content.get("report", {})}
    StudyFiles(out).write_plan({**plan, "select": select, "runs": planned})


GOLDENS = (
    Golden("demo", demo, {"report": (), "titled": ("--title", "Another title", "--json")}),
    Golden("selected", selected, SELECTED),
    Golden("choosing", choosing, SELECTED),
    Golden("images", images, PLAIN),
    Golden("average beside", beside, PLAIN),
    Golden("average", averages, PLAIN),
    Golden("singles", singles, {"report": (), "quiet": ("--quiet",)}),
    Golden("one", one, {"report": (), "paper": ("--paper", "table1")}),
    Golden("unlike", unlike, PLAIN),
    Golden("damaged", damaged, PLAIN),
    Golden("unfinished", unfinished, PLAIN),
    Golden("hostile", hostile, PLAIN),
    Golden("hostile singles", hostile_singles, PLAIN),
    *(
        Golden(f"published {study}", functools.partial(published, study), SELECTED)
        for study in PUBLISHED
    ),
)


def build(folder: Path, only: list[str]) -> None:
    spelling = spelling_of_this_tree()
    folder.mkdir(parents=True, exist_ok=True)
    for golden in chosen(only):
        place = folder / golden.name
        if place.exists():
            raise SystemExit(f"{place} is there already: remove it, or build the others (--only)")
        golden.build(place, spelling)
        for path in (*place.rglob("snapshot"), *place.rglob(".lock")):
            shutil.rmtree(path) if path.is_dir() else path.unlink()
        print(f"{golden.name}: built", flush=True)


def chosen(only: list[str]) -> list[Golden]:
    unknown = set(only) - {golden.name for golden in GOLDENS}
    if unknown:
        raise SystemExit(f"no golden is called {', '.join(sorted(unknown))}")
    return [golden for golden in GOLDENS if not only or golden.name in only]
