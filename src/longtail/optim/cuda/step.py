"""Continual Adam on CUDA: one Triton launch for all parameters of a group, and one for a boundary.

`CudaKernel.step` and `CudaKernel.end_task` take the lists that every implementation takes. Any mix
of float dtypes and layouts is taken: tensors of other dtypes are another launch, and a tensor that
is not one block of memory like its state (a slice, an expanded gradient) is copied to one and back.

With small models Python is the slowest part of a step, so `CudaKernel.step_again` does without the
lists as long as only values and gradients' addresses have changed: a group remembers what its last
step found (`longtail.optim.cuda.remembered`). `CudaTogether` steps several groups of small models
in one launch. Triton is imported at the first launch.
"""

import functools
import importlib.util
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.graph import increment_version

from longtail.optim.cuda.launch import current_stream
from longtail.optim.cuda.plan import (
    DTYPES,
    FEW,
    GroupPlan,
    Kind,
    Plan,
    end_floats,
    end_policy,
    end_rules,
    flat,
    step_floats,
    step_policy,
    write_back,
)
from longtail.optim.cuda.remembered import Group, Warm
from longtail.optim.past import Draw, draw_of
from longtail.optim.state import Row, Settings, Tensors, is_averaged, is_plain

_KEPT_PLANS = 8
_STREAMS = 4  # on which the steps of all groups of an optimizer are remembered


def available(params: Sequence[Tensor]) -> bool:
    """Whether the kernels can take these parameters on this machine."""
    if not params or not params[0].is_cuda or not _triton_works():
        return False
    device = params[0].device
    return all(is_plain(p) and p.dtype in DTYPES and p.device == device for p in params)


@functools.cache
def _triton_works() -> bool:
    if torch.version.hip or importlib.util.find_spec("triton") is None:
        return False
    try:
        # Builds Triton's own helper, which fails without a C compiler or Python's headers.
        from triton.runtime import driver

        return driver.active.get_current_target().arch >= 80
    except Exception:
        return False


class _PlanKey(NamedTuple):
    """What a plan was made for."""

    stream: int
    addresses: tuple[int, ...]
    kinds: tuple[Kind, ...]
    sizes: tuple[int, ...]


