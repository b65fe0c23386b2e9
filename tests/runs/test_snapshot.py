from __future__ import annotations

import hashlib
import os
import random
import resource
import signal

import numpy as np
import pytest
import torch

from longtail.runs.snapshot import (
    SnapshotError,
    Snapshots,
    generator_state,
    seed_generators,
    set_generator_state,
)

STATE = {"weights": {"w": torch.arange(1000.0)}, "position": [1, 2, 3], "name": "x", "none": None}


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def make(tmp_path, **kwargs):
    said: list[str] = []
    return Snapshots(tmp_path / "snapshot", warn=said.append, **kwargs), said


def numbered(value: int) -> dict:
    return {**STATE, "value": value}


def test_round_trip_with_weights_only(tmp_path):
    snapshots, said = make(tmp_path, config={"seed": 1})
    assert snapshots.load() is None
    path = snapshots.save(STATE)
    assert torch.load(path, weights_only=True)["config"] == {"seed": 1}
    state = snapshots.load()
    assert state is not None
    assert torch.equal(state["weights"]["w"], STATE["weights"]["w"])
    assert {k: v for k, v in state.items() if k != "weights"} == {
        "position": [1, 2, 3],
        "name": "x",
        "none": None,
    }
    assert said == []


def test_keeps_the_last_two_and_loads_the_newest(tmp_path):
    snapshots, _ = make(tmp_path)
    for value in range(12):
        snapshots.save(numbered(value))
    assert len(list(snapshots.folder.iterdir())) == 2
    again, _ = make(tmp_path)
    assert again.load()["value"] == 11
    again.save(numbered(12))
    assert again.load()["value"] == 12
    assert len(again.files()) == 2


def truncate(path):
    os.truncate(path, path.stat().st_size // 2)


def empty(path):
    os.truncate(path, 0)


def flip(path):
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(bytes(data))


def replace_by_text(path):
    path.write_text("not a snapshot")


def replace_by_folder(path):
    path.unlink()
    (path / "inside").mkdir(parents=True)


@pytest.mark.parametrize("damage", [truncate, empty, flip, replace_by_text, replace_by_folder])
def test_damaged_snapshot_falls_back_to_the_previous_and_says_so(tmp_path, damage):
    snapshots, said = make(tmp_path)
    snapshots.save(numbered(1))
    newest = snapshots.save(numbered(2))
    damage(newest)
    assert snapshots.load()["value"] == 1
    assert len(said) == 1
    assert str(newest) in said[0]
    assert "damaged" in said[0]
    # the damaged one must not push out the good one that was used
    empty(snapshots.save(numbered(3)))
    assert snapshots.load()["value"] == 1


@pytest.mark.parametrize("content", [b"junk", b""])
def test_what_is_no_snapshot_is_passed_over_though_its_checksum_fits(tmp_path, content):
    snapshots, said = make(tmp_path)
    snapshots.save(numbered(1))
    name = f"00000002-{hashlib.sha256(content).hexdigest()}.pt"
    (snapshots.folder / name).write_bytes(content)
    other = snapshots.folder / "other.pt"
    torch.save([1, 2], other)
    other.rename(other.with_name(f"00000003-{hashlib.sha256(other.read_bytes()).hexdigest()}.pt"))
    assert snapshots.load()["value"] == 1
    assert "it is no snapshot" in said[0]
    assert "it cannot be opened" in said[1]


def test_folders_in_the_place_of_snapshots_take_no_part_and_stay(tmp_path):
    snapshots, said = make(tmp_path)
    for value in (1, 2):
        replace_by_folder(snapshots.save(numbered(value)))
    assert snapshots.load() is None
    assert "is damaged (it is a folder); starting from the first task" in said[-1]
    for value in (3, 4):
        snapshots.save(numbered(value))
    assert len(snapshots.files()) == 2
    assert snapshots.load()["value"] == 4
    snapshots.clear()
    assert snapshots.files() == []
    assert [(path / "inside").is_dir() for path in snapshots.folder.iterdir()] == [True, True]


def test_half_written_file_of_a_dead_process_is_ignored(tmp_path):
    snapshots, said = make(tmp_path)
    snapshots.save(numbered(1))
    draft = snapshots.folder / f".snapshot.pt.{'0' * 8}-{'0' * 16}.draft"
    draft.write_bytes(b"half")
    os.utime(draft, (0, 0))  # long ago
    assert snapshots.load()["value"] == 1
    assert said == []
    snapshots.save(numbered(2))
    assert not list(snapshots.folder.glob(".*.draft"))


def test_unusable_snapshot_is_passed_over(tmp_path):
    snapshots, said = make(tmp_path)
    snapshots.save(numbered(1))
    snapshots.save(numbered(2))
    state = snapshots.load(lambda state: "scores are missing" if state["value"] == 2 else None)
    assert state["value"] == 1
    assert "scores are missing" in said[0]


def test_full_disk_is_a_clear_error_and_leaves_the_last_good_one(tmp_path):
    snapshots, _ = make(tmp_path)
    good = snapshots.save(numbered(1))
    big = {"value": 2, "weights": torch.zeros(1_000_000)}
    # A file-size limit makes write() fail in the kernel as a full disk does.
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, hard))
    try:
        with pytest.raises(SnapshotError, match="cannot write a snapshot") as error:
            snapshots.save(big)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        signal.signal(signal.SIGXFSZ, handler)
    assert str(good) in str(error.value)
    assert [path.name for path in snapshots.folder.iterdir()] == [good.name]
    assert snapshots.load()["value"] == 1
    snapshots.save(big)
    assert snapshots.load()["value"] == 2


