"""The compiled CPU step: one call and one pass over memory for all parameters of a group.

``step_`` takes lists of tensors, as every implementation does. ``fast_step`` skips making those
lists: it keeps the table of addresses from step to step, checks that every tensor is still where
it was, and fills in the gradients only, as at 90 k parameters Python costs more than the
arithmetic.
"""

import ctypes
from array import array
from collections.abc import Callable, Sequence
from itertools import chain
from operator import is_not
from typing import Any, NamedTuple

import torch
from torch import Tensor

from longtail.optim.cpp import library
from longtail.optim.state import KEYS, KEYS_WITH_PAST_FIRST, is_plain

# The flags of fused_cpu.cpp.
_FIRST = {"reset": 0, "ema": 32, "task": 4}
_SECOND = {"reset": 0, "ema": 8, "task": 16}
_DTYPES = (torch.float32, torch.float64)


class _Row(NamedTuple):
    """A parameter and its state; ``past_exp_avg`` is None where it is not used."""

    param: Tensor
    exp_avg: Tensor
    exp_avg_sq: Tensor
    past_exp_avg_sq: Tensor
    past_exp_avg: Tensor | None
    step: Tensor
    past_steps: Tensor

    def fits(self) -> bool:
        """Whether the kernel may see all of it as flat arrays of one dtype."""
        p, *moments, step, past_steps = self
        return (
            is_plain(p)
            and p.dtype in _DTYPES
            and p.layout is torch.strided
            and _is_dense(p)
            and all(
                is_plain(x) and x.is_cpu and x.dtype is p.dtype and x.stride() == p.stride()
                for x in moments
                if x is not None
            )
            and all(
                is_plain(x) and x.is_cpu and x.dtype is torch.float32 for x in (step, past_steps)
            )
        )

    def addresses(self) -> list[int]:
        return [0 if x is None else x.data_ptr() for x in self]


def _is_dense(tensor: Tensor) -> bool:
    """Whether its elements fill their memory without gap or overlap, in whatever order."""
    expected = 1
    sizes = zip(tensor.stride(), tensor.shape, strict=True)
    for stride, size in sorted(pair for pair in sizes if pair[1] != 1):
        if stride != expected:
            return tensor.numel() == 0
        expected *= size
    return True


def _usable(grad: Tensor, param: Tensor, stride: tuple[int, ...]) -> bool:
    return (
        type(grad) is Tensor
        and grad.layout is torch.strided
        and grad.dtype is param.dtype
        and grad.is_cpu
        and grad.stride() == stride
        and not grad.is_neg()
    )


def _flags(decoupled: bool, maximize: bool, first_moment: str, second_moment: str) -> int:
    return decoupled | 2 * maximize | _FIRST[first_moment] | _SECOND[second_moment]


class _Table:
    """The kernel's view of some parameters of one dtype: nine columns, gradients last."""

    def __init__(self, lib: ctypes.CDLL, rows: Sequence[_Row]) -> None:
        is_float = rows[0].param.dtype is torch.float32
        self.step: Callable[..., None] = (
            lib.longtail_step_float if is_float else lib.longtail_step_double
        )
        self.end_task: Callable[..., int] = (
            lib.longtail_end_task_float if is_float else lib.longtail_end_task_double
        )
        self.n = len(rows)
        columns = zip(*(row.addresses() for row in rows), strict=True)
        self.cells = array("q", [x for column in columns for x in column])
        self.cells.extend(row.param.numel() for row in rows)
        self.cells.extend([0] * self.n)
        self.address = self.cells.buffer_info()[0]

    def run(
        self,
        grads: list[int],
        scalars: array,
        flags: int,
        grad_scale: Tensor | None,
        found_inf: Tensor | None,
    ) -> None:
        self.cells[8 * self.n :] = array("q", grads)
        self.step(
            self.n,
            self.address,
            scalars.buffer_info()[0],
            flags,
            None if grad_scale is None else grad_scale.data_ptr(),
            None if found_inf is None else found_inf.data_ptr(),
            torch.get_num_threads(),
        )


