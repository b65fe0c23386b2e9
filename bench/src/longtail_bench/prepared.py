"""A folder of prepared tables: what takes minutes to make from published files, made once.

=============== ================================================================================
NAME.npy        an array each
content.json    everything else, by name
meta.json       which benchmark's tables these are, and the checksums of the files; written last
=============== ================================================================================

A folder appears under its name when it is whole, and never takes another one's place. Whoever reads
it gets what was written, or an error that names the damaged file. A machine that has neither the
published files nor the packages that read them can train on a copy.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from longtail.support.files import digest, naming, parse_json

META, CONTENT = "meta.json", "content.json"
SAMPLE = 1 << 20  # bytes at the start, the middle and the end of a large file


@dataclass(frozen=True)
class Form:
    """What a folder holds.

    Attributes:
        name: what errors call it.
        rule: raised with any change to what is written, so that older folders are not used.
        mapped: arrays too large for memory. They stay on disk, and only their size is checked.
    """

    name: str
    rule: int
    mapped: tuple[str, ...] = ()


def save(form: Form, folder: Path, values: Mapping[str, Any]) -> None:
    """Write arrays, and values that JSON knows, to a folder that is not there or is empty."""
    with whole_folder(folder) as work:
        write(form, work, values)


def write(form: Form, work: Path, values: Mapping[str, Any]) -> None:
    """Write arrays, and values that JSON knows, beside arrays that lie in a folder already."""
    content = {}
    for name, value in values.items():
        if isinstance(value, np.ndarray):
            np.save(work / f"{name}.npy", value)
        else:
            content[name] = value
    seal(form, work, content)


def seal(form: Form, work: Path, content: Mapping[str, Any]) -> None:
    """Write what belongs beside the arrays that lie in a folder: now it is complete."""
    (work / CONTENT).write_text(json.dumps(content), "utf-8")
    checksums, sizes = {}, {}
    for path in sorted(work.iterdir()):
        if path.stem in form.mapped:
            sizes[path.name] = path.stat().st_size
        else:
            checksums[path.name] = digest(path)
    meta = {"form": form.name, "rule": form.rule, "sha256": checksums, "bytes": sizes}
    (work / META).write_text(json.dumps(meta, indent=2), "utf-8")


def load(form: Form, folder: Path) -> dict[str, Any]:
    """The arrays and the other values by name, each file checked."""
    meta = _meta(form, folder)
    values: dict[str, Any] = {}
    for name in [*meta["sha256"], *meta["bytes"]]:
        path = folder / name
        try:
            _check(path, meta)
            if name == CONTENT:
                values |= parse_json(path, dict)
            else:
                mapped = name in meta["bytes"]
                values[path.stem] = np.load(path, mmap_mode="r" if mapped else None)
        except MemoryError:
            raise
        except Exception as error:  # of a damaged array NumPy makes errors of many kinds
            raise ValueError(
                f"{path} is damaged ({error}): delete {folder} and prepare it again"
            ) from None
    return values


def _meta(form: Form, folder: Path) -> dict[str, Any]:
    path = folder / META
    try:
        meta = parse_json(path, dict)
    except OSError as error:
        raise ValueError(f"{folder} is not a prepared {form.name}: {error}") from None
    except ValueError as error:
        raise ValueError(f"{path} is damaged: {error}") from None
    if meta.get("form") != form.name:
        raise ValueError(f"{folder} holds {meta.get('form')}, not a prepared {form.name}")
    if meta.get("rule") != form.rule:
        raise ValueError(
            f"{folder} was prepared by rule {meta.get('rule')}, this version has rule "
            f"{form.rule}: prepare it again"
        )
    if not all(isinstance(meta.get(field), dict) for field in ("sha256", "bytes")):
        raise ValueError(f"{path} is damaged: it has no checksums")
    return meta


def _check(path: Path, meta: Mapping[str, Any]) -> None:
    if path.name in meta["bytes"]:
        size, expected = path.stat().st_size, meta["bytes"][path.name]
        if size != expected:
            raise ValueError(f"it has {size} bytes, expected {expected}")
    elif digest(path) != meta["sha256"][path.name]:
        raise ValueError("its checksum is another")


def complete(folder: Path) -> bool:
    """Whether prepared tables lie in a folder."""
    return (folder / META).is_file()


def find(form: Form, cache: Path) -> list[Path]:
    """The folders in a cache that hold tables of this form and rule, the newest first."""
    made = []
    for path in cache.glob(f"*/{META}"):
        try:
            _meta(form, path.parent)
        except ValueError:  # another form's, an older rule's, or damaged
            continue
        made.append((path.stat().st_mtime, path.parent))
    return [folder for _, folder in sorted(made, reverse=True)]


def key(form: Form, *made_of: Any) -> str:
    """Twelve digits that tell what tables are made of, for the name of their folder."""
    text = json.dumps([form.name, form.rule, *made_of])
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def fingerprint(paths: Iterable[Path]) -> str:
    """Of files' names, sizes and content; of a large one's content three parts are read."""
    total = hashlib.sha256()
    for path in paths:
        size = path.stat().st_size
        total.update(f"{path.name}\0{size}\0".encode())
        with open(path, "rb") as file:
            if size <= 4 * SAMPLE:
                total.update(file.read())
                continue
            for start in (0, size // 2, size - SAMPLE):
                file.seek(start)
                total.update(file.read(SAMPLE))
    return total.hexdigest()


def check_free(folder: Path) -> None:
    """Refuse a place where something is: ask this before the minutes that preparing takes."""
    if folder.is_symlink() or (folder.exists() and not folder.is_dir()):
        raise ValueError(f"{folder} is there already and is not a folder")
    if folder.is_dir() and any(folder.iterdir()):
        raise ValueError(f"{folder} is there already and is not empty: give another folder")


@contextmanager
def whole_folder(target: Path) -> Iterator[Path]:
    """A folder to write to that becomes `target` when all is written, or else leaves no trace.

    Two processes may make the same tables: the first to end wins, the other's are dropped.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    work = Path(tempfile.mkdtemp(prefix=f".{target.name}-", dir=target.parent))
    work.chmod(0o755)
    try:
        with naming(target):
            yield work
        try:
            os.replace(work, target)  # takes the place of nothing, or of an empty folder
        except OSError as error:
            if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
                raise
            if not complete(target):
                check_free(target)
    finally:
        shutil.rmtree(work, ignore_errors=True)
