"""The names of methods, policies and metrics, what tables call them, and our version.

This file imports nothing of longtail and no torch, so that reports, the command line and the
training loop can share it. A method's class is registered in `methods/`, under the name here.

==============  ============  =============  =====  ========  ==================================
policy          first_moment  second_moment  beta3  boundary  which is
==============  ============  =============  =====  ========  ==================================
continual       reset         task           0.9    yes       Continual Adam(W)
continual_seen  reset         task_seen      0.9    yes       the same for weights moved before
kept            ema           ema            0      no        one Adam(W), not told about tasks
new             reset         reset          0      yes       a new Adam(W) for each task
==============  ============  =============  =====  ========  ==================================

A policy says what becomes of the optimizer's state at a task boundary, an optimizer is a class. A
policy may also be a function, `module:function`, that is called at every boundary; `function` and
`settings` of `Policy` are then its path and its keyword arguments. What the policies do to other
optimizers than Continual Adam is in `training/boundary.py`.

The paper calls `continual` "with MC" and `new` "without". `continual_seen` gives weights that no
earlier task has moved plain Adam's step, where `continual` averages their past in as zero.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

__all__ = [
    "KEPT",
    "LOGGERS",
    "METHOD_NAMES",
    "METRICS",
    "POLICIES",
    "POLICY_NAMES",
    "WARM_UP",
    "FirstMoment",
    "PastDtype",
    "Policy",
    "SecondMoment",
    "option",
]
__version__ = "0.2.0"

# What tables call a method. Multi-task training is Finetune on the union of all tasks.
METHOD_NAMES = {
    "finetune": "Finetune",
    "ewc": "EWC",
    "ewcpp": "EWC++",
    "reservoir": "Reservoir",
    "derpp": "DER++",
    "agem": "A-GEM",
    "l2": "L2",
    "si": "SI",
    "lwf": "LwF",
    "coma": "CoMA",
    "multitask": "MTL",
}

LOGGERS = ("tensorboard", "wandb", "mlflow")  # tools that a run can be logged to

METRICS = {"RP": "retained", "LP": "learned", "FGT": "forgetting", "BWT": "backward transfer"}

# What becomes of a moment at a task boundary.
FirstMoment = Literal["reset", "ema", "task"]
SecondMoment = Literal["reset", "ema", "task", "task_seen"]
# How the second moments of earlier tasks are kept.
PastDtype = Literal["float32", "uint8"]

WARM_UP = 0.9  # beta3 of the policies that have one


def option(default: Any, text: str) -> Any:
    """A field of a settings dataclass, with the line of help that `--help` shows."""
    return field(default=default, metadata={"help": text})


@dataclass(frozen=True)
class Policy:
    """One policy; `lr_scale` multiplies the learning rate (learning rates in a stack)."""

    name: str
    first_moment: FirstMoment = option(  # noqa: RUF009 (an alias hides the literals)
        "reset", "the first moment at a task boundary"
    )
    second_moment: SecondMoment = option(  # noqa: RUF009
        "task", "the second moment at a task boundary"
    )
    beta3: float = option(WARM_UP, "warm-up at the start of a task, 1 - beta3**t; 0 for none")
    boundary: bool = option(True, "tell the optimizer when a task ends (false: plain Adam)")
    past_dtype: PastDtype = option(  # noqa: RUF009
        "float32", "how the second moments of earlier tasks are kept: 4 bytes each, 2 or 1"
    )
    lr_scale: float = option(1.0, "multiplies the learning rate")
    function: str = option("", "module:function, called at every task boundary")
    settings: tuple[tuple[str, Any], ...] = option((), "keyword arguments of that function")


POLICIES: dict[str, Policy] = {
    policy.name: policy
    for policy in (
        Policy("continual"),
        Policy("continual_seen", second_moment="task_seen"),
        Policy("kept", first_moment="ema", second_moment="ema", beta3=0.0, boundary=False),
        Policy("new", second_moment="reset", beta3=0.0),
    )
}

KEPT = "an Adam that is kept across tasks"  # what a sentence calls the policy `kept`

# What tables call a policy.
POLICY_NAMES = {
    "continual": "Continual AdamW",
    "continual_seen": "Continual AdamW, seen",
    "kept": "AdamW kept",
    "new": "AdamW new",
}
