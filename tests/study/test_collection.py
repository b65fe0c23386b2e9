"""A file of studies: every part in its own folder, flags for all of them, errors before any run."""

import json
from pathlib import Path

import pytest

from helpers import scripts
from helpers.reported import finished_of
from longtail import cli
from longtail.study.collection import parts_asked, read_collection
from longtail.study.file import read_study

PART = """
benchmark = "toy"
methods = {methods}
policies = ["new"]
seeds = [0]
[data]
tasks = 6
zero_shot = 1
cap = 30
"""
CHOOSING = """
[grid]
"train.lr" = [0.0, 0.05]
[select]
key = "train.lr"
seeds = [8]
"""


def study(*arguments: object) -> int:
    return cli.main(["study", *map(str, arguments)])


@pytest.fixture
def whole(tmp_path: Path) -> Path:
    first = PART.format(methods='["finetune"]') + CHOOSING
    (tmp_path / "first.toml").write_text(first)
    (tmp_path / "second.toml").write_text(PART.format(methods='["finetune", "ewc"]'))
    path = tmp_path / "both.toml"
    path.write_text('studies = ["first.toml", "second.toml"]\n')
    return path


def trained(folder: Path) -> set[tuple[str, int, float]]:
    return {(r.labels["method"], r.seed, r.config["train"]["lr"]) for r in finished_of(folder)}


def test_one_command_chooses_and_trains_every_part(whole: Path, tmp_path: Path):
    out = tmp_path / "out"
    assert study(whole, "--choose", "--out", out, "--quiet", "--no-report") == 0
    assert trained(out / "first") == {
        ("finetune", 8, 0.0),
        ("finetune", 8, 0.05),
        ("finetune", 0, 0.05),
    }
    assert {method for method, _, _ in trained(out / "second")} == {"finetune", "ewc"}
    assert {path.name for path in out.iterdir()} == {".longtail.json", "first", "second"}
    plan = json.loads((out / "first" / "plan.json").read_text())
    assert "--choose" in plan["command"]


def test_only_asks_for_parts_and_for_runs(whole: Path, tmp_path: Path, capsys):
    out = tmp_path / "out"
    assert study(whole, "--only", "method=ewc", "--out", out, "--quiet", "--no-report") == 0
    assert sorted(path.name for path in out.iterdir()) == [".longtail.json", "second"]
    assert study(whole, "--only", "study=first", "--dry-run", "--json") == 0
    shown = capsys.readouterr().out
    assert "first.toml" in shown
    assert "second.toml" not in shown
    for wrong, said in (("study=third", "third"), ("method=lwf", "lwf"), ("nothing=1", "nothing")):
        assert study(whole, "--only", wrong, "--out", tmp_path / "none") == 2
        assert said in capsys.readouterr().err
    assert not (tmp_path / "none").exists()
    # of a list of values each part is asked for those it has
    assert study(whole, "--only", "method=finetune,ewc", "--dry-run", "--json") == 0
    shown = capsys.readouterr().out
    assert "first.toml" in shown
    assert '"method": "ewc"' in shown
    assert study(whole, "--only", "method=finetune,lwf", "--dry-run", "--json") == 2
    assert "'lwf'" in capsys.readouterr().err


def test_parts_that_nothing_has_chosen_for_are_refused_before_any_run(
    whole: Path, tmp_path: Path, capsys
):
    out = tmp_path / "out"
    assert study(whole, "--best", "--out", out) == 2
    assert "no finished run of seed 8" in capsys.readouterr().err
    assert study(whole, "--best", "--only", "study=second", "--out", out) == 2
    assert "names no seeds" in capsys.readouterr().err
    assert not out.exists()


def test_a_choosing_run_that_fails_leaves_the_choice_to_the_others(
    whole: Path, tmp_path: Path, capsys
):
    first, out = tmp_path / "first.toml", tmp_path / "out"
    text = first.read_text().replace("[0.0, 0.05]", "[1e300, 0.05]")
    first.write_text("stack = false\n" + text)
    words = ("--choose", "--stop-on-nan", "--out", out, "--quiet", "--no-report")
    assert study(first, *words) == 1
    assert trained(out) == {("finetune", 8, 0.05), ("finetune", 0, 0.05)}


def test_a_wrong_part_is_refused_before_any_run(whole: Path, tmp_path: Path, capsys):
    second, out = tmp_path / "second.toml", tmp_path / "out"
    good = second.read_text()
    for text, said in (
        (good.replace("cap", "capp"), "capp"),
        (good.replace('benchmark = "toy"', ""), "no benchmark"),
        (good + 'name = "first"\n', "data.name"),
        ('name = "first"\n' + good, "two parts are called 'first'"),
        ('studies = ["first.toml"]\n', "names studies"),
    ):
        second.write_text(text)
        assert study(whole, "--out", out, "--quiet") == 2
        assert said in capsys.readouterr().err
    second.unlink()
    assert study(whole, "--out", out) == 2
    assert "no such file" in capsys.readouterr().err
    for text, said in (
        ("studies = []\n", "got []"),
        ("studies = [1]\n", "studies"),
        ('studies = ["first.toml"]\nseeds = [1]\n', "seeds is for a study"),
        ('studies = ["first.toml"]\nname = "../up"\n', "no slash"),
    ):
        whole.write_text(text)
        assert study(whole, "--out", out) == 2
        assert said in capsys.readouterr().err
    assert not out.exists()


def test_what_is_chosen_is_planned_when_the_choosing_runs_are_finished(
    whole: Path, tmp_path: Path, capsys
):
    first, out = tmp_path / "first.toml", tmp_path / "out"
    words = (first, "--choose", "--out", out, "--no-report")
    assert study(*words, "--dry-run", "--json") == 0
    found = capsys.readouterr()
    assert '"seed": 8' in found.out
    assert '"seed": 0' not in found.out
    assert "when these are finished" in found.err
    assert study(*words, "--quiet") == 0
    capsys.readouterr()
    assert study(*words, "--dry-run", "--json") == 0
    assert '"seed": 0' in capsys.readouterr().out
    assert study(tmp_path / "second.toml", "--choose") == 2
    assert "names no seeds to choose by" in capsys.readouterr().err


def test_the_rivals_are_one_study_of_four() -> None:
    found = read_collection(scripts.ROOT / "bench/src/longtail_bench/studies" / "rivals.toml")
    assert found
    assert list(found.parts) == [
        f"rivals_{name}" for name in ("synthetic", "mnist", "fsmol", "wsd")
    ]
    some = parts_asked(found, ("method=finetune,ewc", "lr=3e-6,0.03"), "0")
    assert some["rivals_wsd"] == ("method=finetune", "lr=3e-6")
    assert some["rivals_fsmol"] == ("method=finetune,ewc", "lr=0.03")
    assert some["rivals_mnist"] == ("method=finetune,ewc", "lr=3e-6")
    with pytest.raises(ValueError, match="names studies, and is none itself"):
        read_study(scripts.ROOT / "bench/src/longtail_bench/studies" / "rivals.toml")
