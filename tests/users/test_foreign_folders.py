"""A folder of runs that somebody else sent: what stands in its files, a report only shows."""

from __future__ import annotations

import csv
import json
import os
import re
import shutil
import subprocess
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from xml.etree import ElementTree

import pytest

from longtail.cli import main

# Hides what stands before it, renames the window, writes to the clipboard, turns the line around.
ATTACK = "fine\x1b[2K\x1b]0;mine\x07\x1b]52;c;cm0gLXJm\x07\x9b8m\r\u202etune"
CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")


Report = Callable[..., str]


def longtail(*words: object) -> int:
    return main([str(word) for word in words])


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two runs as longtail writes them, without the checksums that tell what was changed since."""
    folder = tmp_path_factory.mktemp("finished")
    for seed in (0, 1):
        words = ["--tasks", 4, "--zero-shot", 1, "--seed", seed, "--no-weights", "--quiet"]
        assert longtail("run", "toy", *words, "--out", folder / f"{seed}") == 0
        (folder / f"{seed}" / "checksums.json").unlink()
    return folder


@pytest.fixture
def runs(finished: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return shutil.copytree(finished, Path("runs"))


@pytest.fixture
def report(runs: Path, capfd: pytest.CaptureFixture[str]) -> Report:
    """Makes one, and gives what was printed."""

    def make(*words: str) -> str:
        assert longtail("report", runs, "--out", "report", *words) == 0
        return "".join(capfd.readouterr())

    return make


def change(run: Path, setting: str, value: object) -> None:
    """Another value in a run's config.toml."""
    path = run / "config.toml"
    text = path.read_text(encoding="utf-8")
    line = f"{setting} = {json.dumps(value)}"  # of text, a list or a number TOML's is the same
    changed = re.sub(rf"^{setting} = .*$", lambda match: line, text, flags=re.MULTILINE)
    assert changed != text
    path.write_text(changed, encoding="utf-8")


# --- terminals -----------------------------------------------------------------------------------


def test_a_report_in_a_pipe_commands_no_terminal(runs: Path, report: Report) -> None:
    change(runs / "0", "method", ATTACK)
    shutil.copytree(runs / "1", runs / ATTACK)
    change(runs / ATTACK, "benchmark", [ATTACK])  # which is said with the name of the folder
    said = report("--no-figures", "--no-page")
    assert not CONTROL.search(said)
    assert r"│ fine\u001b[2K\u001b]0;mine" in said
    assert r"runs/fine\u001b[2K\u001b]0;mine" in said
    for name in ("md", "csv"):
        text = Path("report", f"table.{name}").read_text(encoding="utf-8")
        assert not CONTROL.search(text), name
        assert r"\u001b" in text


@pytest.mark.skipif(os.name == "nt", reason="no pseudo-terminals")
def test_a_report_on_a_terminal_has_its_own_colours_alone(runs: Path) -> None:
    change(runs / "0", "method", ATTACK)
    pty = pytest.importorskip("pty")
    ours, theirs = pty.openpty()
    command = [sys.executable, "-m", "longtail", "report", "runs", "--out", "report", "--no-page"]
    shown = b""
    with subprocess.Popen(
        [*command, "--no-figures"],
        stdout=theirs,
        stderr=theirs,
        env={**os.environ, "TERM": "xterm-256color", "COLUMNS": "200", "NO_COLOR": ""},
    ) as running:
        os.close(theirs)
        while chunk := _read(ours):
            shown += chunk
    os.close(ours)
    text = shown.decode("utf-8")
    assert running.returncode == 0, text
    assert "\x1b[1m" in text  # a heading in bold, say
    plain = re.sub(r"\x1b\[[0-9;]*m", "", text).replace("\r\n", "\n")
    assert not CONTROL.search(plain)
    assert r"fine\u001b[2K" in plain


def _read(descriptor: int) -> bytes:
    try:
        return os.read(descriptor, 1 << 16)
    except OSError:  # how Linux says that nobody has the other end any more
        return b""


def test_a_warning_commands_no_terminal(runs: Path, capfd: pytest.CaptureFixture[str]) -> None:
    damaged = shutil.copytree(runs / "1", runs / ATTACK)
    sums = {"runs": [], "sha256": {"config.toml": "0" * 64}}
    (damaged / "checksums.json").write_text(json.dumps(sums), encoding="utf-8")
    assert longtail("check", runs) != 0
    said = "".join(capfd.readouterr())
    assert not CONTROL.search(said)
    assert r"fine\u001b[2K" in said


def test_figures_of_odd_names_can_be_read(runs: Path, report: Report) -> None:
    change(runs / "0", "method", ATTACK)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of fonts that lack such letters
        report()
    figures = list(Path("report", "figures").glob("*.svg"))
    assert figures
    for path in figures:
        ElementTree.parse(path)
    page = Path("report", "report.html").read_text(encoding="utf-8")
    assert not CONTROL.search(page)


# --- spreadsheets --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "text", ['=HYPERLINK("http://a.example")', "@SUM(A1)", "+cmd|' /C calc'!A0", "-2+3", "\t=1"]
)
def test_a_spreadsheet_computes_no_cell(runs: Path, report: Report, text: str) -> None:
    change(runs / "0", "schedule", text)
    change(runs / "0", "lr", -0.5)
    report("--no-figures", "--no-page")
    with open(Path("report", "table.csv"), encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    cells = {row["schedule"] for row in rows}
    assert cells == {"constant", f"'{text}"}
    numbers = {float(row["lr"]) for row in rows}
    assert numbers == {0.01, -0.5}
    assert {float(row["value"]) > 0 for row in rows if row["metric"] == "RP"} == {True}


# --- values of another kind ----------------------------------------------------------------------


def test_a_list_as_benchmark_is_one_sentence(
    runs: Path, report: Report, capfd: pytest.CaptureFixture[str]
) -> None:
    change(runs / "0", "benchmark", ["toy"])
    said = report("--no-figures", "--no-page")
    assert "runs/0 cannot be read: benchmark is ['toy'], not a name" in said
    for words in (["--config", "runs/0/config.toml"], ["toy", "--config", "runs/0/config.toml"]):
        assert longtail("run", *words, "--out", "again") == 2
        assert capfd.readouterr().err == "longtail: benchmark must be text, got ['toy']\n"
        assert not Path("again").exists()


@pytest.mark.parametrize("change_of_length", [-1, 2])
@pytest.mark.parametrize("name", ["train_sizes", "test_sizes"])
def test_sizes_of_another_length_are_named(
    runs: Path, report: Report, name: str, change_of_length: int
) -> None:
    path = runs / "0" / "tasks.json"
    tasks = json.loads(path.read_text(encoding="utf-8"))
    count = 4 + change_of_length
    tasks[name] = (tasks[name] * 2)[:count]
    path.write_text(json.dumps(tasks), encoding="utf-8")
    said = report("--no-figures")
    assert f"0/tasks.json has {count} {name} for 4 tasks" in said
    assert ("runs/0 is damaged and left out" in said) == (name == "test_sizes")
