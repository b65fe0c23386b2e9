"""``end_task(optimizer)`` and ``reset(optimizer)``: for our optimizers inside the wrappers of
training frameworks, and for other people's optimizers whose state is known by name.
"""

from typing import Any

import torch

from longtail.optim.other_optimizers import StateEdit, end_task_of_other, reset_other
from longtail.optim.wrappers import continual_adam_in


def end_task(
    optimizer: Any, first: str | None = None, second: str | None = None
) -> StateEdit | None:
    """End a task on the Continual Adam found inside ``optimizer``, or on another optimizer.

    Wrappers such as Accelerate's forward ``step`` but no method they do not know, so
    ``optimizer.end_task()`` is out of reach. This follows ``.optimizer`` from wrapper to wrapper
    until it finds one of ours, and calls its :meth:`~longtail.ContinualAdam.end_task`.

    Where there is none, the moments of the optimizer itself are kept or reset: those of
    ``torch.optim``, bitsandbytes, torchao and schedule_free are known. See
    ``other_optimizers.py`` for what becomes of step counts.

    Args:
        optimizer: a :class:`~longtail.ContinualAdam`, anything that holds one, or one of others.
        first: of others, what becomes of averages of gradients: "reset" (default) or "keep".
        second: of others, what becomes of averages of their squares: "keep" (default) or "reset".

    Returns:
        For others, which names of their state were reset and which kept.

    Raises:
        TypeError: for an optimizer whose state is not known; nothing is guessed.
        ValueError: for ``first`` or ``second`` with Continual Adam, which has settings for that.

    Example:
        >>> import torch
        >>> from types import SimpleNamespace
        >>> from longtail import ContinualAdam, end_task
        >>> wrapped = SimpleNamespace(optimizer=ContinualAdam(torch.nn.Linear(2, 1).parameters()))
        >>> end_task(wrapped)
        >>> layer = torch.nn.Linear(2, 1)
        >>> optimizer = torch.optim.AdamW(layer.parameters())
        >>> _ = layer(torch.ones(1, 2)).backward(), optimizer.step()
        >>> print(end_task(optimizer))
        AdamW, 2 parameters: reset exp_avg; kept step, exp_avg_sq
    """
    found = continual_adam_in(optimizer)
    if found is None:
        return end_task_of_other(optimizer, first or "reset", second or "keep")
    if first is not None or second is not None:
        raise ValueError(
            f"{type(found).__name__} has first_moment and second_moment for what becomes of its "
            "moments; first= and second= are for other optimizers"
        )
    found.end_task()
    return None


def reset(optimizer: Any) -> StateEdit:
    """Make an optimizer as it was when new, but for its settings: it forgets all tasks.

    Args:
        optimizer: one of those that :func:`end_task` takes.

    Returns:
        What was forgotten, of how many parameters.
    """
    found = continual_adam_in(optimizer)
    if found is None:
        return reset_other(optimizer)
    names = tuple(dict.fromkeys(name for state in found.state.values() for name in state))
    count = len(found.state)
    with torch.no_grad():
        for state in found.state.values():
            for name, value in state.items():
                if isinstance(value, torch.Tensor):
                    value.zero_()  # in place: graphs and plans point at these
                else:  # a count of steps that an older checkpoint has as a number
                    state[name] = type(value)(0)
        for group in found.param_groups:
            group["tasks_seen"].zero_()
    return StateEdit(type(found).__name__, count, names, ())
