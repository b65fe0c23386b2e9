"""A fused step without the lists: as long as only values and gradients' addresses have changed.

With small models Python is the slowest part of a step, so a group remembers what its last step
found (`longtail.optim.cuda.remembered`). Several groups of small models are stepped in one launch.
"""

from typing import Any

import torch
from torch import Tensor
from torch.autograd.graph import increment_version

from longtail.optim.cuda.group_plan import FEW, GroupPlan
from longtail.optim.cuda.launch import current_stream
from longtail.optim.cuda.plan import Plan
from longtail.optim.cuda.remembered import Group, MakePlan, Warm
from longtail.optim.cuda.scalars import (
    end_floats,
    end_policy,
    end_rules,
    step_floats,
    step_policy,
)
from longtail.optim.state import check_shapes

Cache = dict[Any, Any]

_STREAMS = 4  # on which the steps of one optimizer are remembered


def fast_step(optimizer: Any, group: Group, cache: Cache) -> bool:
    """Step a group that `step_` has stepped before; False if it has to do so again."""
    warm = _warm(optimizer, group, cache)
    gradients = None if warm is None else warm.gradients()
    if warm is None or gradients is None:
        return False
    if not any(gradients):
        return True
    scale = getattr(optimizer, "grad_scale", None)
    found_inf = getattr(optimizer, "found_inf", None)
    lr = group["lr"]
    rate = lr if isinstance(lr, Tensor) and lr.is_cuda else None
    for scalar in (rate, scale, found_inf):
        if scalar is not None and scalar.device != warm.plan.device:
            return False
    floats, policy = warm.scalars(group, optimizer._decoupled_weight_decay)
    warm.plan.step(gradients, (rate, scale, found_inf), floats, policy)
    _count_change(warm, gradients)
    return True


def _count_change(warm: Warm, gradients: tuple[int, ...]) -> None:
    """Autograd must notice that parameters it may have saved are no longer the same."""
    stepped = warm.params
    if 0 in gradients:
        stepped = [p for p, address in zip(stepped, gradients, strict=True) if address]
    increment_version(stepped)


def fast_end_task(optimizer: Any, group: Group, cache: Cache) -> bool:
    """End the task of a group and count it in ``tasks_seen``; False if the ordinary way has to."""
    warm = _warm(optimizer, group, cache)
    seen = group["tasks_seen"]
    if warm is None or not isinstance(seen, Tensor) or seen.device != warm.plan.device:
        return False
    policy = end_policy(group["first_moment"], group["second_moment"])
    warm.plan.end_task(seen, end_floats(*group["betas"]), policy)
    return True


def _warm(optimizer: Any, group: Group, cache: Cache) -> Warm | None:
    if group["fused"] is False or not group["params"]:
        return None
    warm = cache.get("warm")
    if warm is not None and warm.holds(optimizer, [group]):
        return warm
    # Groups that never fit are tried at steps 1, 2, 4, 8, ...
    tries = cache["tries"] = cache.get("tries", 0) + 1
    warm = _look(optimizer, [group], Plan) if warm is not None or tries & (tries - 1) == 0 else None
    if warm is not None:
        cache["tries"] = 0
    cache["warm"] = warm
    return warm


def _look(optimizer: Any, groups: list[Group], make: MakePlan) -> Warm | None:
    """What the groups hold now, to be remembered; None if a kernel cannot take it as it is."""
    for group in groups:
        for p in group["params"]:
            check_shapes(p, optimizer.state.get(p, {}))
    return Warm.of(optimizer, groups, make)


def fast_steps(optimizer: Any, cache: Cache) -> bool:
    """Step all groups in one launch; False, with nothing done, if each must have its own."""
    # Groups that never fit one plan are tried at steps 1, 2, 4, 8, ...
    tries = cache["tries"] = cache.get("tries", 0) + 1
    if not cache.get("warm") and tries & (tries - 1):
        return False
    if not _step_all(optimizer, cache):
        cache.pop("warm", None)
        return False
    cache["tries"] = 0
    return True


def fast_end_tasks(optimizer: Any, cache: Cache) -> bool:
    """End the task of all groups in one launch; False, with nothing done, if that cannot be."""
    if not cache.get("warm"):  # nor were their steps one launch
        return False
    groups = optimizer.param_groups
    seen = [group["tasks_seen"] for group in groups]
    warm = _warm_all(optimizer, cache)
    if warm is None or not all(
        isinstance(x, Tensor) and x.device == warm.plan.device and x.dtype is torch.int64
        for x in seen
    ):
        return False
    assert isinstance(warm.plan, GroupPlan)
    rules = [end_rules(group["first_moment"], group["second_moment"]) for group in groups]
    floats = [end_floats(*group["betas"]) for group in groups]
    warm.plan.end_tasks(seen, [(*a, *b) for a, b in zip(floats, rules, strict=True)])
    return True


def _step_all(optimizer: Any, cache: Cache) -> bool:
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
    warm = _warm_all(optimizer, cache)
    gradients = None if warm is None else warm.gradients()
    if warm is None or gradients is None:
        return False
    scale = getattr(optimizer, "grad_scale", None)
    found_inf = getattr(optimizer, "found_inf", None)
    lrs = [group["lr"] for group in groups]
    rates = [lr if isinstance(lr, Tensor) and lr.is_cuda else None for lr in lrs]
    if any(x is not None and x.device != warm.plan.device for x in (*rates, scale, found_inf)):
        return False
    if any(rate is not None and rate.dtype is not torch.float32 for rate in rates):
        return False
    if not any(gradients):
        return True
    floats = [
        step_floats(g["lr"], g["weight_decay"], g["eps"], g["betas"], g["beta3"]) for g in groups
    ]
    flags = zip(first, second, carry, strict=True)
    settings = [(*x, *map(float, y)) for x, y in zip(floats, flags, strict=True)]
    assert isinstance(warm.plan, GroupPlan)
    pointers, policy = (scale, found_inf), (decay[0], maximize[0])
    warm.plan.steps(gradients, rates, settings, pointers, policy)
    _count_change(warm, gradients)
    return True


def _warm_all(optimizer: Any, cache: Cache) -> Warm | None:
    """All groups as one on this stream, if they are small and each was stepped by kernel before."""
    groups = optimizer.param_groups
    if any(
        g["fused"] is False or not g["params"] or "fast" not in optimizer._plan_cache(g)
        for g in groups
    ):
        return None
    device = groups[0]["params"][0].device
    if device.type != "cuda":  # since then the model has been moved
        return None
    # A graph's stream and that of the boundaries take turns.
    known: dict[int, Warm] = cache.setdefault("warm", {})
    stream = current_stream(device)
    warm = known.get(stream)
    if warm is not None and warm.holds(optimizer, groups):
        return warm
    known.pop(stream, None)
    if sum(p.numel() for group in groups for p in group["params"]) > FEW:
        return None
    numbers = [i for i, group in enumerate(groups) for _ in group["params"]]
    warm = _look(
        optimizer, groups, lambda members, kinds: GroupPlan(members, kinds, numbers, len(groups))
    )
    if warm is not None:
        known[stream] = warm
        if len(known) > _STREAMS:
            known.pop(next(iter(known)))
    return warm
