"""The file of a memory: its description, whose tensors are in it, and who gets them.

It is safetensors. Its header has, besides the tensors, two texts in JSON: ``memory``, what is
remembered of which parameter and what made it, and ``stamp``, of which week and weights it is.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor

from longtail.memory.stamp import Stamp
from longtail.names import __version__
from longtail.support.growth import fit
from longtail.support.tensor_file import (
    DAMAGED,
    Entry,
    Header,
    TensorFileError,
    counted,
    read_header,
    write_tensors,
)

FILE_NAME = "longtail_memory.safetensors"
FORMAT = "longtail memory"
VERSION = 1
CONTINUAL, KEPT, NEW = POLICIES = ("continual", "kept", "new")


class Change(NamedTuple):
    """A parameter, with its shape in the file and in the model; None where it is not there."""

    name: str
    saved: tuple[int, ...] | None
    shape: tuple[int, ...] | None

    def __str__(self) -> str:
        shapes = [by(shape) for shape in (self.saved, self.shape) if shape is not None]
        return f"{self.name} {' -> '.join(shapes)}"


@dataclass(frozen=True)
class MemoryReport:
    """What `load_memory` found for whom; printed, it is one line.

    Attributes:
        path: the file.
        tasks: how many tasks it remembers.
        steps: the most steps that it remembers of a parameter.
        loaded: parameters that have their past as it was.
        new: parameters that the file does not know, which start without a past.
        grown: parameters with rows, or columns, that the file does not know.
        shrunk: parameters that have lost rows, or columns, at the end.
        dropped: what the file knows and nobody wants.
    """

    path: Path
    tasks: int
    steps: int
    loaded: tuple[Change, ...] = ()
    new: tuple[Change, ...] = ()
    grown: tuple[Change, ...] = ()
    shrunk: tuple[Change, ...] = ()
    dropped: tuple[Change, ...] = ()

    def __str__(self) -> str:
        counts = [f"{len(self.loaded)} loaded"]
        for what in ("new", "grown", "shrunk", "dropped"):
            changes: tuple[Change, ...] = getattr(self, what)
            named = ", ".join(map(str, changes[:3])) + (", ..." if len(changes) > 3 else "")
            counts.append(f"{len(changes)} {what}" + (f" ({named})" if named else ""))
        past = f"{count(self.tasks, 'task')}, {count(self.steps, 'step')}"
        return f"memory of {past} from {self.path}: {', '.join(counts)}"


class Record(NamedTuple):
    """What the description says of a parameter."""

    names: tuple[str, ...]
    shape: tuple[int, ...]
    steps: int
    tasks: int

    @property
    def name(self) -> str:
        """The one its tensors are filed under; the others are of the places it is tied to."""
        return self.names[0]

    def to_json(self) -> dict[str, Any]:
        plain = {"shape": self.shape, "steps": self.steps, "tasks": self.tasks}
        return plain | ({"also": self.names[1:]} if self.names[1:] else {})


@dataclass(frozen=True)
class Document:
    """A file of a memory, read as far as its header goes.

    Attributes:
        told: the description, as it stands there.
        policy: whose state it is: one of `POLICIES`.
        tasks: how many tasks are behind it.
        records: the parameters, by name.
    """

    path: Path
    header: Header
    told: dict[str, Any]
    policy: str
    tasks: int
    records: dict[str, Record]
    stamp: Stamp

    @property
    def steps(self) -> int:
        return max((record.steps for record in self.records.values()), default=0)


def memory_path(path: str | os.PathLike[str]) -> Path:
    """The file of a memory: ``path`` itself if it ends in .safetensors, else in that folder."""
    path = Path(path)
    return path if path.suffix == ".safetensors" else path / FILE_NAME


@contextmanager
def reading(path: str | os.PathLike[str]) -> Iterator[tuple[Document, IO[bytes]]]:
    """A file of a memory, open; what is wrong with it, there or within, is one sentence."""
    target = memory_path(path)
    try:
        with open(target, "rb", buffering=0) as file:
            yield read_document(target, file), file
    except FileNotFoundError:
        raise FileNotFoundError(
            f"There is no memory at {target}; save_memory() makes one"
        ) from None
    except OSError as error:
        raise ValueError(f"Cannot load {target}: {error.strerror}") from None
    except TensorFileError as error:
        raise ValueError(f"Cannot load {target}: {error}") from None


def read_document(path: Path, file: IO[bytes]) -> Document:
    """The header of an open file."""
    header = read_header(file, FORMAT)
    version = header.metadata.get("version", "")
    if version != str(VERSION):
        raise TensorFileError(
            f"it has version {version!r} of the format and this longtail knows {VERSION}; "
            "a newer longtail wrote it"
        )
    try:
        told = json.loads(header.metadata["memory"])
        parameters = told["parameters"].items()
        records = {name: _record(name, described) for name, described in parameters}
        stamp = Stamp.of_json(header.metadata["stamp"])
        tasks, policy = counted(told["tasks"]), told["policy"]
        if policy not in POLICIES:
            raise ValueError(f"{policy!r} is no policy")
    except DAMAGED:
        raise TensorFileError("its description is damaged") from None
    return Document(path, header, told, policy, tasks, records, stamp)


def _record(name: str, described: dict[str, Any]) -> Record:
    names = (name, *described.get("also", ()))
    if not all(isinstance(alias, str) for alias in names):
        raise TypeError(f"{names!r} are no names")
    shape = tuple(described["shape"])
    return Record(names, shape, counted(described["steps"]), counted(described["tasks"]))


def remembered(path: str | os.PathLike[str]) -> tuple[int, int]:
    """How many tasks and steps a memory holds; 0 and 0 where there is none that can be read."""
    try:
        with reading(path) as (document, _):
            return document.tasks, document.steps
    except (OSError, ValueError):
        return 0, 0


def describe(
    policy: str, optimizer: Any, tasks: int, records: Mapping[str, Record]
) -> dict[str, Any]:
    """The description of a memory: what is remembered, and what made it."""
    return {
        "policy": policy,
        "tasks": tasks,
        "parameters": {name: record.to_json() for name, record in records.items()},
        "made_by": {
            "longtail": __version__,
            "torch": torch.__version__,
            "optimizer": type(optimizer).__name__,
        },
    }


def write(
    target: Path,
    told: Mapping[str, Any],
    stamp: Stamp,
    entries: Mapping[str, Entry],
    tensor_of: Callable[[str], Tensor],
    *,
    sharded: bool,
) -> Path:
    """Write the file, by the first of the processes that train a model.

    Where parameters are sharded, gathering them takes all processes, so all of them ask for every
    tensor, and stop at the same one where it cannot be saved.
    """
    if rank() == 0:
        if target.is_dir():
            raise ValueError(f"Cannot save {target}: it is a folder")
        target.parent.mkdir(parents=True, exist_ok=True)
        metadata = {
            "format": FORMAT,
            "version": str(VERSION),
            "memory": json.dumps(told),
            "stamp": stamp.to_json(),
        }
        write_tensors(target, entries, metadata, tensor_of)
    elif sharded:
        for key in entries:
            tensor_of(key)
    if sharded:
        dist.barrier()
    return target


def match(
    document: Document, aliases: Mapping[Tensor, list[str]], *, strict: bool
) -> tuple[dict[Tensor, Record], MemoryReport]:
    """Which record each parameter gets, and a report of it."""
    by_name = {alias: record for record in document.records.values() for alias in record.names}
    chosen: dict[Tensor, Record] = {}
    changes: dict[str, list[Change]] = {kind: [] for kind in ("loaded", "new", "grown")}
    changes |= {"shrunk": [], "dropped": []}
    for parameter, names in aliases.items():
        shape = tuple(parameter.shape)
        record = next((by_name[alias] for alias in names if alias in by_name), None)
        if record is None:
            changes["new"].append(Change(names[0], None, shape))
            continue
        change = Change(names[0], record.shape, shape)
        how = fit(record.shape, shape)
        if how is not None:
            chosen[parameter] = record
            changes[how].append(change)
        elif strict:
            raise ValueError(
                f"Cannot load {document.path}: {names[0]} has shape {by(record.shape)} in "
                f"the file and {by(shape)} in the model (strict=False leaves it out)"
            )
        else:
            changes["new"].append(change)
    used = {record.name for record in chosen.values()}
    if strict and document.records and aliases and not used:
        ours, theirs = next(iter(aliases.values()))[0], next(iter(document.records))
        raise ValueError(
            f"Cannot load {document.path}: none of its {len(document.records)} names is one of the "
            f"model's; the first is {theirs!r} there and {ours!r} here (names= renames)"
        )
    for name, record in document.records.items():
        if name not in used:
            changes["dropped"].append(Change(name, record.shape, None))
    kinds: dict[str, Any] = {key: tuple(value) for key, value in changes.items()}
    return chosen, MemoryReport(document.path, document.tasks, document.steps, **kinds)


def placed(value: Tensor, parameter: Tensor, dtype: torch.dtype, target: Tensor | None) -> Tensor:
    """The value in ``target``, or in a new tensor laid out (and sharded) like the parameter."""
    if is_sharded(parameter):
        from torch.distributed.tensor import DTensor, distribute_tensor

        assert isinstance(parameter, DTensor)
        mesh, placements = parameter.device_mesh, parameter.placements
        value = value.to(parameter.device)
        value = distribute_tensor(value, mesh, placements, src_data_rank=None)
    if target is None:
        target = torch.empty_like(parameter, dtype=dtype, requires_grad=False)
    return target.detach().copy_(value)


def is_sharded(tensor: Tensor) -> bool:
    return hasattr(tensor, "full_tensor")


def whole(tensor: Tensor) -> Tensor:
    return tensor.full_tensor() if is_sharded(tensor) else tensor  # type: ignore[attr-defined]


def rank() -> int:
    return dist.get_rank() if dist.is_available() and dist.is_initialized() else 0


def by(shape: tuple[int, ...]) -> str:
    return "x".join(map(str, shape)) if shape else "()"


def count(n: int, what: str) -> str:
    return f"{n:,} {what}{'' if n == 1 else 's'}"
