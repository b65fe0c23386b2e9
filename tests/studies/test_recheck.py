"""What is published about claims is what the checks say of the published rows."""

from __future__ import annotations

import json
import re
from pathlib import Path
from statistics import fmean, stdev
from types import ModuleType

import pytest
from helpers import scripts

from longtail.report.checks import tally
from longtail.report.labelling import NO_WARM_UP

METRICS = ("RP", "LP", "FGT", "BWT")
RESULTS = scripts.ROOT / "results"
TABLES = sorted(RESULTS.rglob("table.json"))


@pytest.fixture(scope="module")
def recheck() -> ModuleType:
    return scripts.load("studies/tools/recheck.py")


@pytest.mark.parametrize("path", TABLES, ids=lambda p: p.parent.relative_to(RESULTS).as_posix())
def test_published_checks_follow_from_the_published_rows(path: Path, recheck: ModuleType) -> None:
    table = json.loads(path.read_text("utf-8"))
    if names := recheck.checks_of(path.parent.relative_to(RESULTS).as_posix()):
        found = recheck.recheck(table, names)
        assert found == {key: table[key] for key in found}


@pytest.mark.parametrize("folder", ["nlp5/one_rate", "nlp5_long_tail", "wsd/capped"])
def test_no_published_row_has_drawn_with_replacement(folder: str) -> None:
    """Replay draws without it since a commit that these tables' runs are older than."""
    table = json.loads((RESULTS / folder / "table.json").read_text("utf-8"))
    assert not {row["method"] for row in table["rows"]} & {"reservoir", "derpp", "agem"}
    assert "1f75d0d" in table["provenance"]["withdrawn"]


@pytest.mark.parametrize(
    ("folder", "commit"),
    [
        ("vqa", "08b5138"),
        ("vqa/all_rates", "08b5138"),
        ("nlp5", "b323f69"),
        ("nlp5/all_rates", "b323f69"),
        ("nlp5_long_tail/reservoir", "b323f69"),
    ],
)
def test_rows_of_replay_are_of_a_commit_that_draws_without_replacement(
    folder: str, commit: str
) -> None:
    provenance = json.loads((RESULTS / folder / "table.json").read_text("utf-8"))["provenance"]
    assert provenance["commit"].startswith(commit)  # after 1f75d0d
    assert "withdrawn" not in provenance


def test_pages_count_the_checks_as_they_are() -> None:
    """Wherever a page says how many checks hold, a published table has just that."""
    known = {tally(json.loads(p.read_text("utf-8"))["checks"]) for p in TABLES}
    counts = re.compile(r"\d+ of \d+ hold(?:, \d+ fail)?(?:, \d+ undecided)?")
    pages = [scripts.ROOT / n for n in ("REPRODUCIBILITY.md", "docs/results.md")]
    for page in (*pages, *RESULTS.rglob("README.md")):
        text = " ".join(page.read_text("utf-8").split())
        found = counts.findall(text)
        assert found or page not in pages, page
        assert [count for count in found if count not in known] == [], page
        assert "checks hold" not in text, page  # a count in other words would go unnoticed


def test_the_table_of_the_synthetic_study_is_the_published_one() -> None:
    """Each cell of the reduced Table 1 is RP of its row and setting, and the paper's."""
    rows = json.loads((RESULTS / "table1" / "table.json").read_text("utf-8"))["rows"]
    found = {(row["row"], row["setting"]): row for row in rows}
    page = (scripts.ROOT / "docs" / "results.md").read_text("utf-8")
    lines = re.findall(r"^\| .*\(row (\d+)\)\**(.*)$", page, re.MULTILINE)
    assert [int(row) for row, _ in lines] == [2, 12, 3, 7, 9, 11]
    for row, cells in lines:
        numbers = re.findall(r"([\d.]+)(?: \(([\d.]+)\))?", cells)
        for setting, (ours, paper) in zip(("same", "perturb", "shift"), numbers, strict=True):
            published = found[int(row), setting]
            digits = len(ours.partition(".")[2])
            assert float(ours) == round(published["RP"], digits), (row, setting)
            assert (float(paper) if paper else None) == published.get("RP_paper"), (row, setting)


