r"""What Continual Adam knows, as a file beside the weights.

A memory holds, by parameter *name*, the average second moment of all earlier tasks
(:math:`v_c`), the steps it was taken over (c), and the number of tasks; with
``first_moment="task"`` or ``"ema"`` also the first moment that is kept. Settings are not part of
it: learning rate, decay, betas, policy, groups and their order are this week's.

    save_memory(optimizer, "model/", model)        # model/longtail_memory.safetensors

    optimizer = ContinualAdamW(model.parameters(), lr=5e-4)     # next week, another process
    load_memory(optimizer, "model/", model)

The file is safetensors, 4 bytes a parameter, with ``dtype="bfloat16"`` 2 and with ``dtype="uint8"``
1, the code of ``codes.py`` that ``past_dtype="uint8"`` keeps in memory too. Its metadata say in
JSON what made it. Under any policy the file has one meaning, an estimate of :math:`E[g^2]` over c
steps: for ``second_moment="ema"`` the moving average is divided by :math:`1 - \beta_2^c` when it is
saved and multiplied by it when it is loaded.
"""

from __future__ import annotations

import json
import os
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.optim.optimizer import _get_scalar_dtype

from longtail.names import __version__
from longtail.optim import codes
from longtail.optim.continual_adam import ContinualAdam
from longtail.optim.past import CODED, past_dtype_of
from longtail.optim.state import Settings, fold, gather, is_averaged, state_dtype
from longtail.optim.wrappers import required
from longtail.support.growth import check_growth, fit, resized
from longtail.support.param_names import Renaming, aliases_of
from longtail.support.tensor_file import (
    DAMAGED,
    Entry,
    Header,
    TensorFileError,
    counted,
    not_finite,
    read_header,
    read_tensor,
    verify,
    write_tensors,
)

FILE_NAME = "longtail_memory.safetensors"
FORMAT = "longtail memory"
VERSION = 1
SECOND, FIRST_OF_TASKS, FIRST_MOVING = "past_exp_avg_sq", "past_exp_avg", "exp_avg"
_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "uint8": torch.uint8}


class Change(NamedTuple):
    """A parameter, with its shape in the file and in the model; None where it is not there."""

    name: str
    saved: tuple[int, ...] | None
    shape: tuple[int, ...] | None

    def __str__(self) -> str:
        shapes = [_by(shape) for shape in (self.saved, self.shape) if shape is not None]
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
        past = f"{_count(self.tasks, 'task')}, {_count(self.steps, 'step')}"
        return f"memory of {past} from {self.path}: {', '.join(counts)}"


class Record(NamedTuple):
    """What the header says of a parameter."""

    names: tuple[str, ...]
    shape: tuple[int, ...]
    steps: int
    tasks: int


def memory_path(path: str | os.PathLike[str]) -> Path:
    """The file of a memory: ``path`` itself if it ends in .safetensors, else in that folder."""
    path = Path(path)
    return path if path.suffix == ".safetensors" else path / FILE_NAME


