"""One optimizer step: `update` is its only body, which `step` runs as it is, and `cuda_graphs.py`
captures.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from longtail.methods.base import size_of
from longtail.tasks import Batch, Examples, Outputs
from longtail.training.optimizer import clip_gradients

if TYPE_CHECKING:
    from longtail.training import Run


def step(run: Run, examples: Examples, index: Tensor) -> None:
    """One optimizer step on the rows `index`, in `accumulate` batches where that is asked for."""
    rows, size = index.shape[-1], run.settings.batch_size
    parts = index.split(size, -1) if rows > size else (index,)
    seen = update(run, map(examples.__getitem__, parts), rows if rows > size else None)
    for batch, run.method.outputs in seen:
        run.method.observe(batch)


def update(
    run: Run, batches: Iterable[Batch], rows: int | None = None
) -> list[tuple[Batch, Outputs]]:
    """Move the weights once, along the gradient of the mean loss of some batches.

    Args:
        run: whose weights these are.
        batches: read one after the other.
        rows: how many they have in all, where they are several.

    Returns:
        The batches, each with the outputs that the method saw.
    """
    method, scaler = run.method, run.scaler
    for p in run.parameters:
        p.grad = None
    seen: list[tuple[Batch, Outputs]] = []
    for batch in batches:
        with run.autocast:
            loss = method.loss(batch)
        run.divergence.note(loss)
        if rows is not None:  # every example counts the same, whatever batch it is in
            loss = loss * (size_of(batch) / rows)
        scaler.scale(loss).backward()
        seen.append((batch, method.outputs))
    scaler.unscale_(run.optimizer)
    clip = run.settings.clip
    if clip is not None and method.clips_first:
        clip_gradients(run.model, clip)
    if not scaler.is_enabled() or _finite(run.parameters):  # otherwise the step will be skipped
        method.after_backward()
    if clip is not None and not method.clips_first:
        clip_gradients(run.model, clip)
    scaler.step(run.optimizer)
    scaler.update()
    if run.average is not None:
        run.average.step()
    return seen


def _finite(parameters: list[nn.Parameter]) -> bool:
    grads = [p.grad for p in parameters if p.grad is not None]
    return bool(torch.stack(torch._foreach_norm(grads)).isfinite().all())