@pytest.mark.parametrize("name", ["REPRODUCIBILITY.md", "docs/benchmarks/wsd.md"])
def test_word_senses_at_chosen_rates_are_the_published_ones(name: str) -> None:
    rows = json.loads((RESULTS / "wsd/capped_rates" / "table.json").read_text("utf-8"))["rows"]
    page = (scripts.ROOT / name).read_text("utf-8").replace("*", "")
    rates = {}
    for row in rows:
        assert f"{row['RP']:.2f} ± {row['RP_se']:.2f}" in page
        rates[row["method"], row["policy"]] = row["selected"]["lr"]
    without = [("finetune", "carry"), ("finetune", "reset"), ("reservoir", "carry")]
    without += [("finetune", NO_WARM_UP), ("derpp", "reset")]
    assert {rates.pop(row) for row in without} == {1e-5}
    assert rates.pop(("derpp", "continual")) == 1e-4
    assert len(rates) == 4
    assert {*rates.values()} == {3e-5}
    assert "both at 3e-5" in page


METHODS = {"Finetune": "finetune", "Reservoir": "reservoir", "DER++": "derpp", "A-GEM": "agem"}
METHODS |= {"EWC": "ewc", "EWC++": "ewcpp", "multi-task training": "multitask"}
POLICIES = {" with MC": "continual", "AdamW kept": "carry", "Adam kept": "carry"}
POLICIES |= {"AdamW anew": "reset", "Adam anew": "reset"}


def named(cell: str) -> tuple[str, str]:
    """Method and policy of a line of a page, such as "Reservoir, AdamW kept (`carry`)"."""
    if cell == "multi-task training":
        return METHODS[cell], "reset"
    if "without its warm-up" in cell:
        return METHODS[cell.partition(" with MC")[0]], NO_WARM_UP
    (policy,) = {policy for text, policy in POLICIES.items() if text in cell}
    return METHODS[re.split(r",| with MC", cell)[0]], policy


def lines(page: str, words: str) -> list[list[str]]:
    """The cells of the first table after these words, or with this head, without its emphasis."""
    text = (scripts.ROOT / page).read_text("utf-8").replace("*", "")
    _, found, rest = text.partition(words)
    assert found, words
    if words.startswith("| "):
        rest = f"\n{words}{rest}"
    table = rest[rest.index("\n|") + 1 :].partition("\n\n")[0].splitlines()[2:]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in table]


@pytest.mark.parametrize(
    ("page", "folder", "words", "rates"),
    [
        ("wsd", "capped_rates/all_rates", "them at the end (`capped", "3e-6 1e-5 3e-5 1e-4"),
        ("seq_cifar10", "all_rates", "is scored on the others", "1e-5 1e-4 1e-3"),
        ("seq_cifar10", "four_fifths", "of the held-out", "1e-5 1e-4 1e-3"),
        ("vqa", "all_rates", "at the end chooses the rate", "1.5e-5 5e-5 1.5e-4"),
        ("nlp5", "all_rates", "answers all of them at the end", "2e-5 6.25e-5 2e-4"),
    ],
)
def test_the_scores_that_chose_are_the_stored_ones(
    page: str, folder: str, words: str, rates: str
) -> None:
    """Every score, and that none is left out."""
    text = (RESULTS / page / folder / "table.json").read_text("utf-8")
    rows = json.loads(text)["rows"]
    if page != "vqa":  # whose reported seeds choose by their own validation questions
        rows = [row for row in rows if row.get("chooses")]
    found = {(r["method"], r["policy"], r["lr"]): r["validation"] for r in rows}
    shown = {}
    for name, *cells in lines(f"results/{page}/README.md", words):
        for rate, cell in zip(rates.split(), cells, strict=True):
            if cell:
                shown[(*named(name), float(rate))] = float(cell)
    assert shown == {key: round(value, 1) for key, value in found.items()}