def save_memory(
    optimizer: Any,
    path: str | os.PathLike[str],
    model: nn.Module | None = None,
    *,
    dtype: torch.dtype | str | None = None,
    names: Renaming | None = None,
) -> Path:
    """Write what the optimizer remembers, by parameter name.

    In the middle of a task this writes what :meth:`~longtail.ContinualAdam.end_task` would leave,
    and leaves the optimizer as it is. Where several processes train one model, all of them call it
    (sharded parameters are gathered one by one) and the first one writes.

    Args:
        optimizer: a Continual Adam, or a wrapper around one.
        path: a file that ends in ``.safetensors``, or a folder, which may be made, in which the
            file is ``longtail_memory.safetensors``.
        model: whose parameters the optimizer has; may be left out for an optimizer that was made
            from ``model.named_parameters()``.
        dtype: ``"float32"``, ``"bfloat16"`` or ``"uint8"`` (a code of the logarithm, within 12% of
            v; first moments, which have signs, are then bfloat16). By default as it is in memory:
            as ``past_dtype`` says, and float32 for the rest, but for float64 parameters.
        names: a mapping or function that renames parameters, once the prefixes of DDP,
            ``torch.compile``, FSDP and PEFT are gone.

    Returns:
        The path of the file.

    Example:
        >>> import tempfile, torch
        >>> from longtail import ContinualAdamW, load_memory, save_memory
        >>> model = torch.nn.Linear(2, 1)
        >>> optimizer = ContinualAdamW(model.parameters())
        >>> _ = model(torch.ones(1, 2)).backward(), optimizer.step(), optimizer.end_task()
        >>> folder = tempfile.mkdtemp()
        >>> save_memory(optimizer, folder, model).name
        'longtail_memory.safetensors'
        >>> later = ContinualAdamW(model.parameters(), lr=5e-4)
        >>> load_memory(later, folder, model, quiet=True).tasks
        1
    """
    inner = required(optimizer, "save_memory()")
    target = memory_path(path)
    stored = _stored_dtype(dtype)
    aliases = aliases_of(inner, model, names)
    records, entries, sources = _plan(inner, aliases, stored)
    metadata = {
        "format": FORMAT,
        "version": str(VERSION),
        "memory": json.dumps(_described(inner, records, entries)),
    }

    def tensor_of(key: str) -> Tensor:
        kind, _, name = key.partition("/")
        parameter, group = sources[name]
        whole = _real(_whole(_kept(kind, parameter, inner.state[parameter], group)))
        if (wrong := _complaint(key, whole)) is not None:
            raise ValueError(f"Cannot save {target}: {key} {wrong}")
        return _converted(whole, entries[key].dtype)

    _warn_of_accidents(target, records)
    sharded = any(map(_is_sharded, aliases))
    if _rank() == 0:
        _write(target, entries, metadata, tensor_of)
    elif sharded:  # gathering takes all processes, and so all of them stop at the same tensor
        for key in entries:
            tensor_of(key)
    if sharded:
        dist.barrier()
    return target


def load_memory(
    optimizer: Any,
    path: str | os.PathLike[str],
    model: nn.Module | None = None,
    *,
    names: Renaming | None = None,
    grow: str = "mean",
    strict: bool = True,
    quiet: bool = False,
) -> MemoryReport:
    """Give the optimizer a past that `save_memory` wrote, and leave its settings as they are.

    Parameters that the file does not know start without a past. One that differs from the file's
    in the size of one dimension (more tokens, more classes) keeps the rows that it shares with it,
    which are the first ones; ``grow`` fills the others.

    Args:
        optimizer: a Continual Adam, or a wrapper around one.
        path: as for `save_memory`.
        model: as for `save_memory`.
        names: a mapping or function from the model's names to the file's.
        grow: ``"mean"`` gives new rows the mean of the old ones, ``"zero"`` no past. A row with
            v_c = 0 takes sqrt((t + c) / t) times Adam's step, unless the policy is ``"task_seen"``.
        strict: raise for a parameter whose shape fits in no such way; otherwise it starts without
            a past.
        quiet: do not print the report.

    Returns:
        What was loaded, new, grown, shrunk and dropped.

    Raises:
        FileNotFoundError: if there is no such file.
        ValueError: for a file that is none of ours, cut off or of a newer version, or that does
            not fit; nothing has been loaded then.
    """
    check_growth(grow)
    inner = required(optimizer, "load_memory()")
    aliases = aliases_of(inner, model, names)
    target = memory_path(path)
    try:
        with open(target, "rb", buffering=0) as file:
            loading = _Loading.of(target, file, read_header(file, FORMAT), grow)
            chosen = loading.match(aliases, strict=strict)
            loading.check(inner, chosen)
            verify(file, loading.header, _complaint)
            loading.into(inner, chosen)
    except FileNotFoundError:
        raise FileNotFoundError(
            f"There is no memory at {target}; save_memory() makes one"
        ) from None
    except OSError as error:
        raise ValueError(f"Cannot load {target}: {error.strerror}") from None
    except TensorFileError as error:
        raise ValueError(f"Cannot load {target}: {error}") from None
    if not quiet and _rank() == 0:
        print(loading.report)
    return loading.report