class CudaKernel:
    """The launches for one parameter group."""

    def __init__(self) -> None:
        self._plans: dict[_PlanKey, Plan] = {}  # of the last few lists, the latest last
        self._warm: Warm | None = None
        self._tries = 0

    def step(
        self,
        tensors: Tensors,
        settings: Settings,
        grad_scale: Tensor | None,
        found_inf: Tensor | None,
    ) -> Sequence[int]:
        """One step of all parameters, which share a device; counts it, unless ``found_inf``."""
        if not tensors.params:
            return ()
        s = settings
        members = _members(tensors, s)
        pairs = [flat(x, g) for x, g in zip(members, tensors.grads, strict=True)]
        used = [x for x, _ in pairs]
        plan = self._plan(used, [g.dtype for _, g in pairs])
        plan.step(
            tuple(g.data_ptr() or 1 for _, g in pairs),
            (_on_device(s.lr), grad_scale, found_inf),
            step_floats(s.lr, s.weight_decay, s.eps, (s.beta1, s.beta2), s.beta3),
            step_policy(
                s.first_moment,
                s.second_moment,
                s.weight_decay,
                s.decoupled_weight_decay,
                s.maximize,
            ),
        )
        for original, copy in zip(members, used, strict=True):
            write_back(original, copy)
        increment_version(tensors.params)
        return ()

    def end_task(self, tensors: Tensors, settings: Settings, draws: Sequence[Draw]) -> Tensor:
        """Fold the moments into the past and count anew; nothing happens where no step was taken.

        Whether one was taken anywhere is on the device.
        """
        took = torch.stack(tensors.steps).amax() > 0
        members = [x._replace(param=None) for x in _members(tensors, settings)]
        used = [flat(x, x.exp_avg)[0] for x in members]
        plan = self._plan(used, [x.exp_avg.dtype for x in used])
        policy = end_policy(settings.first_moment, settings.second_moment)
        plan.end_task(list(draws), None, end_floats(settings.beta1, settings.beta2), policy)
        for original, copy in zip(members, used, strict=True):
            write_back(original, copy)
        return took

    def step_again(self, optimizer: Any, group: Group) -> bool:
        """Step a group that `step` has stepped before; False if it has to do so again."""
        warm = self._remembered(optimizer, group)
        gradients = None if warm is None else warm.gradients()
        if warm is None or gradients is None:
            return False
        if not any(gradients):
            return True
        scale = getattr(optimizer, "grad_scale", None)
        found_inf = getattr(optimizer, "found_inf", None)
        rate = _on_device(group["lr"])
        for scalar in (rate, scale, found_inf):
            if scalar is not None and scalar.device != warm.plan.device:
                return False
        floats, policy = warm.scalars(group, optimizer._decoupled_weight_decay)
        warm.plan.step(gradients, (rate, scale, found_inf), floats, policy)
        _count_change(warm, gradients)
        return True

    def end_task_again(self, optimizer: Any, group: Group) -> bool:
        """End the task of a group and count it; False if the ordinary way has to."""
        warm = self._remembered(optimizer, group)
        seen = group["tasks_seen"]
        if warm is None or not isinstance(seen, Tensor) or seen.device != warm.plan.device:
            return False
        policy = end_policy(group["first_moment"], group["second_moment"])
        warm.plan.end_task(_draws([group]), seen, end_floats(*group["betas"]), policy)
        return True

    def together(self) -> "CudaTogether":
        return CudaTogether()

    def _plan(self, members: list[Row], grads: list[torch.dtype]) -> Plan:
        """The plan for these on the current stream, made anew unless it is a recent one."""
        kinds = [Kind.of(x, grad) for x, grad in zip(members, grads, strict=True)]
        key = _PlanKey(
            current_stream(members[0].exp_avg.device),
            tuple(0 if x is None else x.data_ptr() for member in members for x in member),
            tuple(kinds),
            tuple(x.exp_avg.numel() for x in members),
        )
        plan = self._plans.pop(key, None) or Plan(members, kinds)
        self._plans[key] = plan
        if len(self._plans) > _KEPT_PLANS:
            self._plans.pop(next(iter(self._plans)))
        return plan

    def _remembered(self, optimizer: Any, group: Group) -> Warm | None:
        if group["fused"] is False or not group["params"]:
            return None
        warm = self._warm
        if warm is not None and warm.holds(optimizer, [group]):
            return warm
        # Groups that never fit are tried at steps 1, 2, 4, 8, ...
        self._tries += 1
        look = warm is not None or self._tries & (self._tries - 1) == 0
        self._warm = Warm.of(optimizer, [group], Plan) if look else None
        if self._warm is not None:
            self._tries = 0
        return self._warm