def test_what_could_not_be_loaded_is_refused_when_saved(tmp_path):
    snapshots, _ = make(tmp_path)
    with pytest.raises(TypeError, match=r"state\['a'\]\[1\] is a ndarray"):
        snapshots.save({"a": [1, np.zeros(2)]})


def test_due_by_time(tmp_path):
    clock = Clock()
    snapshots, _ = make(tmp_path, minutes=1.0, clock=clock)
    assert not snapshots.due()
    clock.now = 59.0
    assert not snapshots.due()
    clock.now = 60.0
    assert snapshots.due()
    snapshots.save(STATE)
    assert not snapshots.due()
    clock.now = 120.0
    assert snapshots.due()


def test_zero_minutes_is_always_due_and_negative_is_refused(tmp_path):
    snapshots, _ = make(tmp_path, minutes=0)
    snapshots.save(STATE)
    assert snapshots.due()
    with pytest.raises(ValueError, match="-1"):
        make(tmp_path, minutes=-1)


def test_expensive_snapshots_stay_under_their_share(tmp_path, monkeypatch):
    clock = Clock()
    snapshots, _ = make(tmp_path, minutes=1.0, clock=clock)
    write = snapshots._write

    def slow(content, number):
        clock.now += 10.0
        return write(content, number)

    monkeypatch.setattr(snapshots, "_write", slow)
    small = {"value": 1}
    while clock.now < 20_000:
        clock.now += 1.0
        if snapshots.due():
            snapshots.save(small)
    assert snapshots.count > 20
    assert snapshots.seconds <= 0.0205 * clock.now


def test_generators_of_every_kind_come_back():
    def draw() -> list:
        return [torch.rand(3).tolist(), random.random(), random.gauss(0, 1), np.random.rand(2)]

    seed_generators(7)
    draw()
    np.random.randn()  # leaves a cached second value behind
    state = generator_state()
    first = [*draw(), np.random.randn()]
    draw()
    set_generator_state(state)
    second = [*draw(), np.random.randn()]
    for a, b in zip(first, second, strict=True):
        assert np.array_equal(a, b)
    seed_generators(7)
    a = draw()
    seed_generators(7)
    assert all(np.array_equal(x, y) for x, y in zip(a, draw(), strict=True))


def test_a_snapshot_of_another_format_gets_a_sentence_and_stays(tmp_path, monkeypatch):
    snapshots, said = make(tmp_path)
    snapshots.save(numbered(1))
    monkeypatch.setattr("longtail.runs.snapshot.FORMAT", 2)
    snapshots.save(numbered(2))
    monkeypatch.undo()
    with pytest.raises(ValueError, match=r"has format 2, this longtail reads 1: go on with"):
        snapshots.load()
    assert len(snapshots.files()) == 2
    assert said == []