def test_the_reported_scores_of_word_senses_are_the_stored_ones() -> None:
    metrics = ("RP", "LP", "BWT", "FGT", "late.RP", "polysemous.RP")
    rows = json.loads((RESULTS / "wsd/capped_rates/table.json").read_text("utf-8"))["rows"]
    found = {(row["method"], row["policy"]): row for row in rows}
    for name, rate, *cells in lines("results/wsd/README.md", "Seeds 0 to 2 then train"):
        row = found.pop(named(name))
        assert float(rate) == row["selected"]["lr"]
        for metric, cell in zip(metrics, cells, strict=True):
            value, se = row[metric], row[f"{metric}_se"]
            shown = "" if value is None else f"{value:.2f} ± {se:.2f}"
            assert cell.removeprefix("+") == shown, (name, metric)
    assert not found


@pytest.mark.parametrize(
    "page", ["results/seq_cifar10/README.md", "docs/benchmarks/split_images.md"]
)
def test_the_scores_of_split_cifar10_are_the_stored_ones(page: str) -> None:
    rows = json.loads((RESULTS / "seq_cifar10/table.json").read_text("utf-8"))["rows"]
    found = {(row["method"], row["policy"]): row for row in rows}
    assert {row["seeds"] for row in rows} == {3}
    for name, *cells in lines(page, "Class-incremental RP"):
        for policy, cell in zip(("continual", "carry", "reset"), cells, strict=False):
            if cell:
                row = found.pop((METHODS[name], policy))
                assert cell == f"{row['RP']:.2f} ± {row['RP_se']:.2f}", (name, policy)
    assert not found


@pytest.mark.parametrize(
    ("folder", "page", "metrics", "digits", "named_as"),
    [
        ("vqa", "results/vqa/README.md", METRICS, 2, "{}"),
        ("vqa", "docs/benchmarks/vqa.md", ("RP",), 2, "{}"),
        ("vqa", "docs/results.md", ("RP",), 1, "{}"),
        ("vqa", "REPRODUCIBILITY.md", ("RP",), 1, "{}"),
        ("nlp5", "results/nlp5/README.md", METRICS, 2, "{}"),
        ("nlp5", "docs/benchmarks/nlp5.md", ("RP",), 2, "{}"),
        ("nlp5", "REPRODUCIBILITY.md", ("RP",), 1, "{} of five NLP tasks (the paper)"),
    ],
)
def test_the_scores_under_three_policies_are_the_stored_ones(
    folder: str, page: str, metrics: tuple[str, ...], digits: int, named_as: str
) -> None:
    """With MC, with AdamW kept and anew: each with its standard error, and the paper's."""
    rows = json.loads((RESULTS / folder / "table.json").read_text("utf-8"))["rows"]
    found = {(row["method"], row["policy"]): row for row in rows}

    def shown(row: dict, metric: str) -> str:
        if row.get(metric) is None:
            return ""
        text = f"{row[metric]:.{digits}f}"
        if row[f"{metric}_se"] is not None:
            text += f" ± {row[f'{metric}_se']:.{digits}f}"
        paper = row.get(f"{metric}_paper")
        return text if paper is None else f"{text} ({paper:.{digits}f})"

    for metric in metrics:
        head = f"| {named_as.format(metric)} | with MC | AdamW kept | AdamW anew |"
        table = {METHODS[name]: cells for name, *cells in lines(page, head)}
        assert {*table} == {method for method, p in found if found[method, p][metric] is not None}
        for method, cells in table.items():
            rows_of = [found.get((method, p), {}) for p in ("continual", "carry", "reset")]
            assert cells == [shown(row, metric) for row in rows_of], (method, metric)