def step_(
    cache: dict[str, Any],
    params: list[Tensor],
    grads: list[Tensor],
    exp_avgs: list[Tensor],
    exp_avg_sqs: list[Tensor],
    past_exp_avg_sqs: list[Tensor],
    past_exp_avgs: list[Tensor],
    state_steps: list[Tensor],
    past_steps: list[Tensor],
    *,
    grad_scale: Tensor | None,
    found_inf: Tensor | None,
    lr: float | Tensor,
    beta1: float | Tensor,
    beta2: float | Tensor,
    beta3: float,
    eps: float,
    weight_decay: float,
    decoupled: bool,
    maximize: bool,
    first_moment: str,
    second_moment: str,
) -> list[int]:
    """Step what the kernel can take and return the indices of the rest."""
    lib = library()
    if lib is None:
        return list(range(len(params)))
    pasts: Sequence[Tensor | None] = past_exp_avgs or [None] * len(params)
    rows = [
        _Row(*row)
        for row in zip(
            params,
            exp_avgs,
            exp_avg_sqs,
            past_exp_avg_sqs,
            pasts,
            state_steps,
            past_steps,
            strict=True,
        )
    ]
    scalars = array("d", map(float, (lr, beta1, beta2, beta3, eps, weight_decay)))
    flags = _flags(decoupled, maximize, first_moment, second_moment)
    rest: list[int] = []
    taken: dict[torch.dtype, list[int]] = {}
    for i, row in enumerate(rows):
        if row.fits() and is_plain(grads[i]):
            taken.setdefault(row.param.dtype, []).append(i)
        else:
            rest.append(i)
    for indices in taken.values():
        laid_out = [_like(grads[i], params[i]) for i in indices]
        _Table(lib, [rows[i] for i in indices]).run(
            [g.data_ptr() for g in laid_out],
            scalars,
            flags,
            _float(grad_scale),
            _float(found_inf),
        )
    return rest


def _like(grad: Tensor, param: Tensor) -> Tensor:
    """The gradient in the parameter's memory layout."""
    if _usable(grad, param, param.stride()):
        return grad
    return torch.empty_like(param, requires_grad=False).copy_(grad)


def _float(scalar: Tensor | None) -> Tensor | None:
    return None if scalar is None else scalar.to("cpu", torch.float32)


def end_task_(
    exp_avgs: list[Tensor],
    exp_avg_sqs: list[Tensor],
    past_exp_avg_sqs: list[Tensor],
    past_exp_avgs: list[Tensor],
    state_steps: list[Tensor],
    past_steps: list[Tensor],
    *,
    beta1: float | Tensor,
    beta2: float | Tensor,
    first_moment: str,
    second_moment: str,
) -> bool | None:
    """Whether a step had been taken; None, with nothing done, if the kernel cannot take all."""
    lib = library()
    pasts: Sequence[Tensor | None] = past_exp_avgs or [None] * len(exp_avgs)
    lists = (exp_avgs, exp_avg_sqs, past_exp_avg_sqs, pasts, state_steps, past_steps)
    # The parameter itself is not touched; the first moment stands in for it.
    rows = [_Row(row[0], *row) for row in zip(*lists, strict=True)]
    if lib is None or not all(row.fits() for row in rows):
        return None
    scalars = array("d", map(float, (0.0, beta1, beta2)))
    flags = _flags(False, False, first_moment, second_moment)
    stepped = 0
    for dtype in {row.param.dtype for row in rows}:
        table = _Table(lib, [row for row in rows if row.param.dtype is dtype])
        address = scalars.buffer_info()[0]
        stepped += table.end_task(table.n, table.address, address, flags, torch.get_num_threads())
    return stepped > 0


