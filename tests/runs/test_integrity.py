"""A folder's files say whose they are, and what is wrong with them is noticed."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from longtail.cli import main
from longtail.report import read
from longtail.runs import files
from longtail.runs.config import resolve
from longtail.runs.integrity import check_folder
from longtail.runs.session import RunOptions, train_run, train_stack

QUIET = RunOptions("cpu", threads=1, quiet=True)
SMALL = {"data.tasks": 4, "data.zero_shot": 0, "data.features": 4, "data.cap": 20}


def small(**flags):
    return resolve("toy", flags={**SMALL, **flags})


@pytest.fixture(scope="module")
def finished(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("runs") / "run"
    train_run(small(method="derpp"), folder, QUIET)
    return folder


@pytest.fixture
def run(finished: Path, tmp_path: Path) -> Path:
    shutil.copytree(finished, tmp_path / "run")
    return tmp_path / "run"


@pytest.mark.parametrize("finished_too", [True, False], ids=["finished", "begun"])
def test_a_run_that_lost_its_settings_is_not_relabelled(run: Path, finished_too: bool):
    settings = run / "config.toml"
    content = settings.read_bytes()
    settings.unlink()
    if not finished_too:
        (run / "summary.json").unlink()
    for other in (small(method="agem", seed=7), small(method="derpp")):
        with pytest.raises(ValueError, match=r"has lost its config\.toml.* put the file back"):
            train_run(other, run, QUIET)
        assert not settings.exists()  # the wrong ones are never written
    settings.write_bytes(content)
    train_run(small(method="derpp"), run, QUIET)
    assert not check_folder(run).damaged


def test_whoever_is_killed_while_a_run_is_removed_leaves_its_settings(run: Path, monkeypatch):
    def killed(path: Path) -> None:
        raise EOFError

    monkeypatch.setattr(files, "remove_snapshot", killed)
    with pytest.raises(EOFError):
        train_run(small(method="derpp"), run, replace(QUIET, fresh=True))
    monkeypatch.undo()
    with pytest.raises(ValueError, match="method is 'derpp' there and 'agem' here"):
        train_run(small(method="agem"), run, QUIET)
    train_run(small(method="derpp"), run, QUIET)
    assert not check_folder(run).damaged


def test_settings_of_another_run_beside_finished_results_are_refused(run: Path, tmp_path: Path):
    other = small(method="ewc")
    train_run(other, tmp_path / "other", QUIET)
    shutil.copy(tmp_path / "other" / "config.toml", run / "config.toml")
    with pytest.raises(ValueError, match=r"config\.toml is not the file that the run wrote"):
        train_run(other, run, QUIET)
    assert "its checksum differs" in read(run).problems[0]


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def edited(path: Path) -> None:
    content = json.loads(path.read_text())
    path.write_text(json.dumps({**content, "RP": 0.99}))


DAMAGE = [
    ("tasks.json", Path.unlink),
    ("scores.jsonl", Path.unlink),
    ("scores.jsonl", cut),
    ("summary.json", edited),
]


@pytest.mark.parametrize("with_checksums", [True, False])
@pytest.mark.parametrize(("name", "harm"), DAMAGE)
def test_the_report_leaves_out_what_is_damaged_and_says_so(run, name, harm, with_checksums):
    harm(run / name)
    if not with_checksums:  # a folder from before there were any
        (run / "checksums.json").unlink()
    results = read(run)
    assert list(results.runs["status"]) == ["damaged"]
    assert "is damaged and left out" in results.problems[-1]
    assert results.state == "0 of 1 runs finished, 1 damaged."


@pytest.mark.parametrize("name", ["model.safetensors", "average.safetensors"])
def test_a_report_does_not_read_weights_but_a_check_does(tmp_path: Path, name: str):
    train_run(small(**{"train.average": "task"}), tmp_path, QUIET)
    with open(tmp_path / name, "ab") as file:
        file.write(b"more")
    assert list(read(tmp_path).runs["status"]) == ["finished"]
    (wrong,) = check_folder(tmp_path).damaged.values()
    assert wrong.startswith(f"{name} is not the file")


def test_check_verifies_a_folder_weights_included(run: Path, capsys):
    assert main(["check", str(run.parent)]) == 0
    assert capsys.readouterr().out == "1 sound, 0 damaged\n"
    assert list(read(run).runs["status"]) == ["finished"]
    content = bytearray((run / "model.safetensors").read_bytes())
    content[-1] ^= 1
    (run / "model.safetensors").write_bytes(content)
    assert main(["check", str(run.parent), "--json"]) == 1
    (wrong,) = json.loads(capsys.readouterr().out)["damaged"].values()
    assert wrong.startswith("model.safetensors is not the file")
    assert main(["check", str(run.parent / "none")]) == 2


def test_a_lost_end_mark_and_names_that_lead_elsewhere_are_noticed(run: Path):
    recorded = json.loads((run / "checksums.json").read_text())
    (run / "summary.json").unlink()
    assert list(check_folder(run).damaged.values()) == ["summary.json is missing"]
    recorded["sha256"] = {"../../etc/passwd": "0"}
    (run / "checksums.json").write_text(json.dumps(recorded))
    assert "not one of its files" in next(iter(check_folder(run).damaged.values()))
    (run / "checksums.json").write_text("[]")
    assert "cannot be read" in next(iter(check_folder(run).damaged.values()))


def test_stacks_have_checksums_too(tmp_path: Path):
    configs = [small(seed=seed) for seed in (0, 1)]
    train_stack(configs, tmp_path / "stack", QUIET)
    assert check_folder(tmp_path).sound == 1
    content = json.loads((tmp_path / "stack" / "runs.json").read_text())
    content[0]["summary"]["RP"] += 0.1
    (tmp_path / "stack" / "runs.json").write_text(json.dumps(content))
    assert list(read(tmp_path).runs["status"]) == ["damaged"] * 2
    (tmp_path / "stack" / "checksums.json").unlink()
    assert list(read(tmp_path).runs["status"]) == ["damaged", "finished"]
