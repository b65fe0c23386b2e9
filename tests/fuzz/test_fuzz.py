"""Damaged and made-up input: a result or one clear `ValueError`, never anything else.

No input starts a process, opens a connection, or makes or changes a file or folder elsewhere.
`make test` tries a little of everything; `make soak` asks for hours of it with
LONGTAIL_FUZZ=<inputs per test>.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from helpers.attacks import MUTATIONS, WORDS, Attack, Mutation, attacks, mutated
from longtail.runs.config import resolve
from longtail.study.file import parse_seeds

INPUTS = int(os.environ.get("LONGTAIL_FUZZ", "60"))
fuzz = settings(
    max_examples=INPUTS,
    deadline=None,
    derandomize="LONGTAIL_FUZZ" not in os.environ,
    database=None,
    suppress_health_check=list(HealthCheck),
)
NAMES = ("sst csv", "qasrl", "qasrl gold", "squad", "woz")
NAMES += ("wikisql", "wikisql tables", "wikisql numbers")
NAMES += ("images npz", "images idx", "images cifar", "molecules", "molecules prepared", "semcor")
NAMES += ("gqa questions", "gqa scenes", "gqa features npz", "gqa features tsv", "vqa prepared")
NAMES += ("wordnet index.sense", "wordnet data.noun", "wsd prepared", "settings")
NAMES += ("settings file", "seeds", "study file", "snapshot", "snapshot, signed", "memory")
NAMES += ("average", "folder", "folder, asked again", "beside the results")
EXTRAS = st.one_of(st.binary(min_size=1, max_size=8), st.sampled_from(WORDS))
DAMAGES = st.lists(
    st.tuples(st.sampled_from(MUTATIONS), st.floats(0, 1), EXTRAS), min_size=1, max_size=4
)
FORBIDDEN = ("os.system", "os.exec", "os.fork", "os.posix_spawn", "os.spawn", "subprocess.Popen")
FORBIDDEN += ("pty.spawn", "socket.connect", "socket.bind", "ctypes.dlopen", "webbrowser.open")
CHANGING = ("os.mkdir", "os.rmdir", "os.remove", "os.rename", "os.link", "os.symlink", "os.chmod")
CHANGING += ("os.truncate", "tempfile.mkdtemp", "tempfile.mkstemp")
WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC


class Watch:
    """Notes what data must never bring about."""

    def __init__(self, work: Path) -> None:
        self.work, self.on = str(work), False
        self.seen: list[str] = []
        sys.addaudithook(self._hear)

    @contextmanager
    def watching(self) -> Iterator[None]:
        self.on = True
        try:
            yield
        finally:
            self.on = False
        assert self.seen == []

    def _hear(self, event: str, args: tuple[Any, ...]) -> None:
        if not self.on:
            return
        written = event == "open" and args[2] & WRITING and self._elsewhere(args[0])
        changed = event in CHANGING and any(map(self._elsewhere, args))
        if written or changed or event in FORBIDDEN:
            self.seen.append(f"{event} {args!r:.120}")

    def _elsewhere(self, path: Any) -> bool:
        if not isinstance(path, str | bytes):
            return False
        name = os.path.abspath(os.fsdecode(path))
        # A module that is imported now for the first time leaves its byte code.
        return not name.startswith((self.work, "/dev/null")) and "__pycache__" not in name


@pytest.fixture(scope="module")
def work(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("attacks")


@pytest.fixture(scope="module")
def made(work: Path) -> dict[str, Attack]:
    found = {attack.name: attack for attack in attacks(work)}
    for attack in found.values():  # what is imported where it is used is there before the watch
        with suppress(ValueError):
            attack.attempt(attack.contents[0], attack.contents[0])
    return found


@pytest.fixture(scope="module")
def watch(work: Path) -> Watch:
    return Watch(work)


def test_code_that_runs_is_seen(watch: Watch, tmp_path: Path):
    for forbidden in (lambda: os.system("true"), (tmp_path / "made").mkdir):
        with pytest.raises(AssertionError, match="os"), watch.watching():
            forbidden()
        watch.seen.clear()


def test_every_attack_is_tried(made: dict[str, Attack]):
    assert sorted(made) == sorted(NAMES)


@pytest.mark.parametrize("name", NAMES)
@fuzz
@given(data=st.data(), mutations=DAMAGES)
def test_damaged_input(
    made: dict[str, Attack],
    watch: Watch,
    name: str,
    data: st.DataObject,
    mutations: list[Mutation],
):
    attack = made[name]
    content = attack.contents[data.draw(st.sampled_from(range(len(attack.contents))))]
    damaged = mutated(content, mutations)
    try:
        with watch.watching():
            attack.attempt(content, damaged)
    except ValueError as error:
        assert str(error).strip()  # noqa: PT017


@pytest.mark.parametrize("name", [name for name in NAMES if "gqa features" not in name])
def test_whole_input_is_taken(made: dict[str, Attack], name: str):
    """Else an attack would only show that nothing is ever taken."""
    attack = made[name]
    attack.attempt(attack.contents[0], attack.contents[0])


VALUES = st.one_of(
    st.sampled_from([word.decode("utf-8", "surrogateescape") for word in WORDS]),
    st.text(max_size=20),
    st.integers().map(str),
    st.floats().map(str),
)
KEYS = ["train.lr", "train.betas", "train.epochs", "train.clip", "data.tasks", "data.cap", "seed"]
KEYS += ["method", "optimizer", "methods.buffer", "moments.beta3", "train.evaluate_at"]


@fuzz
@given(key=st.one_of(st.sampled_from(KEYS), st.text(max_size=12)), value=VALUES)
def test_made_up_settings(key: str, value: str):
    try:
        assert resolve("toy", flags={"method": "derpp"}, sets=[f"{key}={value}"]).id
    except ValueError as error:
        assert str(error).strip()  # noqa: PT017


@fuzz
@given(text=st.one_of(VALUES, st.text("0123456789,- ", max_size=30)))
def test_made_up_seeds(text: str):
    try:
        assert all(seed >= 0 for seed in parse_seeds(text))
    except ValueError as error:
        assert str(error).strip()  # noqa: PT017
