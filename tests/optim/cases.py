"""One table of cases for every way in which a step can be taken.

A case is parameters in groups, with settings, and three tasks of some steps. Parameters are of
several shapes, among them a scalar, an empty one and one that is longer than what a kernel takes
at once; dtypes and layouts are dealt out in turn. Every second element is first moved in the last
task.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from optim.reference import Reference
from torch import Tensor
from torch.nn import Parameter

from longtail import ContinualAdam, ContinualAdamW

SHAPES = ((7, 5), (33,), (), (0, 3), (2, 3, 4, 4), (1, 6), (2051,), (64, 33))
FLOAT, DOUBLE, HALF, BFLOAT = torch.float32, torch.float64, torch.float16, torch.bfloat16
# The largest difference that is allowed, of the largest number in the tensor.
TOLERANCE = {DOUBLE: 1e-11, FLOAT: 1e-5, HALF: 5e-3, BFLOAT: 4e-2}


@dataclass(frozen=True)
class Case:
    """What is trained, and how."""

    settings: dict[str, Any] = field(default_factory=dict)
    kind: type[ContinualAdam] = ContinualAdamW
    groups: tuple[dict[str, Any], ...] = ({},)  # what each has of its own; parameters in turn
    dtypes: tuple[torch.dtype, ...] = (DOUBLE,)
    layouts: tuple[str, ...] = ("plain",)
    gradients: tuple[str, ...] = ("plain",)
    missing: str = "none"
    tasks: tuple[int, ...] = (3, 1, 4)


def policies() -> Iterator[tuple[str, Case]]:
    for first in ("reset", "ema", "task"):
        for second in ("reset", "ema", "task", "task_seen"):
            moments = {"first_moment": first, "second_moment": second, "lr": 0.01}
            yield f"{first} and {second}", Case({**moments, "weight_decay": 0.1})
            yield f"{first} and {second}, float32", Case(moments, ContinualAdam, dtypes=(FLOAT,))


PAPER_AND_OURS = ({}, {"second_moment": "task_seen"}, {"first_moment": "task"})
FOUR = ({}, {"second_moment": "ema"}, {"second_moment": "task_seen"}, {"second_moment": "reset"})
DECAYED = ({"weight_decay": 0.1}, {"weight_decay": 0.0, "lr": 0.003})
CASES: dict[str, Case] = {
    **dict(policies()),
    "an L2 penalty": Case({"weight_decay": 0.1}, ContinualAdam),
    "an L2 penalty, maximized": Case({"weight_decay": 0.1, "maximize": True}, ContinualAdam),
    "decayed, maximized": Case({"weight_decay": 0.1, "maximize": True}),
    "no adjustment": Case({"beta3": 0.0}),
    "betas of zero": Case({"betas": (0.0, 0.5), "beta3": 0.5}),
    "a large eps": Case({"eps": 1e-3, "lr": 1.0}),
    "half precision": Case({"lr": 0.01}, dtypes=(BFLOAT, HALF), groups=PAPER_AND_OURS),
    "all precisions": Case({"weight_decay": 0.1}, dtypes=(FLOAT, DOUBLE, BFLOAT)),
    "layouts": Case(
        {"first_moment": "task"},
        layouts=("transposed", "offset", "gaps", "plain", "channels last"),
        dtypes=(DOUBLE, FLOAT),
    ),
    "gradients that lie in another way": Case(
        layouts=("transposed", "plain", "channels last"),
        gradients=("plain", "transposed", "expanded", "negated"),
        dtypes=(DOUBLE, FLOAT),
    ),
    "gradients that are sometimes missing": Case(missing="some", groups=PAPER_AND_OURS),
    "gradients that come late": Case({"first_moment": "task"}, missing="late"),
    "gradients that end": Case(missing="later", dtypes=(FLOAT, BFLOAT)),
    "decayed and undecayed groups": Case({"lr": 0.01}, groups=DECAYED),
    "decayed and undecayed groups, L2": Case({"lr": 0.01}, ContinualAdam, groups=DECAYED),
    "groups of all kinds": Case(
        {"lr": 0.01},
        groups=({}, {"maximize": True}, {"lr": 0.1, "betas": (0.5, 0.9)}, {"weight_decay": 0.0}),
    ),
    "four policies side by side": Case({"lr": 0.01}, groups=FOUR, missing="some", dtypes=(FLOAT,)),
    "a policy and a precision a group": Case(
        {"lr": 0.01}, groups=PAPER_AND_OURS, dtypes=(FLOAT, BFLOAT, DOUBLE), missing="some"
    ),
}


class Training:
    """A case on a device, beside the paper's algorithm in float64."""

    def __init__(self, case: Case, device: str, **way: Any) -> None:
        self.case = case
        # Operations that read counts from float32 tensors are no better than those.
        self.least = 2e-5 if way.get("capturable") and not way.get("fused") else 0.0
        self.generator = torch.Generator().manual_seed(len(case.groups))
        self.params = [self._parameter(i, device) for i in range(len(SHAPES))]
        groups = [
            {"params": self.params[i :: len(case.groups)], **own}
            for i, own in enumerate(case.groups)
        ]
        self.optimizer = case.kind(groups, **case.settings, **way)
        self.references = [self._reference(p) for p in self.params]

    def _random(self, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        return torch.randn(shape, generator=self.generator, dtype=DOUBLE).to(dtype)

    def _parameter(self, i: int, device: str) -> Parameter:
        case = self.case
        dtype, layout = case.dtypes[i % len(case.dtypes)], case.layouts[i % len(case.layouts)]
        return Parameter(laid_out(self._random(SHAPES[i], dtype).to(device), layout))

    def _reference(self, param: Parameter) -> Reference:
        (group,) = [g for g in self.optimizer.param_groups if any(p is param for p in g["params"])]
        names = ("lr", "beta3", "eps", "weight_decay", "maximize", "first_moment", "second_moment")
        beta1, beta2 = group["betas"]
        decoupled = self.case.kind is ContinualAdamW
        settings = {name: group[name] for name in names}
        return Reference(exact(param), beta1=beta1, beta2=beta2, decoupled=decoupled, **settings)

    def run(self) -> None:
        """All tasks, compared with the reference at the end of each and after its boundary."""
        for task, steps in enumerate(self.case.tasks):
            for step in range(steps):
                self.give_gradients(task, step)
                self.optimizer.step()
            self.compare()
            self.optimizer.end_task()
            for reference in self.references:
                reference.end_task()
            self.compare()

    def give_gradients(self, task: int, step: int) -> None:
        case, last = self.case, len(self.case.tasks) - 1
        for i, (p, reference) in enumerate(zip(self.params, self.references, strict=True)):
            grad = self._random(SHAPES[i], p.dtype)
            if grad.dim():  # such as the embedding of a word that comes up late
                grad.flatten()[::2] *= task == last
            p.grad = None
            if is_missing(case.missing, i, task, step):
                continue
            p.grad = laid_out(grad.to(p.device), case.gradients[i % len(case.gradients)])
            reference.step(exact(p.grad))
            # What a parameter cannot hold is lost in every step.
            rounded = torch.from_numpy(np.asarray(reference.theta)).to(p.dtype)
            reference.theta = exact(rounded)

    def compare(self) -> None:
        for i, (p, r) in enumerate(zip(self.params, self.references, strict=True)):
            close(p, r.theta, max(self.least, TOLERANCE[p.dtype]), f"parameter {i}")
            state = self.optimizer.state.get(p, {})
            wanted = {"exp_avg": r.m, "exp_avg_sq": r.v, "past_exp_avg_sq": r.v_c}
            if "past_exp_avg" in state:
                wanted["past_exp_avg"] = r.m_c
            for name, value in wanted.items() if state else ():
                # An L2 penalty brings the rounding of a half-precision parameter into its moments.
                rough = self.case.kind is ContinualAdam and self.case.settings.get("weight_decay")
                dtype = p.dtype if rough else state[name].dtype
                tolerance = max(self.least, TOLERANCE[dtype])
                close(state[name], value, tolerance, f"{name} of parameter {i}")
            assert float(state.get("step", 0)) == r.t
            assert float(state.get("past_steps", 0)) == r.c


def laid_out(x: Tensor, layout: str) -> Tensor:
    """The same values, in memory in another way; the tensor itself where that makes no sense."""
    if layout == "transposed" and x.dim() == 2:
        return x.t().contiguous().t()
    if layout == "channels last" and x.dim() == 4:
        return x.contiguous(memory_format=torch.channels_last)
    if layout == "gaps" and x.dim():
        return x.new_empty(*x.shape, 2).select(-1, 0).copy_(x)
    if layout == "offset":  # by one element, so that no vector is aligned
        return x.new_empty(x.numel() + 1)[1:].view(x.shape).copy_(x)
    if layout == "expanded" and x.dim():
        return x.flatten()[:1].sum().expand(x.shape)
    return torch._neg_view(-x) if layout == "negated" else x


def is_missing(kind: str, number: int, task: int, step: int) -> bool:
    if kind == "some":
        return (number == 1 and (task == 1 or step == 1)) or (number == 4 and task == 0)
    if kind == "late":
        return number % 2 == 0 and task < 2
    return kind == "later" and number % 2 == 0 and task > 0


def exact(x: Tensor) -> Any:
    return x.detach().double().cpu().numpy()


def close(x: Tensor, wanted: Any, tolerance: float, what: str) -> None:
    value = exact(x)
    scale = float(np.abs(wanted).max(initial=1e-30))
    error = float(np.abs(value - wanted).max(initial=0.0)) / scale
    assert error <= tolerance, f"{what} is off by {error:.1e} of its largest number"
