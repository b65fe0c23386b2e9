"""What happens to the optimizer at a task boundary, under each policy.

==============  =========================  =======================================================
policy          Continual Adam(W)          other optimizers
==============  =========================  =======================================================
continual       ``end_task()``             their own ``end_task()`` where they have one; else first
                                           moments start again and second moments are kept
continual_seen  ``end_task()``             refused
kept            nothing                    nothing
new             ``end_task()``, all reset  as they were when new
a function      ``function(optimizer, model, task, **settings)`` and nothing else
==============  =========================  =======================================================

For other optimizers ``first_moment`` and ``second_moment`` of a policy are "reset" or, which keeps
them as they are, "ema": nothing of theirs is averaged over tasks.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import torch

from longtail.names import POLICIES, Policy
from longtail.optim import ContinualAdam, reset
from longtail.optim.other_optimizers import Restarts, end_task_of_other
from longtail.training.cuda_graphs import GraphStep
from longtail.training.optimizer import build_optimizer
from longtail.training.optimizer_class import EndsTasks, HasModes, OptimizerClass, find_function

if TYPE_CHECKING:
    from longtail.training import Run


def policy_for(name: str, chosen: OptimizerClass) -> Policy:
    """The policy of this name, or with the function at `module:function`, for such an optimizer.

    Raises:
        ValueError: there is none, or it asks of the optimizer what that cannot do.
    """
    if ":" in name:
        find_function(name)
        return replace(POLICIES["kept"], name=name, boundary=True, function=name)
    policy = POLICIES[name]
    if chosen.ours or policy.function:
        return policy
    if policy.second_moment == "task_seen":
        raise ValueError(f"policy {name!r} needs Continual Adam, not {chosen.name!r}")
    if policy.second_moment == "task":
        if chosen.moments is None and not issubclass(chosen.kind, EndsTasks):
            raise ValueError(
                f"policy {name!r} does not know the state of {chosen.name!r}: give its "
                "class an end_task() method, or choose kept, new or a function of yours"
            )
        return replace(policy, second_moment="ema", beta3=0.0)
    return policy


def end_task(run: Run, task: int) -> None:
    """Do what the run's policy says, now that `task` is learned."""
    policy, optimizer = run.policies[0], run.optimizer
    if policy.function:
        with torch.no_grad():
            find_function(policy.function)(optimizer, run.model, task, **dict(policy.settings))
    elif not policy.boundary:
        return
    elif isinstance(optimizer, ContinualAdam):
        optimizer.end_task()
    elif policy.first_moment == policy.second_moment == "reset":
        _renew(run)
    elif isinstance(optimizer, EndsTasks):
        optimizer.end_task()
    else:
        first, second = (
            "keep" if moment == "ema" else moment
            for moment in (policy.first_moment, policy.second_moment)
        )
        try:
            end_task_of_other(optimizer, first, second)
        except TypeError as error:
            raise ValueError(f"policy {policy.name!r}: {error}") from None


def _renew(run: Run) -> None:
    """An optimizer as it was when new; where steps are captured, in the tensors they point at."""
    graphs = isinstance(run.take_step, GraphStep)
    if graphs and isinstance(run.optimizer, Restarts):
        run.optimizer.restart(run.parameters)
    elif run.chosen.moments is None:
        parts = run.model, run.policies, run.settings, run.optim, run.seed
        run.optimizer = build_optimizer(*parts)
        run.method.optimizer = run.optimizer
        if isinstance(run.take_step, GraphStep):
            run.take_step = GraphStep(run, run.take_step.graphs.capture)
    elif graphs:
        end_task_of_other(run.optimizer, "reset", "reset")
    else:
        reset(run.optimizer)


def set_mode(run: Run, *, training: bool) -> None:
    """Make the weights those to train, or those to evaluate, where an optimizer has two kinds.

    Going there and back costs a rounding error, so a run does it at fixed places alone.
    """
    if run.chosen.has_modes:
        optimizer = run.optimizer
        assert isinstance(optimizer, HasModes)
        if training:
            optimizer.train()
        else:
            optimizer.eval()
