"""The state of any optimizer of torch as a file, by parameter name: what AdamW kept goes on with.

    policy="kept"    the state of the last week is this week's, as if the optimizer had never gone
    policy="new"     nothing is kept; the file only says which week and weights it is of

The file is that of a memory (`longtail_memory.safetensors`), so a chain of weeks is looked after
alike whatever its policy. Settings are this week's. Where a parameter has grown, those of its state
that have its shape grow with it, by the rule of `longtail.load_memory`; where the state has other
shapes (Adafactor's rows and columns) that parameter starts anew.
"""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from longtail.memory.document import (
    KEPT,
    NEW,
    Document,
    MemoryReport,
    Record,
    describe,
    is_sharded,
    match,
    placed,
    reading,
    whole,
    write,
)
from longtail.memory.stamp import Stamp
from longtail.optim.wrappers import layers_of
from longtail.support.growth import check_growth, resized
from longtail.support.param_names import Renaming, aliases_of
from longtail.support.tensor_file import (
    DTYPES,
    Entry,
    TensorFileError,
    not_finite,
    read_tensor,
    verify,
)

_PLAIN = (bool, int, float, str, type(None))


def torch_optimizer_in(optimizer: Any) -> Optimizer:
    """The innermost optimizer of torch in the wrappers of frameworks."""
    layers = [layer for layer in layers_of(optimizer) if isinstance(layer, Optimizer)]
    if not layers:
        raise TypeError(f"{type(optimizer).__name__} holds no torch.optim.Optimizer")
    return layers[-1]


def check_state(optimizer: Optimizer) -> None:
    """Raise for a state that no file can hold; it is known after the first step."""
    for state in optimizer.state.values():
        for key, value in state.items():
            fits = value.dtype in DTYPES if isinstance(value, Tensor) else isinstance(value, _PLAIN)
            if not fits:
                raise ValueError(
                    f"policy='kept' cannot save the state of {type(optimizer).__name__}: "
                    f"{key} is a {type(value).__name__}, neither a plain tensor nor a number"
                )


def save_state(
    optimizer: Optimizer,
    target: Path,
    model: nn.Module,
    stamp: Stamp,
    *,
    tasks: int,
    names: Renaming | None = None,
) -> Path:
    """Write all of an optimizer's state."""
    check_state(optimizer)
    aliases = aliases_of(optimizer, model, names)
    records: dict[str, Record] = {}
    values: dict[str, dict[str, Any]] = {}
    tensors: dict[str, Tensor] = {}
    for parameter, known in aliases.items():
        state = optimizer.state.get(parameter)
        if not state:
            continue
        name = known[0]
        steps = int(state.get("step", 0) or 0)
        records[name] = Record(tuple(known), tuple(parameter.shape), steps, tasks)
        values[name] = {key: x for key, x in state.items() if not isinstance(x, Tensor)}
        for key, value in state.items():
            if isinstance(value, Tensor):
                tensors[f"{key}/{name}"] = value
    entries = {key: Entry(value.dtype, tuple(value.shape)) for key, value in tensors.items()}

    def tensor_of(key: str) -> Tensor:
        value = whole(tensors[key]).detach().cpu().contiguous()
        if (wrong := not_finite(value)) is not None:
            raise ValueError(f"Cannot save {target}: {key} {wrong}")
        return value

    told = describe(KEPT, optimizer, tasks, records) | {"values": values}
    sharded = any(map(is_sharded, aliases))
    return write(target, told, stamp, entries, tensor_of, sharded=sharded)


def save_nothing(optimizer: Optimizer, target: Path, stamp: Stamp, *, tasks: int) -> Path:
    """Write which week and weights it is, of an optimizer that is made anew every week."""
    told = describe(NEW, optimizer, tasks, {})
    return write(target, told, stamp, {}, lambda _: torch.empty(0), sharded=False)


def load_state(
    optimizer: Optimizer,
    path: Path,
    model: nn.Module,
    *,
    names: Renaming | None = None,
    grow: str = "mean",
    anew: Collection[str] = (),
) -> MemoryReport:
    """Give the optimizer a state that `save_state` wrote, and leave its settings as they are.

    Parameters whose names are in ``anew`` start without one.
    """
    check_growth(grow)
    aliases = aliases_of(optimizer, model, names)
    with reading(path) as (document, file):
        if document.policy != KEPT:
            raise TensorFileError(f"it is of policy={document.policy!r}, and not 'kept'")
        made = document.told["made_by"].get("optimizer")
        if made != type(optimizer).__name__:
            raise TensorFileError(
                f"it has the state of {made}, and the optimizer is a {type(optimizer).__name__}"
            )
        chosen, report = match(document, aliases, strict=True)
        verify(file, document.header, lambda _, values: not_finite(values))
        keys = _keys(document)
        states: dict[Tensor, dict[str, Any]] = {}
        for parameter, record in chosen.items():
            if record.name in anew:
                continue
            state = dict(document.told["values"][record.name])
            for key in keys.get(record.name, ()):
                value = read_tensor(file, document.header.entries[f"{key}/{record.name}"])
                state[key] = value
            if _grown(state, record, parameter, grow):
                states[parameter] = state
    _put(optimizer, states)
    return report


def _keys(document: Document) -> dict[str, list[str]]:
    """The names of the tensors in each parameter's state."""
    keys: dict[str, list[str]] = {}
    for entry in document.header.entries:
        key, _, name = entry.partition("/")
        keys.setdefault(name, []).append(key)
    return keys


def _grown(state: dict[str, Any], record: Record, parameter: Tensor, grow: str) -> bool:
    """Make a state that of the parameter as it is now; False where that cannot be done."""
    shape = tuple(parameter.shape)
    for key, value in state.items():
        if not isinstance(value, Tensor) or not value.dim():
            continue
        if tuple(value.shape) != record.shape:
            if shape != record.shape:
                return False
            continue
        floating = value.dtype if value.is_floating_point() else torch.float32
        value = resized(value.to(floating), shape, grow).to(value.dtype)
        sharded = is_sharded(parameter)
        state[key] = placed(value, parameter, value.dtype, None) if sharded else value
    return True


def _put(optimizer: Optimizer, states: dict[Tensor, dict[str, Any]]) -> None:
    """Through the optimizer's own door, which knows the device and dtype of each of its tensors."""
    whole_state = optimizer.state_dict()
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    numbers = [i for group in whole_state["param_groups"] for i in group["params"]]
    places = dict(zip(parameters, numbers, strict=True))
    whole_state["state"] = {places[p]: state for p, state in states.items()}
    optimizer.load_state_dict(whole_state)