def remembered(path: str | os.PathLike[str]) -> tuple[int, int]:
    """How many tasks and steps a memory holds; 0 and 0 where there is none that can be read."""
    try:
        with open(memory_path(path), "rb") as file:
            header = read_header(file, FORMAT)
        memory = json.loads(header.metadata["memory"])
        steps = [counted(record["steps"]) for record in memory["parameters"].values()]
        return counted(memory["tasks"]), max(steps, default=0)
    except (OSError, *DAMAGED):
        return 0, 0


def _write(
    target: Path,
    entries: dict[str, Entry],
    metadata: dict[str, str],
    tensor_of: Callable[[str], Tensor],
) -> None:
    if target.is_dir():
        raise ValueError(f"Cannot save {target}: it is a folder")
    target.parent.mkdir(parents=True, exist_ok=True)
    write_tensors(target, entries, metadata, tensor_of)


def _complaint(key: str, values: Tensor) -> str | None:
    """What a memory cannot hold, as a sentence goes on after the tensor's name."""
    wrong = not_finite(values)
    if wrong is None and key.startswith(f"{SECOND}/") and values.numel() and values.min() < 0:
        return "is negative, and an average of squares is not"
    return wrong


def _warn_of_accidents(target: Path, records: dict[str, Record]) -> None:
    """One warning where a save is hardly what was meant."""
    if not records:
        warnings.warn(
            f"Nothing is remembered in {target}: the optimizer has taken no step and has no past",
            stacklevel=3,
        )
        return
    own = max((record.tasks, record.steps) for record in records.values())
    there = remembered(target)
    if own < there:
        warnings.warn(
            f"{target} remembers {_count(there[0], 'task')} and {_count(there[1], 'step')}, and is "
            f"replaced by {_count(own[0], 'task')} and {_count(own[1], 'step')}: was load_memory() "
            "left out?",
            stacklevel=3,
        )


def _plan(
    optimizer: ContinualAdam, aliases: dict[Tensor, list[str]], stored: torch.dtype | None
) -> tuple[dict[str, Record], dict[str, Entry], dict[str, tuple[Tensor, dict[str, Any]]]]:
    """What will be in the file: records and entries by name, and where the tensors come from."""
    records: dict[str, Record] = {}
    entries: dict[str, Entry] = {}
    sources: dict[str, tuple[Tensor, dict[str, Any]]] = {}
    for group in optimizer.param_groups:
        states = {p: optimizer.state[p] for p in group["params"] if optimizer.state.get(p)}
        took = any(int(state.get("step", 0)) for state in states.values())
        tasks = int(group["tasks_seen"]) + took
        for parameter, state in states.items():
            steps = int(state.get("step", 0)) + int(state.get("past_steps", 0))
            if not steps:
                continue
            name, *_ = names = aliases[parameter]
            records[name] = Record(tuple(names), tuple(parameter.shape), steps, tasks)
            sources[name] = parameter, group
            shape = (*parameter.shape, 2) if parameter.is_complex() else tuple(parameter.shape)
            for kind in _kinds(group):
                dtype = stored or _kept_dtype(kind, parameter, group)
                entries[f"{kind}/{name}"] = Entry(_dtype_of(kind, parameter, dtype), shape)
    return records, entries, sources


def _kinds(group: dict[str, Any]) -> list[str]:
    """What the group's policy keeps beyond a boundary."""
    kinds = [] if group["second_moment"] == "reset" else [SECOND]
    first = {"task": FIRST_OF_TASKS, "ema": FIRST_MOVING}.get(group["first_moment"])
    return kinds + ([first] if first else [])


def _kept(kind: str, parameter: Tensor, state: dict[str, Any], group: dict[str, Any]) -> Tensor:
    """One of the `_kinds` as `end_task` would leave it, without touching the state."""
    steps = int(state.get("step", 0)) + int(state.get("past_steps", 0))
    if int(state.get("step", 0)):
        state = _ended(parameter, state, group)
    if kind == SECOND and group["second_moment"] == "ema":
        return state["exp_avg_sq"] / (1 - float(group["betas"][1]) ** steps)
    kept = state.get(kind)
    return torch.zeros_like(parameter, dtype=state_dtype(parameter)) if kept is None else kept


