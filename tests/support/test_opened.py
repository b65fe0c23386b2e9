"""Files that a user's code read, and checksums that are not taken twice of a large file."""

from __future__ import annotations

import hashlib
import importlib
import os
from pathlib import Path

import pytest

from helpers.user_project import Project
from longtail.support import opened
from longtail.support.opened import content, listen, listen_below, read_by

READER = """
import pathlib
import numpy as np

{at_import}

def read(name):
    return pathlib.Path(name).read_bytes()

def load(name):
    return np.load(name)

def write(name):
    pathlib.Path(name).write_text("mine")
    return pathlib.Path(name).read_text()
"""


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Project:
    return Project(tmp_path, monkeypatch)


def test_what_a_users_code_reads_is_known_whatever_reads_it(project: Project) -> None:
    np = importlib.import_module("numpy")
    for name in ("a.csv", "b.bin"):
        (project.folder / name).write_text("data")
    np.save(project.folder / "c.npy", np.zeros(3))
    source = project.write("op_reader", READER.format(at_import="open('a.csv').close()"))
    listen()
    module = importlib.import_module("op_reader")
    module.read("b.bin")
    module.load("c.npy")
    module.write("out.txt")
    module.read(os.devnull)
    module.read(os.__file__)
    assert read_by([source]) == ["a.csv", "b.bin", "c.npy"]
    (project.folder / "d.csv").write_text("read by this test, not by that module")
    (project.folder / "d.csv").read_text()
    assert read_by([source]) == ["a.csv", "b.bin", "c.npy"]


def test_what_anybody_reads_below_a_folder(project: Project) -> None:
    folder = project.folder / "corpus"
    folder.mkdir()
    for name in ("corpus/a.txt", "corpus/b.txt", "beside.txt"):
        path = os.open(project.folder / name, os.O_CREAT)  # empty, and not written to
        os.close(path)
    listen_below([folder])
    (folder / "a.txt").read_text()
    (project.folder / "beside.txt").read_text()
    assert set(map(os.path.basename, read_by([], [folder]))) >= {"a.txt"}
    assert "beside.txt" not in set(map(os.path.basename, read_by([], [folder])))


def test_a_large_file_is_hashed_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LONGTAIL_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(opened, "_hashed", {})
    taken: list[str] = []
    whole = opened.digest
    monkeypatch.setattr(opened, "digest", lambda path: taken.append(path.name) or whole(path))
    large = tmp_path / "large.bin"
    large.write_bytes(b"x" * (opened.SMALL + 1))
    os.utime(large, ns=(0, 10**18))
    expected = hashlib.sha256(large.read_bytes()).hexdigest()
    assert content(large) == (opened.SMALL + 1, expected)
    opened._hashed.clear()  # another process, which finds it in the cache
    assert content(large).sha256 == expected
    assert taken == ["large.bin"]
    large.write_bytes(b"y" * (opened.SMALL + 1))  # the same size, at another time
    assert content(large).sha256 != expected


def test_a_small_file_is_looked_at_each_time(tmp_path: Path) -> None:
    small = tmp_path / "small.csv"
    small.write_text("1")
    os.utime(small, ns=(0, 10**18))
    before = content(small)
    small.write_text("2")
    os.utime(small, ns=(0, 10**18))
    assert content(small) != before
    os.utime(small, ns=(0, 2 * 10**18))
    assert content(small) == (1, hashlib.sha256(b"2").hexdigest())


def test_no_cache_to_write_to_costs_time_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("LONGTAIL_CACHE", str(tmp_path / "file"))
    monkeypatch.setattr(opened, "_hashed", {})
    large = tmp_path / "large.bin"
    large.write_bytes(b"x" * (opened.SMALL + 1))
    os.utime(large, ns=(0, 10**18))
    assert content(large).bytes == opened.SMALL + 1