@pytest.mark.parametrize(
    "page", ["results/nlp5/README.md", "docs/benchmarks/nlp5.md", "REPRODUCIBILITY.md"]
)
def test_what_is_said_of_the_nlp_tasks_is_in_their_checks(page: str) -> None:
    table = json.loads((RESULTS / "nlp5/table.json").read_text("utf-8"))
    checks = {c["claim"]: (c["verdict"], c["numbers"]) for c in table["checks"]}
    text = " ".join((scripts.ROOT / page).read_text("utf-8").replace("*", "").split())
    mean = checks["MC changes RP by less than 3 points on average over the methods"][1]
    assert f"{mean['mean_gain']:.1f} ± {mean['se']:.1f}" in text
    raises = {c: found for c, found in checks.items() if c.endswith(": MC raises RP")}
    decided = [c for c, (verdict, _) in raises.items() if verdict != "undecided"]
    assert (len(raises), decided) == (6, ["A-GEM: MC raises RP"])
    gain, loss = (raises[f"{name}: MC raises RP"][1] for name in ("A-GEM", "DER++"))
    assert f"{gain['difference']:.1f} ± {gain['se']:.1f}" in text
    assert f"{-loss['difference']:.1f} ± {loss['se']:.1f}" in text
    kept = {c.partition(":")[0]: found for c, found in checks.items() if "kept across tasks" in c}
    above = [name for name, (verdict, _) in kept.items() if verdict == "holds"]
    assert above == ["Finetune", "EWC", "EWC++"]
    gains = [kept[name][1]["difference"] for name in above]
    assert (round(min(gains)), round(max(gains))) == (10, 14)
    if page.startswith("results"):
        shown = [f"{n['difference']:.1f} ± {n['se']:.1f}" for _, n in map(kept.get, above)]  # pyright: ignore
        assert "{}, {} and {} points more with MC".format(*shown) in text
    else:
        assert "10 to 14 points" in text


def test_the_earlier_scores_of_the_nlp_tasks_are_the_stored_ones() -> None:
    rows = json.loads((RESULTS / "nlp5/one_rate/table.json").read_text("utf-8"))["rows"]
    found = {(row["method"], row["policy"]): row for row in rows}
    for name, *cells in lines("results/nlp5/README.md", "multi-task training. RP (LP):"):
        for policy, cell in zip(("continual", "reset"), cells, strict=True):
            if cell:
                row = found.pop((METHODS[name], policy))
                learned = "" if row["LP"] is None else f" ({row['LP']:.2f})"
                assert cell == f"{row['RP']:.2f} ± {row['RP_se']:.2f}{learned}", (name, policy)
    assert not found


def test_generated_scenes_by_size_are_the_stored_ones() -> None:
    rows = json.loads((RESULTS / "vqa/table.json").read_text("utf-8"))["rows"]
    found = {(row["method"], row["policy"]): row for row in rows}
    table = lines("results/vqa/README.md", "RP by size of the task")
    assert {METHODS[name] for name, *_ in table} == {method for method, _ in found}
    for name, *cells in table:
        method = METHODS[name]
        policies = [p for p in ("continual", "carry", "reset") if (method, p) in found]
        for part, cell in zip(("head", "body", "tail"), cells, strict=True):
            values = [found[method, p][f"breakdown.{part}.RP"] for p in policies]
            assert cell == " / ".join(f"{value:.2f}" for value in values), (name, part)


AVERAGED = "continual, constant rate, task average"
FSMOL, WORDS, MNIST = "fsmol", "wsd/capped_rates", "seq_mnist"
# The numbers of the README in its order: the folder of a row, its method and its policy.
OF_THE_README = [
    *((FSMOL, "finetune", policy) for policy in ("continual", "carry", "reset")),
    *((WORDS, "finetune", "continual"), ("rivals", "finetune", AVERAGED)),
    *((FSMOL, "reservoir", policy) for policy in ("continual", "carry")),
    *((MNIST, "finetune", policy) for policy in ("continual", "carry")),
    (FSMOL, "multitask", "reset"),
]


