"""Settings as values: read from text, checked against a type, made plain, compared.

TOML has no null, so an absent optional value is written and read as the string ``"none"``.
"""

from __future__ import annotations

import difflib
import tomllib
import types
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Literal, Union, get_args, get_origin

NONE = "none"


NEAR = 0.5  # the ratio of difflib from which on one name may have been meant for another


def unknown(kind: str, name: str, known: Iterable[str], further: str = "") -> ValueError:
    """The error for an unknown name: it suggests the nearest known one, or lists what is known.

    Of names in tables, such as "train.lr", it lists those of the same table; `further` ends it.
    """
    known = list(dict.fromkeys(known))
    table, _, last = name.rpartition(".")
    # "train.foo" is close to "train.lr" as a string, by its table alone: that is no typo of it
    alike = [k for k in known if _alike(last, k.rpartition(".")[2])]
    # "lr" is not close to "train.lr" as a string, but it is what was meant
    near = [k for k in known if k.rpartition(".")[2] == last][:1]
    near = near or difflib.get_close_matches(name, alike, n=1, cutoff=NEAR)
    of_table = [k for k in known if table and k.startswith(f"{table}.")]
    others = ", ".join(sorted(of_table or known)) or "none"
    hint = f"did you mean {near[0]!r}?" if near else f"known: {others}"
    return ValueError(f"unknown {kind} {name!r}; {hint}{further}")


def _alike(a: str, b: str) -> bool:
    return difflib.SequenceMatcher(None, b, a).ratio() >= NEAR


def parse(text: str) -> Any:
    """A value written on the command line: TOML where it is TOML, else the text itself.

    >>> parse("0.1"), parse("true"), parse("[1, 2]"), parse("linear")
    (0.1, True, [1, 2], 'linear')
    """
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except (ValueError, RecursionError):  # a number of thousands of digits, brackets without end
        if "," in text and not text.startswith(("[", '"', "'")):
            return [parse(part.strip()) for part in text.split(",") if part.strip()]
        return text


def describe(annotation: Any) -> str:
    """How a type reads in a help line or an error."""
    origin, args = get_origin(annotation), get_args(annotation)
    if annotation is type(None):
        return NONE
    if origin is Literal:
        return " | ".join(map(str, args))
    if origin in (Union, types.UnionType):
        return " | ".join(map(describe, args))
    if origin in (tuple, list):
        if origin is tuple and Ellipsis not in args:
            return f"a list of {len(args)} ({', '.join(map(describe, args))})"
        return f"a list of {describe(args[0])}"
    names = {int: "integer", float: "number", str: "text", bool: "true | false", Path: "path"}
    return names.get(annotation, getattr(annotation, "__name__", str(annotation)))


def check(value: Any, annotation: Any, name: str) -> Any:
    """``value`` as an instance of ``annotation``, or a ``ValueError`` that names the setting."""
    ok, result = _convert(value, annotation)
    if not ok:
        raise ValueError(f"{name} must be {describe(annotation)}, got {short(value)}")
    if isinstance(result, int) and not -(2**63) <= result < 2**63:
        raise ValueError(f"{name} must be below 2**63, got {short(value)}")
    return result


def short(value: Any) -> str:
    """A value for an error: of one that goes on for pages, the beginning.

    >>> short(10**100)
    '1000000000000000000000000000000000000000... (101 characters)'
    """
    try:
        text = repr(value)
    except ValueError:  # Python does not write down integers of more than 4,300 digits
        text = hex(value)
    return text if len(text) <= 80 else f"{text[:40]}... ({len(text)} characters)"


def _convert(value: Any, annotation: Any) -> tuple[bool, Any]:
    origin, args = get_origin(annotation), get_args(annotation)
    if annotation is Any:
        return True, value
    if annotation is type(None):
        return value is None or value == NONE, None
    if origin is Literal:
        return value in args, value
    if origin in (Union, types.UnionType):
        # None, bool and int are tried first, since the text "none" means absence, and 1 is an int
        # although a float would take it.
        members = sorted(args, key=lambda a: (a is not type(None), a is not bool, a is not int))
        return next((r for r in (_convert(value, a) for a in members) if r[0]), (False, value))
    if origin in (tuple, list):
        if not isinstance(value, (list, tuple)):
            value = [value]
        wanted = args if origin is tuple and Ellipsis not in args else args[:1] * len(value)
        if len(wanted) != len(value):
            return False, value
        parts = [_convert(v, a) for v, a in zip(value, wanted, strict=True)]
        return all(ok for ok, _ in parts), origin(v for _, v in parts)
    if annotation is Path:
        return isinstance(value, (str, Path)), Path(value) if isinstance(value, str) else value
    if annotation is float:
        number = isinstance(value, (int, float)) and not isinstance(value, bool)
        number = number and (isinstance(value, float) or abs(value) < 2**1023)
        return number, float(value) if number else value
    if annotation is int:
        return isinstance(value, int) and not isinstance(value, bool), value
    return isinstance(value, annotation), value


def plain(value: Any) -> Any:
    """``value`` with nothing in it that TOML and JSON cannot hold."""
    if isinstance(value, (str, int, float)):  # most are, and a study asks for thousands of them
        return value
    if value is None:
        return NONE
    if isinstance(value, dict):
        return {str(k): plain(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(v) for v in value]
    return str(value) if isinstance(value, Path) else value


def flatten(tree: Mapping[str, Any]) -> dict[str, Any]:
    """Tables to dotted keys, one level: {"train": {"lr": 1}} -> {"train.lr": 1}."""
    flat: dict[str, Any] = {}
    for key, value in tree.items():
        if isinstance(value, Mapping):
            flat.update({f"{key}.{k}": v for k, v in value.items()})
        else:
            flat[key] = value
    return flat


def first_difference(a: Mapping[str, Any], b: Mapping[str, Any]) -> tuple[str, Any, Any] | None:
    """The first setting two configurations disagree on: (key, value in a, value in b)."""
    flat_a, flat_b = flatten(a), flatten(b)
    for key in dict.fromkeys((*flat_a, *flat_b)):
        left, right = flat_a.get(key, "absent"), flat_b.get(key, "absent")
        if left != right:
            return key, left, right
    return None
