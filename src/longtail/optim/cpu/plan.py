"""The compiled CPU step without lists: at 90 k parameters they cost more than the arithmetic.

``fast_step`` keeps the table of addresses from step to step, checks that every tensor is still
where it was, and fills in the gradients only.
"""

from array import array
from itertools import chain
from operator import is_not
from typing import Any, NamedTuple

import torch
from torch import Tensor

from longtail.optim.cpu.build import library
from longtail.optim.cpu.step import Row, Table, as_float, kernel_flags
from longtail.optim.state import KEYS, KEYS_WITH_PAST_FIRST

Group = dict[str, Any]


class _Plan(NamedTuple):
    """A table kept from step to step, and what must still hold for it to be used again."""

    table: Table
    flags: list[int]  # of each group
    params: list[Tensor]
    frozen: list[bool]  # which parameters had no gradient
    strides: list[tuple[int, ...]]
    sizes: list[int]
    dtypes: list[torch.dtype]
    states: list[dict[str, Tensor]]  # of the groups' parameters
    entries: list[Tensor]  # all tensors in them
    tensors: list[Tensor]  # those in the table
    addresses: list[int]


def fast_step(optimizer: Any, group: Group, cache: dict[str, Any]) -> bool:
    """Step a whole group by its plan; False, with nothing done, if the long way must be taken."""
    return _step(optimizer, [group], cache)


def fast_steps(optimizer: Any, cache: dict[str, Any]) -> bool:
    """Step all groups by one plan, in one call; False, with nothing done, if that cannot be."""
    # Groups that never fit one plan are tried at steps 1, 2, 4, 8, ...
    tries = cache["tries"] = cache.get("tries", 0) + 1
    if "plan" not in cache and tries & (tries - 1):
        return False
    if not _step(optimizer, optimizer.param_groups, cache):
        cache.pop("plan", None)
        return False
    cache["tries"] = 0
    return True


def _step(optimizer: Any, groups: list[Group], cache: dict[str, Any]) -> bool:
    if any(group["fused"] is not True for group in groups):
        return False
    flags = [_flags(optimizer, group) for group in groups]
    params = [p for group in groups for p in group["params"]]
    plan: _Plan | None = cache.get("plan")
    grads = None
    if plan is not None and _holds(optimizer, groups, params, plan, flags):
        grads = _gradients(params, plan)
    if plan is None or grads is None:
        plan = cache["plan"] = _make_plan(optimizer, groups, flags)
        grads = None if plan is None else _gradients(params, plan)
        if plan is None or grads is None:
            return False
    scalars = array("d")
    for group in groups:
        beta1, beta2 = group["betas"]
        numbers = (group["lr"], beta1, beta2, group["beta3"], group["eps"], group["weight_decay"])
        scalars.extend(map(float, numbers))
    plan.table.run(
        grads,
        scalars,
        array("i", flags),
        as_float(optimizer.__dict__.get("grad_scale")),
        as_float(optimizer.__dict__.get("found_inf")),
    )
    return True


def fast_end_task(optimizer: Any, group: Group, cache: dict[str, Any]) -> bool:
    """End a group's task by its plan and count it; False, with nothing done, if it cannot."""
    plan: _Plan | None = cache.get("plan")
    flags = _flags(optimizer, group)
    if plan is None and len(optimizer.param_groups) > 1:  # its steps were taken with the others'
        plan = cache["plan"] = _make_plan(optimizer, [group], [flags])
    # A parameter without a gradient now may have had one earlier in the task.
    if plan is None or any(plan.frozen):
        return False
    if not _holds(optimizer, [group], group["params"], plan, [flags]):
        return False
    beta1, beta2 = group["betas"]
    if plan.table.run_end_task(beta1, beta2, flags):
        group["tasks_seen"].add_(1)
    return True


def _flags(optimizer: Any, group: Group) -> int:
    return kernel_flags(
        optimizer._decoupled_weight_decay,
        group["maximize"],
        group["first_moment"],
        group["second_moment"],
    )


