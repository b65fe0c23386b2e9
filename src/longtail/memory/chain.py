"""A chain of weeks: what a week starts from, whether it is done again, what is kept of the last.

Each week starts from the weights and the memory of the week before. They are two files, and
processes end between one and the other, or are started twice; the memory's stamp tells. Where

    the weights are those the last week ended with       the week goes on from there
    they are those it began from, or it has its name     it is done again, from the memory of the
                                                         week before, and takes its own place
    they are neither                                     an error names a tensor that differs

The memory of the week before lies in a folder of its own, or, where all weeks share one, beside
this week's as ``longtail_memory.before.safetensors``. What else is kept from week to week (an
average, what a method knows) goes the same way.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Collection
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from longtail.memory.document import Document, count, memory_path, reading
from longtail.memory.stamp import Fingerprint, Match, compare
from longtail.support.files import replacing

OVERRIDE = "check=False takes the memory as it is"


@dataclass(frozen=True)
class Start:
    """What a week starts from.

    Attributes:
        week: what it is called.
        source: the memory of the week before; None in the first week.
        tasks: how many weeks came before it.
        began: its weights, as they are now.
        merged: whether an adapter of last week is part of the weights now.
        again: whether the week is done again.
        policy: whose memory it is; None in the first week.
    """

    week: str
    source: Path | None = None
    tasks: int = 0
    began: Fingerprint = field(default_factory=dict)
    merged: bool = False
    again: bool = False
    policy: str | None = None


def start_week(
    path: str | os.PathLike[str],
    now: Fingerprint,
    *,
    week: str | None = None,
    before: str | os.PathLike[str] | None = None,
    scored: Collection[str] = (),
    check: bool = True,
) -> Start:
    """Find the memory that a week starts from.

    Args:
        path: where this week's memory will be: a folder or a file, as for `longtail.save_memory`.
        now: the weights it begins with.
        week: what it is called; by default "week" and its number.
        before: where the memory of the week before is, if each week has a folder of its own.
        scored: the earlier weeks that there are scores or data of.
        check: raise where the memory does not belong to these weights, or is missing.

    Raises:
        ValueError: with a tensor that differs, and what to do.
        FileNotFoundError: there is no memory in ``before``.
    """
    own = memory_path(path)
    if before is not None:
        return _go_on(_read(memory_path(before)), now, week, check=check)
    if not own.exists():
        others = [name for name in scored if name != week]
        if check and week is not None and others:
            raise ValueError(
                f"There is no memory at {own}, and {week!r} is not the first week: there are "
                f"scores or data of {others[0]!r}. memory= is the folder in which the week before "
                "left its own; check=False starts without one"
            )
        return Start(week or "week 1", began=now)
    document = _read(own)
    if _is_again(document, now, week):
        return _do_again(document, now, check=check)
    return _go_on(document, now, week, check=check)


def before_path(path: Path) -> Path:
    """Where the week before's file is kept beside this week's."""
    return path.with_name(f"{path.stem}.before{path.suffix}")


def previous(path: Path, week: str, week_of: Callable[[Path], str | None]) -> Path | None:
    """The file of the week before: this one, unless it is of this week already."""
    for file in (path, before_path(path)):
        if file.is_file() and week_of(file) != week:
            return file
    return None


def keep_before(path: Path, week: str, week_of: Callable[[Path], str | None]) -> None:
    """Keep a file as that of the week before, now that this week's will take its place.

    Both names are there at any moment, so a process may end at any moment.
    """
    if not path.is_file() or week_of(path) == week:
        return
    with replacing(before_path(path)) as kept, open(path, "rb") as file:
        shutil.copyfileobj(file, kept, 1 << 20)


def week_of_memory(path: Path) -> str | None:
    """Which week a memory is of; None where it does not say, or cannot be read."""
    with suppress(OSError, ValueError), reading(path) as (document, _):
        return document.stamp.week
    return None


def _read(path: Path) -> Document:
    with reading(path) as (document, _):
        return document


def _is_again(document: Document, now: Fingerprint, week: str | None) -> bool:
    """Whether the week of this memory is done once more: its name decides, or its weights."""
    stamp = document.stamp
    if week is not None:
        return stamp.week == week
    if stamp.week is None or not stamp.began:
        return False
    began, ended = compare(stamp.began, now), compare(stamp.ended, now)
    if began.different is None and ended.different is None:  # they hardly moved
        return began.changed < ended.changed
    return began.different is None


def _do_again(document: Document, now: Fingerprint, *, check: bool) -> Start:
    stamp, path = document.stamp, document.path
    assert stamp.week is not None
    began = compare(stamp.began, now)
    if check and began.different is not None:
        ended = compare(stamp.ended, now).different is None
        raise ValueError(
            f"The memory at {path} is of {stamp.week!r}, and to do it again takes the weights that "
            f"it began from: {began.different} differs. "
            + ("They are those it ended with: is this another week? " if ended else "")
            + f"Load those of the week before, or give week= another name; {OVERRIDE}"
        )
    source = previous(path, stamp.week, week_of_memory)
    if check and source is None and document.tasks > 1:
        raise ValueError(
            f"{stamp.week!r} is done again, and the memory of the week before is not at "
            f"{before_path(path)}; check=False starts without one"
        )
    tasks = 0 if source is None else _read(source).tasks
    merged, policy = began.merged, document.policy
    return Start(stamp.week, source, tasks, now, merged, again=True, policy=policy)


def _go_on(document: Document, now: Fingerprint, week: str | None, *, check: bool) -> Start:
    ended = compare(document.stamp.ended, now)
    if check and ended.different is not None:
        raise ValueError(_not_its_weights(document, now, ended))
    name = week or f"week {document.tasks + 1}"
    tasks, policy = document.tasks, document.policy
    return Start(name, document.path, tasks, now, ended.merged, policy=policy)


def _not_its_weights(document: Document, now: Fingerprint, ended: Match) -> str:
    stamp = document.stamp
    called = f"of {stamp.week!r}" if stamp.week else f"after {count(document.tasks, 'task')}"
    began = bool(stamp.began) and compare(stamp.began, now).different is None
    also = "they are those it began from" if began else "nor are they those it began from"
    remedy = "its model has not been saved, or not loaded" if began else "load its model"
    if not stamp.began:
        also, remedy = "it does not say what it began from", "load the model it was saved beside"
    return (
        f"The memory at {document.path} is {called}, and these are not the weights that it ended "
        f"with: {ended.different} differs ({also}). {remedy[0].upper()}{remedy[1:]}; {OVERRIDE}"
    )