class CudaTogether:
    """The launches for all groups of an optimizer, where they are small."""

    def __init__(self) -> None:
        # A graph's stream and that of the boundaries take turns.
        self._warm: dict[int, Warm] = {}
        self._tries = 0

    def step(self, optimizer: Any, known: bool) -> bool:
        """Step all groups in one launch; False, with nothing done, if each must have its own."""
        # Groups that never fit one plan are tried at steps 1, 2, 4, 8, ...
        self._tries += 1
        if not self._warm and self._tries & (self._tries - 1):
            return False
        if not self._step(optimizer, known):
            self._warm = {}
            return False
        self._tries = 0
        return True

    def end_task(self, optimizer: Any, known: bool) -> bool:
        """End the task of all groups in one launch; False, with nothing done, if it cannot be."""
        if not self._warm:  # nor were their steps one launch
            return False
        groups = optimizer.param_groups
        seen = [group["tasks_seen"] for group in groups]
        warm = self._remembered(optimizer, known)
        if warm is None or not all(
            isinstance(x, Tensor) and x.device == warm.plan.device and x.dtype is torch.int64
            for x in seen
        ):
            return False
        assert isinstance(warm.plan, GroupPlan)
        rules = [end_rules(group["first_moment"], group["second_moment"]) for group in groups]
        floats = [end_floats(*group["betas"]) for group in groups]
        ends = [(*a, *b) for a, b in zip(floats, rules, strict=True)]
        warm.plan.end_tasks(_draws(groups), seen, ends)
        return True

    def _step(self, optimizer: Any, known: bool) -> bool:
        groups = optimizer.param_groups
        decoupled = optimizer._decoupled_weight_decay
        first, second, seen, carry, decay, maximize = zip(
            *(
                step_policy(
                    group["first_moment"],
                    group["second_moment"],
                    group["weight_decay"],
                    decoupled,
                    group["maximize"],
                )
                for group in groups
            ),
            strict=True,
        )
        if any(seen) or len(set(decay)) > 1 or len(set(maximize)) > 1:
            return False
        warm = self._remembered(optimizer, known)
        gradients = None if warm is None else warm.gradients()
        if warm is None or gradients is None:
            return False
        scale = getattr(optimizer, "grad_scale", None)
        found_inf = getattr(optimizer, "found_inf", None)
        rates = [_on_device(group["lr"]) for group in groups]
        if any(x is not None and x.device != warm.plan.device for x in (*rates, scale, found_inf)):
            return False
        if any(rate is not None and rate.dtype is not torch.float32 for rate in rates):
            return False
        if not any(gradients):
            return True
        floats = [
            step_floats(g["lr"], g["weight_decay"], g["eps"], g["betas"], g["beta3"])
            for g in groups
        ]
        flags = zip(first, second, carry, strict=True)
        settings = [(*x, *map(float, y)) for x, y in zip(floats, flags, strict=True)]
        assert isinstance(warm.plan, GroupPlan)
        pointers, policy = (scale, found_inf), (decay[0], maximize[0])
        warm.plan.steps(gradients, rates, settings, pointers, policy)
        _count_change(warm, gradients)
        return True

    def _remembered(self, optimizer: Any, known: bool) -> Warm | None:
        """All groups as one on this stream, if they are small and each was stepped by kernel."""
        groups = optimizer.param_groups
        if not known or any(g["fused"] is False or not g["params"] for g in groups):
            return None
        device = groups[0]["params"][0].device
        if device.type != "cuda":  # since then the model has been moved
            return None
        stream = current_stream(device)
        warm = self._warm.get(stream)
        if warm is not None and warm.holds(optimizer, groups):
            return warm
        self._warm.pop(stream, None)
        if sum(p.numel() for group in groups for p in group["params"]) > FEW:
            return None
        numbers = [i for i, group in enumerate(groups) for _ in group["params"]]
        warm = Warm.of(
            optimizer,
            groups,
            lambda members, kinds: GroupPlan(members, kinds, numbers, len(groups)),
        )
        if warm is not None:
            self._warm[stream] = warm
            if len(self._warm) > _STREAMS:
                self._warm.pop(next(iter(self._warm)))
        return warm


def _draws(groups: Sequence[Group]) -> list[Draw]:
    """Where the random bits of each parameter of groups come from."""
    return [draw_of(group, place) for group in groups for place in range(len(group["params"]))]


def _on_device(lr: Any) -> Tensor | None:
    """The learning rate, if it is to be read on the device."""
    return lr if isinstance(lr, Tensor) and lr.is_cuda else None


def _count_change(warm: Warm, gradients: tuple[int, ...]) -> None:
    """Autograd must notice that parameters it may have saved are no longer the same."""
    stepped = warm.params
    if 0 in gradients:
        stepped = [p for p, address in zip(stepped, gradients, strict=True) if address]
    increment_version(stepped)


def _members(tensors: Tensors, settings: Settings) -> list[Row]:
    """Of each parameter what the policies need: no past that is not averaged."""
    rows = tensors.rows()
    if not is_averaged(settings.second_moment):
        rows = [row._replace(past_exp_avg_sq=None) for row in rows]
    if settings.first_moment != "task":
        rows = [row._replace(past_exp_avg=None) for row in rows]
    return rows