def test_the_numbers_of_the_readme_are_the_published_ones() -> None:
    text = (scripts.ROOT / "README.md").read_text("utf-8").partition("| --- |")[2]
    published = []
    for folder, method, policy in OF_THE_README:
        rows = json.loads((RESULTS / folder / "table.json").read_text("utf-8"))["rows"]
        same = [r for r in rows if (r["method"], r["policy"]) == (method, policy)]
        of_all = {"benchmark": "wsd", "buffer": 3503}  # where a table has several such rows
        (row,) = [r for r in same if all(r.get(k, v) == v for k, v in of_all.items())]
        published.append(f"{row['RP']:.1f}")
    assert re.findall(r"\b\d\d\.\d\b", text) == published


def added_by_seed(ours: dict, other: dict) -> tuple[float, float]:
    """Mean and standard error of what one row has more than another, seed by seed."""
    seeds = [s for s in ours["RP_by_seed"] if s in other["RP_by_seed"]]
    by_seed = [ours["RP_by_seed"][s] - other["RP_by_seed"][s] for s in seeds]
    return fmean(by_seed), stdev(by_seed) / len(by_seed) ** 0.5


@pytest.mark.parametrize(
    ("head", "folder", "digits", "count"),
    [
        ("| FS-Mol |", "fsmol", 2, 7),
        ("| at most ten targets |", "wsd/capped_rates", 2, 4),
        ("| five NLP tasks |", "nlp5", 1, 7),
    ],
)
def test_the_tables_of_the_results_are_the_published_ones(
    head: str, folder: str, digits: int, count: int
) -> None:
    rows = json.loads((RESULTS / folder / "table.json").read_text("utf-8"))["rows"]
    table = lines("docs/results.md", head)
    assert len(table) == count
    for name, *cells in table:
        labels = {"method": METHODS[name.partition(",")[0]]}
        labels |= {"buffer": 3503} if "1%" in name else {}
        for cell, policy in zip(cells, ("continual", "carry", "reset"), strict=True):
            wanted = {**labels, "policy": policy}
            row = next((r for r in rows if wanted.items() <= r.items()), None)
            empty = "" if labels["method"] == "multitask" else "not run"
            shown = f"{row['RP']:.{digits}f} ± {row['RP_se']:.{digits}f}" if row else empty
            assert cell == shown, (name, policy)


def test_the_table_of_split_mnist_is_the_published_one() -> None:
    rows = json.loads((RESULTS / "seq_mnist" / "table.json").read_text("utf-8"))["rows"]
    page = (scripts.ROOT / "docs" / "results.md").read_text("utf-8")
    names = {"Reservoir": "reservoir", "DER++": "derpp", "A-GEM": "agem"}
    for shown, method in names.items():
        line = re.search(rf"^\| {re.escape(shown)} \| (8\d.*) \|$", page, re.MULTILINE)
        assert line, shown
        for policy, cell in zip(("continual", "reset", "carry"), line[1].split(" | "), strict=True):
            wanted = {"method": method, "policy": policy, "buffer": 200}
            (row,) = [r for r in rows if wanted.items() <= r.items()]
            assert float(cell.partition(" ")[0]) == round(row["RP"], 1), (shown, policy)


