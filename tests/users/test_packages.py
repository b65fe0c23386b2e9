"""Both packages as people install them, from wheels, and a third one that is a stranger's."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

PYPROJECT = """
[build-system]
requires = ["hatchling"]
build-backend = "hatchling.build"

[project]
name = "stranger"
version = "1.0"

[project.entry-points."longtail.methods"]
shrink = "stranger.parts:Shrink"

[project.entry-points."longtail.optimizers"]
sign = "stranger.parts:Sign"

[project.entry-points."longtail.benchmarks"]
lines = "stranger.lines"

[project.entry-points."longtail.studies"]
stranger = "stranger.studies"

[project.entry-points."longtail.checks"]
all_learned = "stranger.claims:all_learned"

[project.entry-points."longtail.labels"]
stranger = "stranger.claims:LABELS"

[project.entry-points."longtail.papers"]
stranger = "stranger.claims:PAPERS"

[project.entry-points."longtail.data"]
lines = "stranger.files"

[tool.hatch.build.targets.wheel]
packages = ["stranger"]
"""

PARTS = '''
import torch
from longtail.methods import Method


class Shrink(Method):
    """Adds the size of the weights to the loss."""

    name = "shrink"

    def loss(self, batch):
        return super().loss(batch) + 1e-4 * sum(p.square().sum() for p in self.model.parameters())


class Sign(torch.optim.Optimizer):
    """Steps of one size."""

    def __init__(self, params, lr=1e-3):
        super().__init__(params, {"lr": lr})

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is not None:
                    p.sub_(group["lr"] * p.grad.sign())
'''

LINES = '''
"""Two lines in the plane: which side is a point on?"""

from dataclasses import dataclass, field

import torch

from longtail.benchmarks import Benchmark, BenchmarkSpec
from longtail.tasks import CLASSIFICATION, Segments, TableSequence, TensorExamples


@dataclass(frozen=True)
class Settings:
    points: int = field(default=20, metadata={"help": "of each line"})


def build(settings, seed):
    points = torch.randn(4 * settings.points, 2, generator=torch.Generator().manual_seed(seed))
    table = TensorExamples(points, (points.sum(1) > 0).long())
    n = settings.points
    train, test = Segments([0, n, 2 * n]), Segments([2 * n, 3 * n, 4 * n])
    sequence = TableSequence(table, train, test, CLASSIFICATION, ["first", "second"])
    return Benchmark(sequence, lambda seed: torch.nn.Linear(2, 2))


SPEC = BenchmarkSpec(Settings, build)
'''

CLAIMS = """
from longtail.report.checks import claim

LABELS = {"shrink": "Shrinking"}
PAPERS = {
    "theirs": {"unit": "percent", "caption": "Theirs", "rows": [{"method": "shrink", "RP": 99.5}]}
}


def all_learned(rows):
    return [claim("every row is there", len(rows) == 2)]
"""

FILES = """
def add_arguments(parser):
    parser.add_argument("--colour", help="of the lines")


def main(args):
    print(f"lines, {args.colour}")
    return 0
"""

STUDY = """# What a stranger wants to know
benchmark = "lines"
methods = ["shrink", "finetune"]
optimizer = "sign"

[report]
paper = "theirs"
checks = ["all_learned"]
"""


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the three packages, installed from their wheels."""
    pytest.importorskip("hatchling")
    work = tmp_path_factory.mktemp("packages")
    stranger = work / "stranger"
    (stranger / "stranger" / "studies").mkdir(parents=True)
    (stranger / "pyproject.toml").write_text(PYPROJECT)
    (stranger / "stranger" / "__init__.py").touch()
    (stranger / "stranger" / "studies" / "__init__.py").touch()
    (stranger / "stranger" / "studies" / "theirs.toml").write_text(STUDY)
    for name, text in (
        ("parts", PARTS),
        ("lines", LINES),
        ("claims", CLAIMS),
        ("files", FILES),
    ):
        (stranger / "stranger" / f"{name}.py").write_text(text)
    wheels = work / "wheels"
    for source in (ROOT, ROOT / "bench", stranger):
        build = ["-m", "build", "--wheel", "--no-isolation", "--outdir", str(wheels), str(source)]
        subprocess.run([sys.executable, *build], check=True, capture_output=True)
    site = work / "site"
    pip = ["-m", "pip", "install", "--quiet", "--no-deps", "--no-index", "--no-compile"]
    subprocess.run(
        [sys.executable, *pip, "--target", str(site), *map(str, wheels.glob("*.whl"))], check=True
    )
    return site


def longtail(site: Path, folder: Path, *words: str, code: int = 0) -> str:
    """What the command prints, in a folder that is not the checkout."""
    own = {**os.environ, "PYTHONPATH": str(site), "COLUMNS": "200"}
    done = subprocess.run(
        [sys.executable, "-m", "longtail", *words],
        cwd=folder,
        env=own,
        capture_output=True,
        text=True,
    )
    assert done.returncode == code, done.stdout + done.stderr
    return done.stdout + done.stderr


def test_a_run_and_a_study_of_ours_from_any_folder(site: Path, tmp_path: Path) -> None:
    longtail(site, tmp_path, "run", "toy", "--tasks", "5", "--zero-shot", "1", "--out", "toy")
    assert (tmp_path / "toy" / "summary.json").is_file()
    shown = longtail(site, tmp_path, "study", "table1", "--show")
    assert 'benchmark = "synthetic"' in shown
    mine = tmp_path / "mine.toml"
    mine.write_text(shown.replace("[data]", "[data]\ntasks = 4\ncap = 100", 1))
    few = ["--seeds", "0", "--only", "row=3", "--only", "setting=same", "--jobs", "1"]
    longtail(site, tmp_path, "study", "mine.toml", *few, "--no-report", "--out", "few")
    assert list((tmp_path / "few").rglob("summary.json")) or list((tmp_path / "few").rglob("*.npz"))


def test_a_package_of_a_stranger_has_the_rights_of_ours(site: Path, tmp_path: Path) -> None:
    said = longtail(site, tmp_path, "list")
    for word in ("lines ", "shrink ", "sign ", "theirs "):
        assert f"  {word}" in said, word
    longtail(site, tmp_path, "study", "theirs", "--out", "out")
    table = json.loads((tmp_path / "out" / "table.json").read_text("utf-8"))
    assert [row["method"] for row in table["rows"]] == ["shrink", "finetune"]
    assert table["rows"][0]["RP_paper"] == 99.5
    assert [check["verdict"] for check in table["checks"]] == ["holds"]
    assert "Shrinking" in (tmp_path / "out" / "table.md").read_text("utf-8")
    again = longtail(site, tmp_path, "report", "out")  # a plan may name what a package offers
    assert "all_learned" not in again
    assert "lines, blue" in longtail(site, tmp_path, "data", "lines", "--colour", "blue")
