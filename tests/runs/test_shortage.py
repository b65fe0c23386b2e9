"""Runs that run out of memory or of space: one sentence, what is left, and going on from there."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest
import torch

from longtail.cli import main
from longtail.methods import Method
from longtail.runs.files import RunFiles
from longtail.runs.snapshot import Snapshots

SMALL = ["--tasks", "6", "--zero-shot", "0", "--features", "4", "--hidden", "8", "--cap", "20"]
SMALL += ["--device", "cpu", "--threads", "1", "--snapshot-minutes", "0", "--quiet"]
COMPARED = (RunFiles.SCORES, RunFiles.RESULT, RunFiles.WEIGHTS)


def run(out: Path, *more: str) -> int:
    return main(["run", "toy", *SMALL, "--out", str(out), *more])


def same(a: Path, b: Path) -> bool:
    return all((a / name).read_bytes() == (b / name).read_bytes() for name in COMPARED)


@pytest.mark.parametrize(
    "error",
    [
        torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 7 PiB. GPU 0 has less."),
        MemoryError("Unable to allocate 7 PiB"),
        RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 7 PiB."),
    ],
    ids=lambda error: type(error).__name__,
)
def test_out_of_memory_in_the_middle_of_a_task(tmp_path: Path, monkeypatch, capsys, error):
    loss, steps = Method.loss, []

    def failing(self: Method, batch):
        steps.append(1)
        if len(steps) == 9:
            raise error
        return loss(self, batch)

    with monkeypatch.context() as patch:
        patch.setattr(Method, "loss", failing)
        assert run(tmp_path / "a") == 1
    said = capsys.readouterr().err
    assert said.startswith("longtail: out of memory at task ")
    assert said.count("\n") == 1
    assert "--batch-size" in said
    (*_, newest) = Snapshots(tmp_path / "a" / "snapshot").files()
    assert str(newest) in said
    assert run(tmp_path / "a") == 0  # from the snapshot
    assert run(tmp_path / "whole") == 0
    assert same(tmp_path / "a", tmp_path / "whole")


def test_another_error_of_torch_stays_what_it_is(tmp_path: Path, monkeypatch, capsys):
    def failing(self: Method, batch):
        raise RuntimeError("shapes do not fit")

    monkeypatch.setattr(Method, "loss", failing)
    assert run(tmp_path / "a") == 1
    assert "shapes do not fit" in capsys.readouterr().err


def test_of_a_study_the_run_without_memory_fails_alone(tmp_path: Path, monkeypatch, capsys):
    file, loss, first = tmp_path / "a.toml", Method.loss, []
    text = 'benchmark = "toy"\npolicies = ["continual"]\nstack = false\nseeds = "0-1"\n'
    file.write_text(f"{text}[data]\ntasks = 4\ncap = 20\n")

    def failing(self: Method, batch):
        first.append(self.seed)
        if self.seed == first[0]:
            raise torch.OutOfMemoryError("CUDA out of memory.")
        return loss(self, batch)

    monkeypatch.setattr(Method, "loss", failing)
    flags = ["--out", str(tmp_path / "out"), "--device", "cpu", "--quiet", "--no-report"]
    assert main(["study", str(file), *flags]) == 1
    assert "out of memory at task 0" in capsys.readouterr().err
    assert len(list(tmp_path.glob("out/runs/*/summary.json"))) == 1


def test_no_space_for_scores_is_a_sentence_and_the_run_goes_on(tmp_path: Path, monkeypatch, capsys):
    from longtail.runs import files

    def full(self, *_):
        raise OSError(28, "No space left on device", str(self.path))

    with monkeypatch.context() as patch:
        patch.setattr(files.Journal, "append", full)
        assert run(tmp_path / "a") == 1
    said = capsys.readouterr().err
    assert "scores.jsonl: No space left on device" in said
    assert said.count("\n") == 1
    assert run(tmp_path / "a") == 0
    assert run(tmp_path / "whole") == 0
    assert same(tmp_path / "a", tmp_path / "whole")


@pytest.mark.slow
@pytest.mark.skipif(os.name != "posix" or os.getuid() != 0, reason="only root may mount")
@pytest.mark.parametrize("kilobytes", [60, 100, 160, 240])
def test_a_disk_that_really_is_full(tmp_path: Path, kilobytes: int, capsys):
    """A file system of some kilobytes: the run stops, and goes on once there is space."""
    disk = tmp_path / "disk"
    disk.mkdir()
    size = f"size={kilobytes}k"
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", size, "none", str(disk)])
    if mounted.returncode:
        pytest.skip("no file system can be mounted here")
    try:
        assert run(tmp_path / "whole") == 0
        (disk / "ballast").write_bytes(bytes(30_000))
        code = run(disk / "a")
        said = capsys.readouterr().err
        assert code in (0, 1)
        if code:
            assert "No space left on device" in said
            assert said.count("\n") == 1
        (disk / "ballast").unlink()
        subprocess.run(["mount", "-o", "remount,size=50M", str(disk)], check=True)
        assert run(disk / "a") == 0
        assert same(disk / "a", tmp_path / "whole")
    finally:
        subprocess.run(["umount", str(disk)], check=True)