def _holds(
    optimizer: Any, groups: list[Group], params: list[Any], plan: _Plan, flags: list[int]
) -> bool:
    """Whether the table still describes the groups.

    Loading, moving or clearing replaces the state's dicts, its tensors or their memory. Comparing
    whole lists keeps the Python per parameter below a microsecond.
    """
    states = _states(optimizer, groups)
    return (
        flags == plan.flags
        and len(params) == len(plan.params)
        and not any(map(is_not, params, plan.params))
        and len(states) == len(plan.states)
        and not any(map(is_not, states, plan.states))
        and sum(map(len, plan.states)) == len(plan.entries)
        and not any(map(is_not, chain.from_iterable(map(dict.values, plan.states)), plan.entries))
        and list(map(Tensor.data_ptr, plan.tensors)) == plan.addresses
    )


def _states(optimizer: Any, groups: list[Group]) -> list[dict[str, Tensor]]:
    """The states of the groups' parameters that have one."""
    found = optimizer.state
    if len(optimizer.param_groups) == len(groups):  # hashing a tensor costs more than a walk
        return list(found.values())
    return [found[p] for group in groups for p in group["params"] if p in found]


def _gradients(params: list[Any], plan: _Plan) -> list[int] | None:
    """The gradients' addresses, or None if they are not of the kind that the plan has."""
    grads = [p.grad for p in params]
    if [g is None for g in grads] != plan.frozen:
        return None
    if len(grads) != plan.table.n:
        grads = [g for g in grads if g is not None]
    try:
        if (
            any(type(g) is not Tensor for g in grads)
            or list(map(Tensor.stride, grads)) != plan.strides
            or list(map(Tensor.numel, grads)) != plan.sizes  # a parameter cut short in place
            or [g.dtype for g in grads] != plan.dtypes
            or any(map(Tensor.is_neg, grads))
        ):
            return None
    except RuntimeError:  # sparse gradients have no strides
        return None
    return list(map(Tensor.data_ptr, grads))


def _make_plan(optimizer: Any, groups: list[Group], flags: list[int]) -> _Plan | None:
    """A plan for all parameters with gradients; None if the kernel cannot take them all."""
    lib = library()
    rows: list[Row] = []
    ends: list[int] = []
    for group in groups:
        found = _rows(optimizer, group)
        if found is None:
            return None
        rows += found
        ends.append(len(rows))
    if lib is None or len({row.param.dtype for row in rows}) != 1:
        return None
    states = list(_states(optimizer, groups))
    params = [p for group in groups for p in group["params"]]
    tensors = [x for row in rows for x in row if x is not None]
    return _Plan(
        table=Table(lib, rows, ends),
        flags=flags,
        params=params,
        frozen=[p.grad is None for p in params],
        strides=[row.param.stride() for row in rows],
        sizes=[row.param.numel() for row in rows],
        dtypes=[row.param.dtype for row in rows],
        states=states,
        entries=[x for state in states for x in state.values()],
        tensors=tensors,
        addresses=[x.data_ptr() for x in tensors],
    )


def _rows(optimizer: Any, group: Group) -> list[Row] | None:
    """The group's parameters that have gradients; None if the kernel cannot take one of them."""
    past_first = group["first_moment"] == "task"
    needed = KEYS_WITH_PAST_FIRST if past_first else KEYS
    rows: list[Row] = []
    for param in group["params"]:
        if param.grad is None:
            continue
        state = optimizer.state.get(param, {})
        if not needed <= state.keys():
            return None
        row = Row(
            param,
            state["exp_avg"],
            state["exp_avg_sq"],
            state["past_exp_avg_sq"],
            state["past_exp_avg"] if past_first else None,
            state["step"],
            state["past_steps"],
        )
        if not row.fits():
            return None
        rows.append(row)
    return rows
