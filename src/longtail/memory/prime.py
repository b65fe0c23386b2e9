r"""A memory for a model that was trained without one, from a pass over data like its own.

    v_c = 1/n \sum_j g_j^2,        c = count

g_j is the gradient of batch j (``gradients="batch"``), which is what Adam's v is an average of when
training takes batches of that size, or of a single example (``gradients="example"``), the diagonal
of the empirical Fisher information, which is about as many times larger as a batch has examples.
The weights do not move, so these are the gradients at the end of training and not those on the way:
larger gradients of early steps are not in it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from longtail.optim.continual_adam import ContinualAdam
from longtail.optim.past import draw_of, fold_coded, is_coded
from longtail.optim.state import fill, is_averaged, state_dtype
from longtail.optim.wrappers import required
from longtail.support.eval_mode import evaluation_mode


def prime(
    model: nn.Module,
    batches: Iterable[Any],
    loss: Callable[[nn.Module, Any], Tensor],
    optimizer: Any,
    *,
    count: int | None = None,
    gradients: str = "batch",
) -> int:
    """Give the optimizer a past of one more task, as if the model had been trained with it.

    Call it before the first step, and again for other data that should count as another task;
    `longtail.save_memory` writes the result. The model is in evaluation mode during the pass.

    Args:
        model: as it is now; its weights, and the gradients it may have, stay as they are.
        batches: of data like those that should be remembered, in the size that training takes.
        loss: ``loss(model, batch)``, a scalar.
        optimizer: a Continual Adam, or a wrapper around one, with ``second_moment="task"`` or
            ``"task_seen"``.
        count: how many steps of training the past weighs; by default the number of gradients.
        gradients: ``"batch"``, or ``"example"``, which takes every tensor of a batch apart along
            its first dimension and costs as many backward passes as there are examples.

    Returns:
        How many steps the past now weighs.

    Example:
        >>> import torch
        >>> from longtail import ContinualAdamW, prime
        >>> model = torch.nn.Linear(2, 1)
        >>> optimizer = ContinualAdamW(model.parameters())
        >>> batches = [torch.randn(4, 2) for _ in range(3)]
        >>> prime(model, batches, lambda model, x: model(x).square().mean(), optimizer, count=100)
        100
    """
    if gradients not in ("batch", "example"):
        raise ValueError(f"Invalid gradients: {gradients!r}, must be 'batch' or 'example'")
    if count is not None and count < 1:
        raise ValueError(f"Invalid count: {count}, the past weighs at least one step")
    inner = required(optimizer, "prime()")
    _check(inner)
    parameters = [p for group in inner.param_groups for p in group["params"] if p.requires_grad]
    squares = [torch.zeros_like(p, dtype=state_dtype(p)) for p in parameters]
    seen = [False] * len(parameters)
    number = 0
    with evaluation_mode(model), torch.enable_grad():
        for batch in batches:
            for part in [batch] if gradients == "batch" else _examples(batch):
                found = torch.autograd.grad(loss(model, part), parameters, allow_unused=True)
                for i, g in enumerate(found):
                    if g is not None:
                        _add_square(squares[i], g)
                        seen[i] = True
                number += 1
    if not number:
        raise ValueError("Invalid batches: there are none")
    weight = number if count is None else count
    past = {p: v.div_(number) for p, v, any_ in zip(parameters, squares, seen, strict=True) if any_}
    if not past:
        raise ValueError("Invalid loss: it depends on no parameter of the optimizer")
    _include(inner, past, weight)
    return max(int(inner.state[p]["past_steps"]) for p in past)


def _check(optimizer: ContinualAdam) -> None:
    for group in optimizer.param_groups:
        if not is_averaged(group["second_moment"]) or group["first_moment"] == "task":
            raise ValueError(
                "prime() makes a past for second_moment='task' or 'task_seen' and first_moment="
                f"'reset' or 'ema', not {group['second_moment']!r} and {group['first_moment']!r}"
            )
    if any(int(state.get("step", 0)) for state in optimizer.state.values()):
        raise ValueError("prime() comes between tasks: call end_task() first")


def _include(optimizer: ContinualAdam, past: dict[Tensor, Tensor], weight: int) -> None:
    r"""v_c = (n v + c v_c) / (n + c), c = c + n: what a boundary does."""
    with torch.no_grad():
        for group in optimizer.param_groups:
            primed = [(place, p) for place, p in enumerate(group["params"]) if p in past]
            for place, p in primed:
                state = optimizer.state[p]
                step = state.get("step")
                on_device = isinstance(step, Tensor) and step.device.type != "cpu"
                kept = group["past_dtype"]
                fill(p, state, on_device=on_device, past_first=False, past_dtype=kept)
                steps, old = state["past_steps"], state["past_exp_avg_sq"]
                share = weight / (weight + int(steps))
                if is_coded(old):
                    draw = draw_of(group, place)
                    fold_coded([old], [past[p]], [1 - share], [share], [steps], [draw])
                else:
                    old.lerp_(past[p], share)
                steps.add_(weight)
            if primed:
                group["tasks_seen"].add_(1)


def _add_square(total: Tensor, gradient: Tensor) -> None:
    if gradient.is_complex():
        total, gradient = torch.view_as_real(total), torch.view_as_real(gradient)
    gradient = gradient.to(total.dtype)
    total.addcmul_(gradient, gradient)


def _examples(batch: Any) -> Iterable[Any]:
    """The examples of a batch, each as a batch of one."""
    leaves, structure = pytree.tree_flatten(batch)
    sizes = {len(leaf) for leaf in leaves if isinstance(leaf, Tensor)}
    if len(sizes) != 1:
        raise ValueError(f"Invalid batch: its tensors have {sorted(sizes)} rows")
    for i in range(sizes.pop()):
        rows = [leaf[i : i + 1] if isinstance(leaf, Tensor) else leaf for leaf in leaves]
        yield pytree.tree_unflatten(rows, structure)
