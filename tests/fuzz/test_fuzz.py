"""Damaged and made-up input: a result or one clear `ValueError`, never anything else.

`make test` tries a little of everything; `make soak` asks for hours of it with
LONGTAIL_FUZZ=<inputs per test>, and then for a million inputs by `input_soak.py`.
"""

from __future__ import annotations

import os

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


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Attack]:
    return {attack.name: attack for attack in attacks(tmp_path_factory.mktemp("attacks"))}


def test_every_attack_is_tried(made: dict[str, Attack]):
    assert sorted(made) == sorted(NAMES)


@pytest.mark.parametrize("name", NAMES)
@fuzz
@given(data=st.data(), mutations=DAMAGES)
def test_damaged_input(
    made: dict[str, Attack], name: str, data: st.DataObject, mutations: list[Mutation]
):
    attack = made[name]
    content = data.draw(st.sampled_from(range(len(attack.contents))))
    try:
        attack.attempt(attack.contents[content], mutated(attack.contents[content], mutations))
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