class _Plan(NamedTuple):
    """A table kept from step to step, and what must still hold for it to be used again."""

    table: _Table
    flags: int
    params: list[Tensor]
    frozen: list[bool]  # which parameters had no gradient
    strides: list[tuple[int, ...]]
    dtypes: list[torch.dtype]
    states: list[dict[str, Tensor]]  # of all parameters of the optimizer
    entries: list[Tensor]  # all tensors in them
    tensors: list[Tensor]  # those in the table
    addresses: list[int]


def fast_step(optimizer: Any, group: dict[str, Any], cache: dict[str, Any]) -> bool:
    """Step a whole group by its plan; False, with nothing done, if the long way must be taken."""
    if group["fused"] is not True:
        return False
    flags = _flags(
        optimizer._decoupled_weight_decay,
        group["maximize"],
        group["first_moment"],
        group["second_moment"],
    )
    plan: _Plan | None = cache.get("plan")
    grads = None if plan is None or plan.flags != flags else _gradients(optimizer, group, plan)
    if plan is None or grads is None:
        plan = cache["plan"] = _make_plan(optimizer, group, flags)
        grads = None if plan is None else _gradients(optimizer, group, plan)
        if plan is None or grads is None:
            return False
    beta1, beta2 = group["betas"]
    scalars = (group["lr"], beta1, beta2, group["beta3"], group["eps"], group["weight_decay"])
    plan.table.run(
        grads,
        array("d", map(float, scalars)),
        flags,
        _float(optimizer.__dict__.get("grad_scale")),
        _float(optimizer.__dict__.get("found_inf")),
    )
    return True


def _gradients(optimizer: Any, group: dict[str, Any], plan: _Plan) -> list[int] | None:
    """The gradients' addresses, or None if anything is not as the plan has it.

    Loading, moving or clearing replaces the state's dicts, its tensors or their memory. Comparing
    whole lists keeps the Python per parameter below a microsecond.
    """
    params, states = group["params"], optimizer.state
    if (
        len(params) != len(plan.params)
        or any(map(is_not, params, plan.params))
        or len(states) != len(plan.states)
        or any(map(is_not, states.values(), plan.states))
        or sum(map(len, plan.states)) != len(plan.entries)
        or any(map(is_not, chain.from_iterable(map(dict.values, plan.states)), plan.entries))
        or list(map(Tensor.data_ptr, plan.tensors)) != plan.addresses
    ):
        return None
    grads = [p.grad for p in params]
    if [g is None for g in grads] != plan.frozen:
        return None
    if len(grads) != plan.table.n:
        grads = [g for g in grads if g is not None]
    try:
        if (
            any(type(g) is not Tensor for g in grads)
            or list(map(Tensor.stride, grads)) != plan.strides
            or [g.dtype for g in grads] != plan.dtypes
            or any(map(Tensor.is_neg, grads))
        ):
            return None
    except RuntimeError:  # sparse gradients have no strides
        return None
    return list(map(Tensor.data_ptr, grads))


def _make_plan(optimizer: Any, group: dict[str, Any], flags: int) -> _Plan | None:
    """A plan for all parameters with gradients; None if the kernel cannot take them all."""
    lib = library()
    past_first = group["first_moment"] == "task"
    needed = KEYS_WITH_PAST_FIRST if past_first else KEYS
    rows: list[_Row] = []
    for param in group["params"]:
        if param.grad is None:
            continue
        state = optimizer.state.get(param, {})
        if not needed <= state.keys():
            return None
        row = _Row(
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
    if lib is None or len({row.param.dtype for row in rows}) != 1:
        return None
    states = list(optimizer.state.values())
    tensors = [x for row in rows for x in row if x is not None]
    return _Plan(
        table=_Table(lib, rows),
        flags=flags,
        params=list(group["params"]),
        frozen=[p.grad is None for p in group["params"]],
        strides=[row.param.stride() for row in rows],
        dtypes=[row.param.dtype for row in rows],
        states=states,
        entries=[x for state in states for x in state.values()],
        tensors=tensors,
        addresses=[x.data_ptr() for x in tensors],
    )
