"""A benchmark of one's own that leads with an error and reports an accuracy beside it."""

from __future__ import annotations

import csv
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

WEEKS = """
from dataclasses import dataclass

import torch
from torch import nn
from torch.nn.functional import cross_entropy

from longtail.benchmarks import Benchmark, BenchmarkSpec
from longtail.tasks import Objective, Score, from_tensors


def surprise(outputs, targets):
    rows = cross_entropy(outputs.flatten(0, -2), targets.expand(outputs.shape[:-1]).flatten(),
                         reduction="none")
    return rows.view(outputs.shape[:-1])


def right(outputs, targets):
    return (outputs.argmax(-1) == targets).float()


OBJECTIVE = Objective(
    surprise,
    (
        Score("surprise", surprise, "nats", higher_is_better=False),
        Score("right", right, "percent", higher_is_better=True),
    ),
)


@dataclass(frozen=True)
class Settings:
    weeks: int = 6


def build(settings, seed):
    generator = torch.Generator().manual_seed(0)

    def examples(n):  # labels of another week are other functions of the inputs: it forgets
        x = torch.randn(n, 6, generator=generator)
        return x, (x @ torch.randn(6, 3, generator=generator)).argmax(1)

    def week(i):
        x, y = examples(120)
        return f"week {i}", (x[:80], y[:80]), (x[80:], y[80:])

    def model(seed):
        return nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 3))

    return Benchmark(from_tensors([week(i) for i in range(settings.weeks)], OBJECTIVE), model)


SPEC = BenchmarkSpec(Settings, build, train={"epochs": 8, "lr": 0.02, "evaluate_every": 1})
"""

STUDY = """
name = "two_scores"
benchmark = "weeks"
methods = ["finetune"]
policies = ["continual", "new"]
seeds = [0, 1]

[report]
metrics = ["RP", "FGT", "right.RP", "right.FGT"]
"""


def longtail(folder: Path, *arguments: str) -> str:
    command = [sys.executable, "-m", "longtail", *arguments]
    ended = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=300)
    assert ended.returncode == 0, ended.stderr
    return ended.stdout


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("two_scores")
    (folder / "weeks.py").write_text(WEEKS)
    (folder / "study.toml").write_text(STUDY)
    longtail(folder, "study", "study.toml", "--out", "runs", "--jobs", "1", "--quiet")
    longtail(folder, "report", "runs", "--out", "report", "--quiet")
    return folder


def runs_of(project: Path) -> list[Path]:
    return sorted(path.parent for path in (project / "runs/runs").glob("*/summary.json"))


def test_each_score_keeps_its_direction_in_the_summary(project: Path) -> None:
    for run in runs_of(project):
        summary = json.loads((run / "summary.json").read_text())
        assert summary["score"] == "surprise"
        assert summary["scores"] == {
            "surprise": {"unit": "nats", "higher_is_better": False},
            "right": {"unit": "percent", "higher_is_better": True},
        }
        assert summary["RP"] > summary["LP"]  # it has forgotten: the error has grown,
        assert summary["FGT"] < 0
        assert summary["right"]["RP"] < summary["right"]["LP"]  # and the accuracy has fallen
        assert summary["right"]["FGT"] > 0


def test_scores_of_every_evaluation_are_written_down(project: Path) -> None:
    for run in runs_of(project):
        sizes = json.loads((run / "tasks.json").read_text())["test_sizes"]
        summary = json.loads((run / "summary.json").read_text())
        lines = [json.loads(line) for line in (run / "scores.jsonl").read_text().splitlines()]
        assert all(line["others"]["right"].keys() == line["scores"].keys() for line in lines)
        last = lines[-1]["others"]["right"]
        mean = sum(last[str(i)] * n for i, n in enumerate(sizes)) / sum(sizes)
        assert mean == pytest.approx(summary["right"]["RP"])


def test_tables_have_each_score_in_its_unit_and_the_best_of_its_direction_in_bold(
    project: Path,
) -> None:
    lines: dict[str, dict[str, list[float]]] = {}  # of a metric: a policy's value under each seed
    with open(project / "report/table.csv") as file:
        for line in csv.DictReader(file):
            values = lines.setdefault(line["metric"], {}).setdefault(line["policy"], [])
            values.append(float(line["value"]))
    runs = [json.loads((run / "summary.json").read_text()) for run in runs_of(project)]
    accuracies = sum(sum(values) for values in lines["right.RP"].values())
    assert accuracies == pytest.approx(100 * sum(run["right"]["RP"] for run in runs))
    errors = sum(sum(values) for values in lines["RP"].values())
    assert errors == pytest.approx(sum(run["RP"] for run in runs))
    text = (project / "report/table.md").read_text()
    heads = text.splitlines()[2]
    for head in ("RP↓", "FGT↑", "right RP↑", "right FGT↓"):
        assert f"| {head} " in heads
    (row,) = [line for line in text.splitlines() if line.startswith("| Finetune")]
    cells = dict(zip(heads.split("|")[1:-1], row.split("|")[1:-1], strict=True))
    for metric, best in (("RP", min), ("FGT", max), ("right.RP", max), ("right.FGT", min)):
        means = [sum(values) / len(values) for values in lines[metric].values()]
        shown = [
            cell for head, cell in cells.items()
            if re.match(rf" {metric.replace('.', ' ')}[↑↓]", head)
        ]  # fmt: skip
        bold = [("**" in cell) for cell in shown]
        wanted = [mean == best(means) for mean in means]
        assert sorted(bold) == sorted(wanted) == [False, True]
    tex = (project / "report/table.tex").read_text()
    captions = [line for line in tex.splitlines() if line.startswith("\\caption")]
    told = [(r"\uparrow" in text, "in nats" in text, "in percent" in text) for text in captions]
    assert told == [
        (False, True, False), (True, True, False), (True, False, True), (False, False, True)
    ]  # fmt: skip


def test_the_page_says_each_unit_and_direction(project: Path) -> None:
    page = (project / "report/report.html").read_text()
    part = re.compile(r'<div class="metric" data-metric="([^"]+)".*?<p class="soft">(.*?)</p>')
    told = dict(part.findall(page))
    assert "Lower is better. In nats." in told["RP"]
    assert "Higher is better. In percent." in told["right.RP"]
    assert "Lower is better. In percent." in told["right.FGT"]


CHOICE = """
benchmark = "weeks"
methods = ["finetune"]
policies = ["kept"]
seeds = [0, 1]

[train]
validation = 0.25

[grid]
"train.lr" = [0.00001, 0.02, 5.0]

[select]
key = "train.lr"
"""


def test_the_rate_with_the_least_error_is_chosen(project: Path) -> None:
    (project / "choice.toml").write_text(CHOICE)
    longtail(project, "study", "choice.toml", "--out", "choice", "--jobs", "1", "--quiet")
    for name, flags in (("all", ["--no-select"]), ("chosen", [])):
        plain = ["--no-figures", "--no-page", "--quiet", *flags]
        longtail(project, "report", "choice", "--out", name, *plain)
    tried = json.loads((project / "all/table.json").read_text())["rows"]
    (chosen,) = json.loads((project / "chosen/table.json").read_text())["rows"]
    errors = {row["lr"]: row["validation"] for row in tried}
    assert len(errors) == 3
    assert chosen["selected"]["lr"] == min(errors, key=errors.__getitem__)
