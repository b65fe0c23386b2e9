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

import os
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import torch
from torch import Tensor, nn
from torch.optim.optimizer import _get_scalar_dtype

from longtail.memory.document import (
    CONTINUAL,
    Change,
    Document,
    MemoryReport,
    Record,
    by,
    count,
    describe,
    is_sharded,
    match,
    memory_path,
    placed,
    rank,
    reading,
    remembered,
    whole,
    write,
)
from longtail.memory.stamp import Stamp, fingerprint
from longtail.optim import codes
from longtail.optim.continual_adam import ContinualAdam
from longtail.optim.state import Settings, fold, gather, is_averaged, state_dtype
from longtail.optim.wrappers import required
from longtail.support.growth import check_growth, resized
from longtail.support.param_names import Renaming, aliases_of
from longtail.support.tensor_file import (
    Entry,
    TensorFileError,
    not_finite,
    read_tensor,
    verify,
)

__all__ = ["Change", "MemoryReport", "load_memory", "save_memory"]

SECOND, FIRST_OF_TASKS, FIRST_MOVING = "past_exp_avg_sq", "past_exp_avg", "exp_avg"
_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "uint8": torch.uint8}


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
    ended = {} if model is None else fingerprint(model, names)
    return save_stamped(inner, target, model, Stamp(ended=ended), dtype=dtype, names=names)


def save_stamped(
    optimizer: ContinualAdam,
    target: Path,
    model: nn.Module | None,
    stamp: Stamp,
    *,
    dtype: torch.dtype | str | None = None,
    names: Renaming | None = None,
) -> Path:
    """`save_memory` with what is known of the week and its weights."""
    stored = stored_dtype(dtype)
    aliases = aliases_of(optimizer, model, names)
    records, entries, sources = _plan(optimizer, aliases, stored)
    tasks = max((record.tasks for record in records.values()), default=0)
    told = describe(CONTINUAL, optimizer, tasks, records)

    def tensor_of(key: str) -> Tensor:
        kind, _, name = key.partition("/")
        parameter, group = sources[name]
        value = _real(whole(_kept(kind, parameter, optimizer.state[parameter], group)))
        if (wrong := _complaint(key, value)) is not None:
            raise ValueError(f"Cannot save {target}: {key} {wrong}")
        return _converted(value, entries[key].dtype)

    if stamp.week is None:
        _warn_of_accidents(target, records)
    sharded = any(map(is_sharded, aliases))
    return write(target, told, stamp, entries, tensor_of, sharded=sharded)


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
    with reading(path) as (document, file):
        if document.policy != CONTINUAL:
            raise TensorFileError(
                f"it is of policy={document.policy!r}, and not what Continual Adam remembers"
            )
        chosen, report = match(document, aliases, strict=strict)
        loading = _Loading(document, file, grow)
        loading.check(inner, chosen)
        verify(file, document.header, _complaint)
        loading.into(inner, chosen)
    if not quiet and rank() == 0:
        print(report)
    return report


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
            f"{target} remembers {count(there[0], 'task')} and {count(there[1], 'step')}, and is "
            f"replaced by {count(own[0], 'task')} and {count(own[1], 'step')}: was load_memory() "
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
    return torch.uint8 if group["past_dtype"] == "uint8" else None


def _ended(parameter: Tensor, state: dict[str, Any], group: dict[str, Any]) -> dict[str, Any]:
    """A copy of a parameter's state in which the task has ended."""
    state = {key: x.clone() if isinstance(x, Tensor) else x for key, x in state.items()}
    settings = Settings.of(group, decoupled_weight_decay=False)
    with torch.no_grad():
        for tensors, draws in gather({parameter: state}, group):
            fold(tensors, settings, draws)
    return state


@dataclass(frozen=True)
class _Loading:
    """A file being loaded."""

    document: Document
    file: IO[bytes]
    grow: str

    def check(self, optimizer: ContinualAdam, chosen: Mapping[Tensor, Record]) -> None:
        """Raise where the file lacks what this week's policy averages over, or has other shapes."""
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                if parameter not in chosen:
                    continue
                record = chosen[parameter]
                wanted = (*record.shape, 2) if parameter.is_complex() else record.shape
                for kind in _kinds(group):
                    entry = self.document.header.entries.get(f"{kind}/{record.name}")
                    if entry is not None and entry.shape != wanted:
                        raise ValueError(
                            f"Cannot load {self.document.path}: {kind}/{record.name} is "
                            f"{by(entry.shape)} there and not {by(wanted)}"
                        )
                    if kind != FIRST_MOVING and entry is None:
                        setting = "second_moment" if kind == SECOND else "first_moment"
                        raise ValueError(
                            f"Cannot load {self.document.path}: {setting}={group[setting]!r} "
                            f"needs a past that was not kept; it was saved under another {setting}"
                        )

    def into(self, optimizer: ContinualAdam, chosen: Mapping[Tensor, Record]) -> None:
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
        chosen: Mapping[Tensor, Record],
    ) -> Record:
        record = chosen[parameter]
        kinds = _kinds(group)
        for kind in kinds:
            entry = self.document.header.entries.get(f"{kind}/{record.name}")
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
        plain = not is_sharded(parameter) and parameter.device.type == "cpu"
        direct = plain and entry.dtype == dtype and entry.shape == wanted
        if direct and target is None and _is_contiguous(parameter):
            target = torch.empty(parameter.shape, dtype=dtype)
        if direct and target is not None and target.is_contiguous():
            read_tensor(self.file, entry, _real(target))
            return target
        value = read_tensor(self.file, entry)
        if entry.dtype == torch.uint8:
            value = codes.decode(value)
        real = torch.float64 if dtype in (torch.float64, torch.complex128) else torch.float32
        value = resized(value.to(real), wanted, self.grow)
        if parameter.is_complex():
            value = torch.view_as_complex(value.contiguous())
        return placed(
            codes.encode(value) if dtype == torch.uint8 else value, parameter, dtype, target
        )


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


def stored_dtype(dtype: torch.dtype | str | None) -> torch.dtype | None:
    if dtype is None:
        return None
    chosen = _DTYPES.get(str(dtype).removeprefix("torch."))
    if chosen is None:
        known = ", ".join(map(repr, _DTYPES))
        raise ValueError(f"Invalid dtype: {dtype}, must be one of {known}")
    return chosen


def _real(tensor: Tensor) -> Tensor:
    return torch.view_as_real(tensor) if tensor.is_complex() else tensor


def _is_contiguous(tensor: Tensor) -> bool:
    return tensor.is_contiguous() and tensor.layout == torch.strided