def _kept_dtype(kind: str, parameter: Tensor, group: dict[str, Any]) -> torch.dtype | None:
    """That of v_c where it is kept in fewer bytes than the other moments."""
    if kind != SECOND or not is_averaged(group["second_moment"]):
        return None
    dtype = past_dtype_of(group["past_dtype"], state_dtype(parameter))
    return dtype if dtype in CODED else None


def _ended(parameter: Tensor, state: dict[str, Any], group: dict[str, Any]) -> dict[str, Any]:
    """A copy of a parameter's state in which the task has ended."""
    state = {key: x.clone() if isinstance(x, Tensor) else x for key, x in state.items()}
    settings = Settings.of(group, decoupled_weight_decay=False)
    with torch.no_grad():
        for tensors, draws in gather({parameter: state}, group):
            fold(tensors, settings, draws)
    return state


def _described(
    optimizer: ContinualAdam, records: dict[str, Record], entries: dict[str, Entry]
) -> dict[str, Any]:
    """The JSON of the header: what is remembered, and what made it."""
    settings = ("lr", "betas", "beta3", "eps", "weight_decay", "first_moment", "second_moment")
    described: dict[str, Any] = {
        "tasks": max((record.tasks for record in records.values()), default=0),
        "parameters": {
            name: {
                "shape": record.shape,
                "steps": record.steps,
                "tasks": record.tasks,
                **({"also": record.names[1:]} if record.names[1:] else {}),
            }
            for name, record in records.items()
        },
        "made_by": {
            "longtail": __version__,
            "torch": torch.__version__,
            "optimizer": type(optimizer).__name__,
            "groups": [
                {key: _plain(group[key]) for key in settings} for group in optimizer.param_groups
            ],
        },
    }
    if any(entry.dtype == torch.uint8 for entry in entries.values()):
        described["code"] = codes.CODE
    return described