def test_the_advice_on_methods_is_what_the_tables_say() -> None:
    """Its numbers, all with MC: what a method adds to Finetune, seed by seed, or both levels."""
    page = (scripts.ROOT / "docs" / "methods" / "README.md").read_text("utf-8")
    text = " ".join(page.partition("Where to start")[2].split())

    def row(folder: str, method: str, **labels: int) -> dict:
        rows = json.loads((RESULTS / folder / "table.json").read_text("utf-8"))["rows"]
        wanted = {"method": method, "policy": "continual", **labels}
        return next(r for r in rows if wanted.items() <= r.items())

    def added(folder: str, method: str, **labels: int) -> tuple[float, float]:
        ours = row(folder, method, **labels)["RP_by_seed"]
        theirs = row(folder, "finetune")["RP_by_seed"]
        by_seed = [ours[seed] - theirs[seed] for seed in theirs]
        return fmean(by_seed), stdev(by_seed) / len(by_seed) ** 0.5

    def both(method: str) -> tuple[str, str]:
        small, large = (added("fsmol", method, buffer=size)[0] for size in (3503, 17514))
        return f"{small:.1f}", f"{large:.1f}"

    small, large = both("reservoir")
    assert f"adds {small} points with 1% of the examples and {large} with 5%" in text
    for name, method in (("DER++", "derpp"), ("A-GEM", "agem")):
        assert "{} ({} and {})".format(name, *both(method)) in text
    images = [row("seq_mnist", method, buffer=200)["RP"] for method in ("derpp", "reservoir")]
    assert "({:.1f} against {:.1f} with 200 examples)".format(*images) in text
    assert f"Finetune has {row('seq_mnist', 'finetune')['RP']:.1f}." in text
    for folder in ("fsmol", "wsd/capped"):
        levels = [f"{row(folder, method)['RP']:.2f}" for method in ("ewc", "finetune")]
        assert " against ".join(levels) in text
    scenes = [row("vqa", "ewc")["RP"], row("vqa", "finetune")["RP_by_seed"]["0"]]
    scenes.append(row("vqa", "ewcpp")["RP"])
    assert [row("vqa", method)["seeds"] for method in ("ewc", "ewcpp")] == [1, 1]  # that seed
    wanted = "(seed 0, {:.2f} against {:.2f}), as is EWC++ ({:.2f})"
    assert wanted.format(*scenes) in text
    names = ("reservoir", "finetune", "ewc", "ewcpp")
    errors = [f"{row('synthetic_methods', method)['RP']:.4f}" for method in names]
    assert "Reservoir has an error of {} and Finetune {}.".format(*errors[:2]) in text
    assert "their errors are Finetune's ({} and {})".format(*errors[2:]) in text
    for method in ("ewc", "ewcpp"):
        strength = {"ewc": 1e-6, "ewcpp": 100.0}[method]
        assert row("synthetic_methods", method)["selected"]["strength"] == strength
        mean, se = added("synthetic_methods", method)
        assert abs(mean) <= 2 * se
    assert "({:+.2f} ± {:.2f})".format(*added("fsmol", "ewc")) in text
    assert "EWC++ adds {:.2f} ± {:.2f} on FS-Mol".format(*added("fsmol", "ewcpp")) in text


def test_when_it_helps_is_what_the_tables_say() -> None:
    """Every cell of that table, and every difference with its verdict, from the seeds' numbers."""
    page = (scripts.ROOT / "docs" / "continual_adam.md").read_text("utf-8")
    folders = {"FS-Mol": "fsmol", "word senses": "wsd/capped_rates", "split MNIST": "seq_mnist"}
    folders |= {"split CIFAR-10": "seq_cifar10", "generated scenes": "vqa"}
    part = page.partition("### Method by method")[2].partition("\n### ")[0]
    cases = re.findall(rf"^\| ({'|'.join(folders)}) \| (.*) \|$", part, re.MULTILINE)
    assert len(cases) == 29
    for sequence, line in cases:
        rows = json.loads((RESULTS / folders[sequence] / "table.json").read_text("utf-8"))["rows"]
        label, *cells = line.split(" | ")
        name, _, buffer = label.partition(", buffer ")
        wanted = {"method": METHODS[name]} | (
            {"buffer": int(buffer.replace(",", ""))} if buffer else {}
        )
        ours, carry, reset = (
            next((r for r in rows if {**wanted, "policy": policy}.items() <= r.items()), None)
            for policy in ("continual", "carry", "reset")
        )
        shown = [f"{row['RP']:.2f}" if row else "not run" for row in (ours, carry, reset)]
        assert cells[:3] == shown, line
        assert ours
        for cell, other in zip(cells[3:], (carry, reset), strict=True):
            if other is None:
                assert cell == "not run", line
                continue
            by_seed = [ours["RP_by_seed"][s] - other["RP_by_seed"][s] for s in ours["RP_by_seed"]]
            mean, se = fmean(by_seed), stdev(by_seed) / len(by_seed) ** 0.5
            assert cell == (f"{mean:+.2f}" if abs(mean) > 2 * se else "undecided"), line


