"""DeepSpeed: the memory of an engine, whose optimizer has no parameters with names.

From ZeRO's first stage on an optimizer steps one flat tensor for each of its groups, of which every
process has a part; with bf16 or fp16 weights it steps float32 copies. Here the state of those
is put together by the model's own parameters and then saved, or loaded and cut up again. Copy this
file beside your script:

    from deepspeed_memory import load_memory, save_memory

    engine, optimizer, _, _ = deepspeed.initialize(model=model, optimizer=ContinualAdamW(...))
    load_memory(engine, "model/")
    ...
    longtail.end_task(optimizer)
    save_memory(engine, "model/")

All processes call them. The file is the one that `longtail.save_memory` writes for a plain model,
and loads there. ``longtail.end_task`` needs nothing of this: state is elementwise.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor

from longtail.memory import MemoryReport
from longtail.memory import load_memory as load_plain
from longtail.memory import save_memory as save_plain
from longtail.optim import ContinualAdam
from longtail.optim.wrappers import required


class Piece(NamedTuple):
    """Where a part of a model's parameter lies in what the optimizer steps; all elements flat."""

    parameter: Tensor
    stepped: Tensor
    start_in_parameter: int
    start_in_stepped: int
    numel: int  # 0 where no part of it is with this process


def save_memory(engine: Any, path: str | os.PathLike[str], **settings: Any) -> Path:
    """`longtail.save_memory` for a DeepSpeed engine of stage 0, 1 or 2.

    Args:
        engine: of ``deepspeed.initialize``.
        path: of the file, or its folder.
        settings: see `longtail.save_memory`.
    """
    inner = required(engine, "save_memory()")
    whole = _unflattened(inner, pieces_of(engine, inner))
    written = save_plain(whole, path, engine.module, **settings)
    if dist.is_initialized():
        dist.barrier()
    return written


def load_memory(engine: Any, path: str | os.PathLike[str], **settings: Any) -> MemoryReport:
    """`longtail.load_memory` for a DeepSpeed engine of stage 0, 1 or 2, before its first step.

    Args:
        engine: of ``deepspeed.initialize``.
        path: of the file, or its folder.
        settings: see `longtail.load_memory`.

    Raises:
        ValueError: also where parameters that DeepSpeed steps as one tensor, and so with one count
            of steps, have pasts of different lengths. Parameter groups keep them apart.
    """
    inner = required(engine, "load_memory()")
    pieces = pieces_of(engine, inner)
    whole = _like(inner, pieces)
    report = load_plain(whole, path, engine.module, **settings)
    _flatten_into(inner, whole, pieces)
    return report


def pieces_of(engine: Any, inner: ContinualAdam) -> list[list[Piece]]:
    """For each group of the optimizer, where its tensors come from in the model."""
    if engine.zero_optimization_stage() > 2:
        raise ValueError(
            f"ZeRO stage {engine.zero_optimization_stage()} also cuts up the weights; the memory "
            "is saved and loaded for stages 0, 1 and 2"
        )
    outer = engine.optimizer
    copies = getattr(outer, "bit16_groups", None) or getattr(outer, "fp16_groups", None)
    groups = [group["params"] for group in inner.param_groups]
    if copies is None:  # the optimizer has the model's own parameters
        copies = groups
    return [
        list(_pieces(list(parameters), stepped))
        for parameters, stepped in zip(copies, groups, strict=True)
    ]


def _pieces(parameters: list[Tensor], stepped: list[Tensor]) -> Iterator[Piece]:
    if len(stepped) == len(parameters) and all(
        a.shape == b.shape for a, b in zip(parameters, stepped, strict=True)
    ):
        for parameter, copy in zip(parameters, stepped, strict=True):
            yield Piece(parameter, copy, 0, 0, parameter.numel())
        return
    (flat,) = stepped
    at = 0
    for parameter in parameters:
        mapping: Any = getattr(parameter, "_hp_mapping", False)
        if mapping is False:  # FP16_Optimizer: one after the other
            yield Piece(parameter, flat, 0, at, parameter.numel())
            at += parameter.numel()
        elif mapping is None:
            yield Piece(parameter, flat, 0, 0, 0)
        else:
            here, there = mapping.lp_fragment_address, mapping.hp_fragment_address
            yield Piece(parameter, flat, here.start, there.start, here.numel)


def _like(inner: ContinualAdam, pieces: list[list[Piece]]) -> ContinualAdam:
    """An optimizer of the same settings over the model's own parameters, without a state."""
    made = type(inner)([{"params": [piece.parameter for piece in group]} for group in pieces])
    for group, original in zip(made.param_groups, inner.param_groups, strict=True):
        group.update({k: v for k, v in original.items() if k not in ("params", "param_names")})
        group["tasks_seen"] = original["tasks_seen"].clone()
    return made


def _unflattened(inner: ContinualAdam, pieces: list[list[Piece]]) -> ContinualAdam:
    """The same optimizer over the model's own parameters, with all of their state."""
    whole = _like(inner, pieces)
    for group in pieces:
        for piece in group:
            whole.state[piece.parameter] = {
                key: value.clone() if value.dim() == 0 else _gathered(piece, value)
                for key, value in inner.state[piece.stepped].items()
            }
    return whole


def _gathered(piece: Piece, value: Tensor) -> Tensor:
    """The parts of all processes; each has zeros where the others have theirs."""
    parameter, _, start, there, numel = piece
    whole = torch.zeros(parameter.numel(), dtype=value.dtype, device=value.device)
    whole[start : start + numel] = value.flatten()[there : there + numel]
    together: Any = getattr(parameter, "_dp_group", None)
    if together is not None:
        dist.all_reduce(whole, group=together)
    return whole.view(parameter.shape)


def _flatten_into(inner: ContinualAdam, whole: ContinualAdam, pieces: list[list[Piece]]) -> None:
    """Give the optimizer what was loaded for the model's own parameters; all of it or nothing."""
    for group in pieces:
        _check_counts(whole, group)
    for group, loaded, original in zip(pieces, whole.param_groups, inner.param_groups, strict=True):
        original["tasks_seen"].copy_(loaded["tasks_seen"])
        for piece in group:
            into = inner.state[piece.stepped]
            _, stepped, start, there, numel = piece
            for key, value in whole.state[piece.parameter].items():
                if value.dim() == 0:
                    into[key] = value.clone()
                    continue
                if key not in into:
                    into[key] = torch.zeros_like(stepped, dtype=value.dtype)
                part = value.flatten()[start : start + numel]
                into[key].view(-1)[there : there + numel] = part.to(stepped.device)


def _check_counts(whole: ContinualAdam, group: list[Piece]) -> None:
    counts: dict[Tensor, int] = {}
    for piece in group:
        count = int(whole.state[piece.parameter].get("past_steps", torch.zeros(())))
        if counts.setdefault(piece.stepped, count) != count:
            raise ValueError(
                f"DeepSpeed steps the parameters of a group as one tensor, and those of one have "
                f"pasts of {counts[piece.stepped]} and of {count} steps: put those that are new "
                "into a group of their own"
            )