@dataclass
class _Loading:
    """A file being loaded."""

    path: Path
    file: IO[bytes]
    header: Header
    grow: str
    memory: dict[str, Any]
    records: dict[str, Record]
    report: MemoryReport = field(init=False)

    @classmethod
    def of(cls, path: Path, file: IO[bytes], header: Header, grow: str) -> _Loading:
        version = header.metadata.get("version", "")
        if version != str(VERSION):
            raise TensorFileError(
                f"it has version {version!r} of the format and this longtail knows {VERSION}; "
                "a newer longtail wrote it"
            )
        try:
            memory = json.loads(header.metadata["memory"])
            records = {
                name: Record(
                    (name, *map(_named, described.get("also", ()))),
                    tuple(described["shape"]),
                    counted(described["steps"]),
                    counted(described["tasks"]),
                )
                for name, described in memory["parameters"].items()
            }
            counted(memory["tasks"])
            _check_code(memory.get("code", codes.CODE))
        except DAMAGED:
            raise TensorFileError("its description is damaged") from None
        return cls(path, file, header, grow, memory, records)

    def match(
        self, aliases: dict[Tensor, list[str]], *, strict: bool
    ) -> dict[Tensor, tuple[str, Record]]:
        """Which record each parameter gets; writes the report on the way."""
        by_name = {alias: name for name, record in self.records.items() for alias in record.names}
        chosen: dict[Tensor, tuple[str, Record]] = {}
        changes: dict[str, list[Change]] = {kind: [] for kind in ("loaded", "new", "grown")}
        changes |= {"shrunk": [], "dropped": []}
        used: set[str] = set()
        for parameter, names in aliases.items():
            shape = tuple(parameter.shape)
            name = next((by_name[alias] for alias in names if alias in by_name), None)
            if name is None:
                changes["new"].append(Change(names[0], None, shape))
                continue
            record = self.records[name]
            change = Change(names[0], record.shape, shape)
            how = fit(record.shape, shape)
            if how is None:
                if strict:
                    raise ValueError(
                        f"Cannot load {self.path}: {names[0]} has shape {_by(record.shape)} in "
                        f"the file and {_by(shape)} in the model (strict=False leaves it out)"
                    )
                changes["new"].append(change)
                continue
            used.add(name)
            chosen[parameter] = name, record
            changes[how].append(change)
        self._check_overlap(aliases, used, strict=strict)
        for name, record in self.records.items():
            if name not in used:
                changes["dropped"].append(Change(name, record.shape, None))
        steps = max((record.steps for record in self.records.values()), default=0)
        found: dict[str, Any] = {key: tuple(value) for key, value in changes.items()}
        self.report = MemoryReport(self.path, int(self.memory["tasks"]), steps, **found)
        return chosen

    def _check_overlap(
        self, aliases: dict[Tensor, list[str]], used: set[str], *, strict: bool
    ) -> None:
        if strict and self.records and aliases and not used:
            ours, theirs = next(iter(aliases.values()))[0], next(iter(self.records))
            raise ValueError(
                f"Cannot load {self.path}: none of its {len(self.records)} names is one of the "
                f"model's; the first is {theirs!r} there and {ours!r} here (names= renames)"
            )

    def check(self, optimizer: ContinualAdam, chosen: Mapping[Tensor, tuple[str, Record]]) -> None:
        """Raise where the file lacks what this week's policy averages over, or has other shapes."""
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                if parameter not in chosen:
                    continue
                name, record = chosen[parameter]
                wanted = (*record.shape, 2) if parameter.is_complex() else record.shape
                for kind in _kinds(group):
                    entry = self.header.entries.get(f"{kind}/{name}")
                    if entry is not None and entry.shape != wanted:
                        raise ValueError(
                            f"Cannot load {self.path}: {kind}/{name} is {_by(entry.shape)} there "
                            f"and not {_by(wanted)}"
                        )
                    if kind != FIRST_MOVING and entry is None:
                        setting = "second_moment" if kind == SECOND else "first_moment"
                        raise ValueError(
                            f"Cannot load {self.path}: {setting}={group[setting]!r} needs a past "
                            f"that was not kept; it was saved under another {setting}"
                        )

    def into(self, optimizer: ContinualAdam, chosen: Mapping[Tensor, tuple[str, Record]]) -> None:
        """Put the past into the optimizer's state, in place where it has one."""
        for group in optimizer.param_groups:
            tasks = [
                record.tasks
                for parameter in group["params"]
                if parameter in chosen
                for record in [self._restore(optimizer.state[parameter], parameter, group, chosen)]
            ]
            if tasks:
                group["tasks_seen"].fill_(max(tasks))

    def _restore(
        self,
        state: dict[str, Any],
        parameter: Tensor,
        group: dict[str, Any],
        chosen: Mapping[Tensor, tuple[str, Record]],
    ) -> Record:
        name, record = chosen[parameter]
        kinds = _kinds(group)
        for kind in kinds:
            entry = self.header.entries.get(f"{kind}/{name}")
            if entry is None:
                continue
            dtype = _kept_dtype(kind, parameter, group) or state_dtype(parameter)
            if kind == SECOND and group["second_moment"] == "ema":
                loaded = self._tensor(entry, parameter, dtype, state.get("exp_avg_sq"))
                state["exp_avg_sq"] = loaded.mul_(1 - float(group["betas"][1]) ** record.steps)
            else:
                state[kind] = self._tensor(entry, parameter, dtype, state.get(kind))
        # A policy that keeps nothing has no past to weigh; its tasks are counted all the same.
        steps = float(record.steps) if kinds else 0.0
        if isinstance(state.get("past_steps"), Tensor):
            state["past_steps"].fill_(steps)
        else:  # the first step makes what is still missing, and moves the count beside its own
            state["past_steps"] = torch.tensor(steps, dtype=_get_scalar_dtype())
        return record

    def _tensor(
        self, entry: Entry, parameter: Tensor, dtype: torch.dtype, target: Tensor | None
    ) -> Tensor:
        """A tensor of the file like the parameter, in ``target`` if that is there."""
        wanted = (*parameter.shape, 2) if parameter.is_complex() else tuple(parameter.shape)
        if target is not None and target.dtype != dtype:  # ``past_dtype`` was set since
            target = None
        code = self.memory.get("code", {})
        ours = entry.dtype != torch.uint8 or code == codes.CODE
        plain = not _is_sharded(parameter) and parameter.device.type == "cpu"
        direct = plain and ours and entry.dtype == dtype and entry.shape == wanted
        if direct and target is None and _is_contiguous(parameter):
            target = torch.empty(parameter.shape, dtype=dtype)
        if direct and target is not None and target.is_contiguous():
            read_tensor(self.file, entry, _real(target))
            return target
        value = read_tensor(self.file, entry)
        if entry.dtype == torch.uint8:
            value = codes.decode(value, **code)
        real = torch.float64 if dtype in (torch.float64, torch.complex128) else torch.float32
        value = resized(value.to(real), wanted, self.grow)
        if parameter.is_complex():
            value = torch.view_as_complex(value.contiguous())
        return _placed(
            codes.encode(value) if dtype == torch.uint8 else value, parameter, dtype, target
        )


