"""Sizes that cannot be are refused at once, with the number, and cost no memory."""

from __future__ import annotations

import time
import tracemalloc
from pathlib import Path

import pytest

from longtail.cli import main
from longtail.runs.config import read_toml
from longtail.study.file import parse_seeds

DIGITS = "9" * 5000


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--tasks", "100000000"], "Invalid tasks: 100,000,000, more than 1,000,000"),
        (["--method", "derpp", "--buffer", "1" + "0" * 23], "methods.buffer must be below 2**63"),
        (["--batch-size", "1" + "0" * 30], "train.batch_size must be below 2**63"),
        (["--lr", "1" + "0" * 400], "train.lr must be number, got 1000"),
        (["--epochs", DIGITS], "train.epochs must be integer, got "),
    ],
)
def test_a_setting_that_cannot_be_is_one_short_sentence(arguments, said, tmp_path, capsys):
    began = time.monotonic()
    assert main(["run", "toy", *arguments, "--out", str(tmp_path / "run")]) == 2
    assert time.monotonic() - began < 10
    text = capsys.readouterr().err
    assert said in text
    assert text.count("\n") == 1
    assert len(text) < 300


@pytest.mark.parametrize("seeds", ["0-99999999", "0-9,100-99999999", f"0-{2**62}"])
def test_seeds_without_end_are_refused_before_they_fill_the_memory(seeds: str):
    tracemalloc.start()
    with pytest.raises(ValueError, match="a study has at most 1,000,000 runs"):
        parse_seeds(seeds)
    assert tracemalloc.get_traced_memory()[1] < 1e6
    tracemalloc.stop()


@pytest.mark.parametrize("seeds", ["²", "0-²", DIGITS, "٣"])
def test_what_looks_like_a_digit_is_no_seed(seeds: str):
    with pytest.raises(ValueError, match=r"seeds must look like 0-9 or 0,3,7, got") as caught:
        parse_seeds(seeds)
    assert len(str(caught.value)) < 200


def test_a_study_of_too_many_runs_is_refused_with_their_number(tmp_path: Path, capsys):
    file = tmp_path / "large.toml"
    values = ", ".join(f"{i}e-9" for i in range(1, 1001))
    grid = f'[grid]\n"train.lr" = [{values}]\n"train.eps" = [{values}]\n'
    file.write_text(f'benchmark = "toy"\nseeds = "0-99"\n{grid}')
    assert main(["study", str(file), "--dry-run"]) == 2
    assert "up to 200,000,000 runs" in capsys.readouterr().err


@pytest.mark.parametrize("text", [f"a = {DIGITS}", "a = " + "[" * 5000])
def test_a_file_with_what_python_cannot_read_is_named(tmp_path: Path, text: str):
    (tmp_path / "odd.toml").write_text(text)
    with pytest.raises(ValueError, match=r"odd\.toml is not a TOML file"):
        read_toml(tmp_path / "odd.toml")