def test_the_gains_by_number_of_tasks_are_those_of_the_curves() -> None:
    """Of Finetune: RP with MC minus RP without, after so many tasks."""
    head = "| tasks learned | word senses, over"
    columns = [(f, p) for f in ("wsd/capped_rates", "vqa", "fsmol") for p in ("carry", "reset")]
    found = []
    for folder, policy in columns:
        rows = json.loads((RESULTS / folder / "table.json").read_text("utf-8"))["rows"]
        curves = {r["policy"]: r for r in rows if r["method"] == "finetune"}
        ours, other = curves["continual"], curves[policy]
        assert ours["RP_after"] == other["RP_after"]
        gains = [a - b for a, b in zip(ours["RP_curve"], other["RP_curve"], strict=True)]
        found.append(dict(zip(ours["RP_after"], gains, strict=True)))
    table = lines("docs/continual_adam.md", head)
    assert [cells[0] for cells in table] == ["50", "100", "500", "1,000", "2,000", "4,000", "all"]
    for label, *cells in table:
        for cell, gains in zip(cells, found, strict=True):
            after = max(gains) if label == "all" else int(label.replace(",", ""))
            wanted = f"{gains[after]:+.1f}" if after in gains else ""
            assert cell == wanted.replace("-0.0", "+0.0"), (label, after)


@pytest.mark.parametrize(
    ("page", "head", "folder"),
    [
        ("docs/continual_adam.md", "| synthetic tasks |", "synthetic_methods"),
        ("docs/results.md", "| synthetic tasks |", "synthetic_methods"),
        ("results/synthetic_methods/README.md", "| RP, an error |", "synthetic_methods"),
        ("results/synthetic_methods/README.md", "At one rate", "synthetic_methods/one_rate"),
        ("results/figure2/README.md", "| RP, an error |", "figure2"),
    ],
)
def test_the_tables_of_the_synthetic_tasks_are_the_published_ones(
    page: str, head: str, folder: str
) -> None:
    """With MC, Adam kept and Adam anew, as many digits as are shown."""
    rows = json.loads((RESULTS / folder / "table.json").read_text("utf-8"))["rows"]
    table = lines(page, head)
    assert len(table) == (3 if folder == "figure2" else 6)
    for name, *cells in table:
        if folder == "figure2":
            labels: dict[str, object] = {"setting": name.strip("`")}
        else:
            labels = {"method": METHODS[name]}
        for cell, policy in zip(cells, ("continual", "carry", "reset"), strict=True):
            wanted = {**labels, "policy": policy}
            row = next((r for r in rows if wanted.items() <= r.items()), None)
            found = re.fullmatch(r"([\d.]+)(?: ± ([\d.]+))?(?: \([\d.]+\))?", cell)
            assert (row is None) == (found is None), wanted
            for key, shown in zip(("RP", "RP_se"), found.groups() if found else (), strict=False):
                if row and shown:
                    assert shown == f"{row[key]:.{len(shown.partition('.')[2])}f}", wanted


