"""Settings of our benchmarks that make no sense: one sentence, and nothing is made."""

from __future__ import annotations

from pathlib import Path

import pytest

from longtail.cli import main

MINIATURE = "data.miniature=true"


@pytest.mark.parametrize(
    ("benchmark", "settings", "sentence"),
    [
        ("synthetic", ["data.k=101"], "k must lie between 0 and d = 100, got 101"),
        ("synthetic", ["data.k=-1"], "got -1"),
        ("synthetic", ["data.exponent=0"], "exponent must be positive, got 0.0"),
        ("synthetic", ["data.exponent=nan"], "got nan"),
        ("synthetic", ["data.noise=-0.5"], "got -0.5"),
        ("synthetic", ["data.noise=inf"], "got inf"),
        ("synthetic", ["data.setting=drift"], "must be same | perturb | shift, got 'drift'"),
        ("synthetic", ["data.tasks=0"], "tasks"),
        ("synthetic", ["data.minimum=4", "data.cap=3"], "cap must be at least minimum = 4, got 3"),
        ("synthetic", ["data.test_fraction=0"], "test_fraction"),
        ("mnist", [MINIATURE, "data.tasks=6"], "6 x 2 is more than the 10 classes of mnist"),
        ("mnist", ["data.hidden=0"], "hidden: 0"),
        ("cifar10", [MINIATURE, "data.width=0"], "width"),
        ("wsd", ["data.tasks=-1"], "Invalid tasks: -1"),
        ("wsd", ["data.longest=8"], "Invalid longest: 8"),
        ("wsd", ["data.dropout=1"], "Invalid dropout: 1.0"),
        ("wsd", [MINIATURE, "data.tasks=53"], "there are 52 words"),
        ("wsd", [MINIATURE, "data.semcor=x"], "miniature and semcor = 'x' exclude each other"),
        ("wsd", [MINIATURE, "data.wordnet=x"], "miniature and wordnet = 'x' exclude each other"),
        ("wsd", [MINIATURE, "data.prepared=x"], "miniature and prepared = 'x' exclude each other"),
        ("wsd", [MINIATURE, "data.backbone=x"], "miniature and backbone = 'x' exclude each other"),
        ("vqa", ["data.tasks=0"], "Invalid tasks: 0"),
        ("vqa", ["data.tokens=4"], "Invalid tokens: 4"),
        ("vqa", ["data.dropout=1"], "Invalid dropout: 1.0"),
        ("vqa", ["data.occlusion=1.5"], "Invalid occlusion: 1.5"),
        ("vqa", ["data.noise=-1"], "Invalid noise: -1.0"),
        ("vqa", ["data.noise=nan"], "Invalid noise: nan"),
        ("vqa", ["data.prepared=/"], "is not a prepared VQA benchmark"),
        ("nlp5", ["data.order=['sst', 'mnist']"], "unknown task 'mnist'"),
        ("nlp5", ["data.order=['sst', 'sst']"], "each task once"),
        ("nlp5", ["data.per_task=-1"], "per_task: -1"),
        ("nlp5", ["data.sizes=[1, 2]"], "sizes: 2 for 5 tasks"),
        ("nlp5", ["data.sizes=[1, 2, 3, 4, -1]"], "sizes: -1"),
        ("nlp5", ["data.max_tokens=0"], "max_tokens: 0"),
        ("nlp5", [MINIATURE, "data.long_tail=3"], "long_tail: 3 tasks cannot be cut out of 5"),
        ("fsmol", ["data.tasks=-1"], "Invalid tasks: -1"),
        ("fsmol", ["data.test_share=1"], "Invalid test_share: 1.0"),
        ("fsmol", ["data.hidden=[]"], "Invalid hidden: "),
        ("fsmol", [MINIATURE, "data.tasks=121"], "Invalid tasks: 121"),
        ("fsmol", [MINIATURE, "data.prepared=x"], "exclude each other"),
    ],
)
def test_what_makes_no_sense_is_refused_by_name(
    benchmark: str,
    settings: list[str],
    sentence: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("LONGTAIL_CACHE", str(tmp_path / "cache"))
    flags = [word for setting in settings for word in ("--set", setting)]
    assert main(["run", benchmark, *flags, "--out", "out"]) == 2
    said = capsys.readouterr().err
    assert sentence in said
    assert said.count("\n") == 1
    assert not (tmp_path / "out").exists()
