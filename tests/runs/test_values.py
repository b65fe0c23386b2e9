from __future__ import annotations

from pathlib import Path
from typing import Literal

import pytest

from longtail.runs.values import check, describe, first_difference, parse, plain, unknown


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("0.1", 0.1),
        ("1e-3", 1e-3),
        ("true", True),
        ("[1, 2]", [1, 2]),
        ("1,2", [1, 2]),
        ("0.9, 0.99", [0.9, 0.99]),
        ("linear", "linear"),
        ("'0.1'", "0.1"),
        ("", ""),
        ("a b", "a b"),
    ],
)
def test_parse_reads_toml_and_falls_back_to_text(text, value):
    assert parse(text) == value


@pytest.mark.parametrize(
    ("value", "annotation", "wanted"),
    [
        (1, float, 1.0),
        (1, float | int, 1),
        ("none", float | None, None),
        (None, int | None, None),
        (0.5, float | None, 0.5),
        ("bf16", Literal["none", "bf16"], "bf16"),
        ("none", Literal["none", "bf16"], "none"),
        ([0.9, 1], tuple[float, float], (0.9, 1.0)),
        ([1, 2, 3], tuple[int, ...], (1, 2, 3)),
        (5, tuple[int, ...], (5,)),
        ([1], list[int], [1]),
        ("a/b", Path, Path("a/b")),
        (True, bool, True),
    ],
)
def test_check_converts(value, annotation, wanted):
    result = check(value, annotation, "x")
    assert result == wanted
    assert type(result) is type(wanted)


@pytest.mark.parametrize(
    ("value", "annotation"),
    [
        ("a", float),
        (True, int),
        (True, float),
        (1.5, int),
        (1, bool),
        (1, str),
        ("fp8", Literal["none", "bf16"]),
        ([0.9], tuple[float, float]),
        (["a"], tuple[int, ...]),
        ("x", int | None),
    ],
)
def test_check_refuses_and_names_the_setting(value, annotation):
    with pytest.raises(ValueError, match=r"train\.x must be .*, got"):
        check(value, annotation, "train.x")


def test_describe_reads_well():
    assert describe(float | None) == "number | none"
    assert describe(tuple[float, float]) == "a list of 2 (number, number)"
    assert describe(tuple[int, ...]) == "a list of integer"


def test_plain_survives_toml_and_comes_back():
    import tomllib

    import tomli_w

    tree = {"a": None, "b": (1, 2.5), "c": {"d": Path("x"), "e": True}}
    text = tomli_w.dumps(plain(tree))
    assert tomllib.loads(text) == {"a": "none", "b": [1, 2.5], "c": {"d": "x", "e": True}}


def test_unknown_names_the_nearest_or_lists_all():
    assert "did you mean 'train.lr'?" in str(unknown("setting", "train.l", ["train.lr", "seed"]))
    assert "did you mean 'train.lr'?" in str(unknown("setting", "lr", ["train.lr", "seed"]))
    assert "known: abc, seed" in str(unknown("setting", "zzz", ["seed", "abc"]))


def test_first_difference_names_key_and_both_values():
    a = {"seed": 0, "train": {"lr": 0.1, "epochs": 1}}
    assert first_difference(a, {"seed": 0, "train": {"lr": 0.1, "epochs": 1}}) is None
    assert first_difference(a, {"seed": 0, "train": {"lr": 0.2, "epochs": 2}}) == (
        "train.lr",
        0.1,
        0.2,
    )
    assert first_difference(a, {"seed": 0, "train": {"lr": 0.1}}) == ("train.epochs", 1, "absent")