def test_the_gains_of_the_first_quarter_are_those_of_the_seeds() -> None:
    """What is told from zero stands without a word, or as better; the rest is called undecided."""
    table = lines("docs/continual_adam.md", "The means over the first quarter of all points")
    folders = ("vqa", "fsmol", "wsd/capped_rates", "synthetic_methods")
    for (name, *cells), folder in zip(table, folders, strict=True):
        rows = json.loads((RESULTS / folder / "table.json").read_text("utf-8"))["rows"]
        found = {r["policy"]: r["RP_first_by_seed"] for r in rows if r["method"] == "finetune"}
        digits = 3 if folder == "synthetic_methods" else 1
        for cell, policy in zip(cells, ("reset", "carry"), strict=True):
            seeds = found["continual"]
            gains = [seeds[s] - found[policy][s] for s in seeds]
            mean, se = fmean(gains), stdev(gains) / len(gains) ** 0.5
            told = abs(mean) > 2 * se
            better = " (better)" if told and mean < 0 else ""
            after = better if told else ", undecided"
            assert cell == f"{mean:+.{digits}f} ± {se:.{digits}f}{after}", (name, policy)


def test_the_page_of_figure_2_quotes_how_its_gaps_grow() -> None:
    checks = json.loads((RESULTS / "figure2" / "table.json").read_text("utf-8"))["checks"]
    page = " ".join((RESULTS / "figure2" / "README.md").read_text("utf-8").split())
    sentence = page.partition("**The gap grows")[2].partition("`figures/")[0]
    shown = re.findall(
        r"from (\d\.\d+)(?: over the first quarter of the points)? to (\d\.\d+)", sentence
    )
    wanted = [(c["numbers"]["first_quarter"], c["numbers"]["last_quarter"]) for c in checks]
    assert shown == [(f"{-first:.2f}", f"{-last:.2f}") for first, last in wanted]


def test_what_the_warm_up_costs_and_saves_is_what_the_tables_say() -> None:
    table = lines("docs/continual_adam.md", "| each at its own rate |")
    for (name, *cells), folder in zip(table, ("fsmol", "wsd/capped_rates"), strict=True):
        rows = json.loads((RESULTS / folder / "table.json").read_text("utf-8"))["rows"]
        found = {r["policy"]: r["RP"] for r in rows if r["method"] == "finetune"}
        wanted = [found[policy] for policy in ("continual", NO_WARM_UP, "carry")]
        assert cells == [f"{value:.2f}" for value in wanted], name


POLICY_LINES = {"with MC": "continual", "AdamW anew": "reset", "AdamW kept": "carry"}


@pytest.mark.parametrize("folder", ["seq_mnist_ewc", "seq_mnist/agem_rates"])
def test_the_scores_that_chose_a_rate_are_those_of_the_table(folder: str) -> None:
    """A page's table of validation scores by rate, the chosen ones bold."""
    page = (RESULTS / folder / "README.md").read_text("utf-8")
    entries = json.loads((RESULTS / folder / "table.json").read_text("utf-8"))["selection"]
    rates, seen = [], 0
    for line in page.splitlines():
        label, *cells = [cell.strip() for cell in line.strip("| ").split(" | ")]
        if cells and re.fullmatch(r"[\d.]+e-\d", cells[-1]):
            rates = [float(cell) for cell in line.strip("| ").split(" | ")]
        policy, _, buffer = label.partition(", buffer ")
        if policy not in POLICY_LINES or len(cells) != len(rates):
            continue
        wanted = {"policy": POLICY_LINES[policy]} | ({"buffer": int(buffer)} if buffer else {})
        (entry,) = [e for e in entries if wanted.items() <= e.items()]
        means = {each["lr"]: each["mean"] for each in entry["tried"]}
        shown = [f"{means[rate]:.1f}" if rate in means else "-" for rate in rates]
        best = rates.index(entry["chosen"]["lr"])
        shown[best] = f"**{shown[best]}**"
        assert cells == shown, label
        seen += 1
    assert seen == len(entries)