def _named(value: Any) -> str:
    """A name of a parameter that a file has."""
    if not isinstance(value, str):
        raise TypeError(f"{value!r} is no name")
    return value


def _check_code(code: Any) -> None:
    """Refuse what cannot be the code of a file's bytes, with which `codes.decode` is called."""
    if not isinstance(code, dict) or code.keys() != codes.CODE.keys():
        raise ValueError("it names no code that is known")
    for value in code.values():
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < 1e4:
            raise ValueError(f"{value!r} is no number of a code")


def _placed(value: Tensor, parameter: Tensor, dtype: torch.dtype, target: Tensor | None) -> Tensor:
    """The value in ``target``, or in a new tensor laid out (and sharded) like the parameter."""
    if _is_sharded(parameter):
        from torch.distributed.tensor import DTensor, distribute_tensor

        assert isinstance(parameter, DTensor)
        mesh, placements = parameter.device_mesh, parameter.placements
        value = value.to(parameter.device)
        value = distribute_tensor(value, mesh, placements, src_data_rank=None)
    if target is None:
        target = torch.empty_like(parameter, dtype=dtype, requires_grad=False)
    return target.detach().copy_(value)


def _converted(value: Tensor, dtype: torch.dtype) -> Tensor:
    value = value.detach().cpu().contiguous()
    if value.dtype == torch.uint8:
        return value if dtype == torch.uint8 else codes.decode(value).to(dtype)
    return codes.encode(value) if dtype == torch.uint8 else value.to(dtype)


def _dtype_of(kind: str, parameter: Tensor, stored: torch.dtype | None) -> torch.dtype:
    if stored is None:
        own = state_dtype(parameter)
        return torch.float64 if own in (torch.float64, torch.complex128) else torch.float32
    return torch.bfloat16 if stored == torch.uint8 and kind != SECOND else stored


def _stored_dtype(dtype: torch.dtype | str | None) -> torch.dtype | None:
    if dtype is None:
        return None
    chosen = _DTYPES.get(str(dtype).removeprefix("torch."))
    if chosen is None:
        known = ", ".join(map(repr, _DTYPES))
        raise ValueError(f"Invalid dtype: {dtype}, must be one of {known}")
    return chosen


def _is_sharded(tensor: Tensor) -> bool:
    return hasattr(tensor, "full_tensor")


def _whole(tensor: Tensor) -> Tensor:
    return tensor.full_tensor() if _is_sharded(tensor) else tensor  # type: ignore[attr-defined]


def _real(tensor: Tensor) -> Tensor:
    return torch.view_as_real(tensor) if tensor.is_complex() else tensor


def _is_contiguous(tensor: Tensor) -> bool:
    return tensor.is_contiguous() and tensor.layout == torch.strided


def _rank() -> int:
    return dist.get_rank() if dist.is_available() and dist.is_initialized() else 0


def _plain(value: Any) -> Any:
    """A setting as JSON has it."""
    if isinstance(value, Tensor):
        return float(value)
    return [float(x) for x in value] if isinstance(value, tuple) else value


def _by(shape: tuple[int, ...]) -> str:
    return "x".join(map(str, shape)) if shape else "()"


def _count(n: int, what: str) -> str:
    return f"{n:,} {what}{'' if n == 1 else 's'}"
