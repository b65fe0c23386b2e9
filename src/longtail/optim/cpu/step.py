"""The compiled CPU step: one call and one pass over memory for all parameters of a group.

`CpuKernel.step` and `CpuKernel.end_task` take lists of tensors, as every implementation does. At
90 k parameters making them costs more than the arithmetic, so `CpuKernel.step_again` keeps the
table of addresses from step to step, checks that every tensor is still where it was, and fills in
the gradients only. `CpuTogether` does the same for all groups of an optimizer in one call. The
arithmetic is in ``step.cpp``.
"""

import ctypes
from array import array
from collections.abc import Callable, Sequence
from itertools import chain
from operator import attrgetter, is_not
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.graph import increment_version

from longtail.optim.cpu.build import library
from longtail.optim.past import CODED, PAST_DTYPES, Draw, check_past, draw_of
from longtail.optim.state import (
    KEYS,
    KEYS_WITH_PAST_FIRST,
    Row,
    Settings,
    Tensors,
    check_moments,
    is_plain,
)

Group = dict[str, Any]

# The flags of step.cpp.
_FIRST = {"reset": 0, "ema": 32, "task": 4}
_SECOND = {"reset": 0, "ema": 8, "task": 16, "task_seen": 16 | 64}
_PAST = {"float32": 0, "bfloat16": 128, "uint8": 256}
_PAST_FLAGS = {PAST_DTYPES[name]: flag for name, flag in _PAST.items()}
_DTYPES = (torch.float32, torch.float64)
_dtype = attrgetter("dtype")


class CpuKernel:
    """The compiled steps and boundaries of one parameter group."""

    def __init__(self) -> None:
        self._plans = _Planned()

    def step(
        self,
        tensors: Tensors,
        settings: Settings,
        grad_scale: Tensor | None,
        found_inf: Tensor | None,
    ) -> list[int]:
        """Step what the kernel can take and return the indices of the rest."""
        lib = library()
        if lib is None:
            return list(range(len(tensors.params)))
        rows = tensors.rows()
        s = settings
        scalars = array("d", map(float, (s.lr, s.beta1, s.beta2, s.beta3, s.eps, s.weight_decay)))
        flags = _kernel_flags(s.decoupled_weight_decay, s.maximize, s.first_moment, s.second_moment)
        rest: list[int] = []
        taken: dict[tuple[torch.dtype, int], list[int]] = {}
        for i, (row, grad) in enumerate(zip(rows, tensors.grads, strict=True)):
            if _fits(row) and is_plain(grad):
                taken.setdefault((row.exp_avg.dtype, _past_flag(row)), []).append(i)
            else:
                rest.append(i)
        for (_, past), indices in taken.items():
            laid_out = [_like(tensors.grads[i], tensors.params[i]) for i in indices]
            _Table(lib, [rows[i] for i in indices]).step(
                [g.data_ptr() for g in laid_out],
                scalars,
                array("i", [flags | past]),
                _as_float(grad_scale),
                _as_float(found_inf),
            )
        return rest

    def end_task(self, tensors: Tensors, settings: Settings, draws: Sequence[Draw]) -> bool | None:
        """Whether a step had been taken; None, with nothing done, if the kernel cannot take all."""
        lib = library()
        # The parameter itself is not touched; the first moment stands in for it.
        rows = [row._replace(param=row.exp_avg) for row in tensors.rows()]
        if lib is None or not all(map(_fits, rows)):
            return None
        flags = _kernel_flags(False, False, settings.first_moment, settings.second_moment)
        stepped = 0
        kinds: dict[tuple[torch.dtype, int], list[int]] = {}
        for i, row in enumerate(rows):
            kinds.setdefault((row.exp_avg.dtype, _past_flag(row)), []).append(i)
        for (_, past), indices in kinds.items():
            table = _Table(lib, [rows[i] for i in indices])
            chosen = [draws[i] for i in indices]
            stepped += table.end_task(settings.beta1, settings.beta2, flags | past, chosen)
        return stepped > 0

    def step_again(self, optimizer: Any, group: Group) -> bool:
        """Step a whole group by its plan; False, with nothing done, if lists have to be made."""
        return self._plans.step(optimizer, [group])

    def end_task_again(self, optimizer: Any, group: Group) -> bool:
        """End a group's task by its plan and count it; False, with nothing done, if it cannot."""
        stepped = self._plans.end_task(optimizer, group)
        if stepped:
            group["tasks_seen"].add_(1)
        return stepped is not None

    def together(self) -> "CpuTogether":
        return CpuTogether()


class CpuTogether:
    """The compiled steps of all groups of an optimizer, in one call."""

    def __init__(self) -> None:
        self._plans = _Planned()
        self._tries = 0

    def step(self, optimizer: Any, known: bool) -> bool:
        """Step all groups by one plan, in one call; False, with nothing done, if that cannot be."""
        # Groups that never fit one plan are tried at steps 1, 2, 4, 8, ...
        self._tries += 1
        if self._plans.plan is None and self._tries & (self._tries - 1):
            return False
        if not self._plans.step(optimizer, optimizer.param_groups):
            self._plans.plan = None
            return False
        self._tries = 0
        return True

    def end_task(self, optimizer: Any, known: bool) -> bool:
        """False: the compiled boundary takes one group at a time, with that group's settings."""
        return False


class _Plan(NamedTuple):
    """A table kept from step to step, and what must still hold for it to be used again."""

    table: "_Table"
    flags: list[int]  # of each group
    params: list[Tensor]
    frozen: list[bool]  # which parameters had no gradient
    strides: list[tuple[int, ...]]  # of the gradients, as are sizes and dtypes
    sizes: list[int]
    dtypes: list[torch.dtype]
    states: list[dict[str, Tensor]]  # of the groups' parameters
    layouts: "_Layouts"  # of the parameters
    entries: list[Tensor]  # all tensors in `states`
    tensors: list[Tensor]  # those in the table
    addresses: list[int]  # of `tensors`


class _Layouts(NamedTuple):
    """How parameters lie in memory: `p.data = p.data.t()` changes it, but no address."""

    strides: list[tuple[int, ...]]
    shapes: list[torch.Size]
    dtypes: list[torch.dtype]

    @classmethod
    def of(cls, params: list[Any]) -> "_Layouts":
        strides, shapes = list(map(Tensor.stride, params)), list(map(Tensor.size, params))
        return cls(strides, shapes, list(map(_dtype, params)))


class _Planned:
    """Steps and boundaries by a plan, which is made anew when it no longer holds."""

    def __init__(self) -> None:
        self.plan: _Plan | None = None

    def step(self, optimizer: Any, groups: list[Group]) -> bool:
        """Step the groups; False, with nothing done, if no plan takes all of them."""
        if any(group["fused"] is not True for group in groups):
            return False
        flags = [_flags(optimizer, group) for group in groups]
        params = [p for group in groups for p in group["params"]]
        plan, grads = self.plan, None
        if plan is not None and _holds(optimizer, groups, params, plan, flags):
            grads = _gradients(params, plan)
        if plan is None or grads is None:
            plan = self.plan = _make_plan(optimizer, groups, flags)
            grads = None if plan is None else _gradients(params, plan)
            if plan is None or grads is None:
                return False
        scalars = array("d")
        for group in groups:
            beta1, beta2 = group["betas"]
            lr, beta3, decay = group["lr"], group["beta3"], group["weight_decay"]
            scalars.extend(map(float, (lr, beta1, beta2, beta3, group["eps"], decay)))
        plan.table.step(
            grads,
            scalars,
            array("i", flags),
            _as_float(optimizer.__dict__.get("grad_scale")),
            _as_float(optimizer.__dict__.get("found_inf")),
        )
        return True

    def end_task(self, optimizer: Any, group: Group) -> int | None:
        """How many parameters had taken a step; None, with nothing done, if there is no plan."""
        flags = _flags(optimizer, group)
        plan = self.plan
        if plan is None and len(optimizer.param_groups) > 1:  # all groups were stepped by one plan
            plan = self.plan = _make_plan(optimizer, [group], [flags])
        # A parameter without a gradient now may have had one earlier in the task.
        if plan is None or any(plan.frozen):
            return None
        if not _holds(optimizer, [group], group["params"], plan, [flags]):
            return None
        beta1, beta2 = group["betas"]
        draws = [draw_of(group, place) for place in range(plan.table.n)]
        return plan.table.end_task(beta1, beta2, flags, draws)


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
        and _Layouts.of(params) == plan.layouts
    )


def _states(optimizer: Any, groups: list[Group]) -> list[dict[str, Tensor]]:
    """The states of the groups' parameters that have one."""
    found = optimizer.state
    if len(optimizer.param_groups) == len(groups):  # to look one up, it is hashed: that is slow
        return list(found.values())
    return [found[p] for group in groups for p in group["params"] if p in found]


def _gradients(params: list[Any], plan: _Plan) -> list[int] | None:
    """The gradients' addresses, or None if the plan was made for gradients of another layout."""
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
    if lib is None or len({row.exp_avg.dtype for row in rows}) != 1:
        return None
    states = list(_states(optimizer, groups))
    params = [p for group in groups for p in group["params"]]
    tensors = [x for row in rows for x in row if x is not None]
    return _Plan(
        table=_Table(lib, rows, ends),
        flags=flags,
        params=params,
        frozen=[p.grad is None for p in params],
        # The state of what fits has the parameter's dtype and strides.
        strides=[row.exp_avg.stride() for row in rows],
        sizes=[row.exp_avg.numel() for row in rows],
        dtypes=[row.exp_avg.dtype for row in rows],
        layouts=_Layouts.of(params),
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
        if not _fits(row) or _past_flag(row) != _PAST[group["past_dtype"]]:
            return None
        rows.append(row)
    return rows


def _fits(row: Row) -> bool:
    """Whether parameter and state are flat arrays of one dtype to the kernel; v_c may be coded."""
    p, *moments, step, past_steps = row
    coded = None if row.past_exp_avg_sq is None else row.past_exp_avg_sq.dtype in CODED
    return (
        p is not None
        and is_plain(p)
        and p.dtype in _DTYPES
        and p.layout is torch.strided
        and _is_dense(p)
        and all(
            is_plain(x)
            and x.is_cpu
            and (x.dtype is p.dtype or (coded and x is row.past_exp_avg_sq))
            and x.shape == p.shape
            and x.stride() == p.stride()
            for x in moments
            if x is not None
        )
        and all(is_plain(x) and x.is_cpu and x.dtype is torch.float32 for x in (step, past_steps))
    )


def _is_dense(tensor: Tensor) -> bool:
    """Whether its elements fill their memory without gap or overlap, in whatever order."""
    expected = 1
    sizes = zip(tensor.stride(), tensor.shape, strict=True)
    for stride, size in sorted(pair for pair in sizes if pair[1] != 1):
        if stride != expected:
            return tensor.numel() == 0
        expected *= size
    return True


def _like(grad: Tensor, param: Tensor) -> Tensor:
    """The gradient in the parameter's dtype and memory layout."""
    if (
        type(grad) is Tensor
        and grad.layout is torch.strided
        and grad.dtype is param.dtype
        and grad.is_cpu
        and grad.stride() == param.stride()
        and not grad.is_neg()
    ):
        return grad
    return torch.empty_like(param, requires_grad=False).copy_(grad)


def _past_flag(row: Row) -> int:
    """The flag that tells the kernel how v_c is kept."""
    past = row.past_exp_avg_sq
    return 0 if past is None else _PAST_FLAGS.get(past.dtype, 0)


def _flags(optimizer: Any, group: Group) -> int:
    flags = _kernel_flags(
        optimizer._decoupled_weight_decay,
        group["maximize"],
        group["first_moment"],
        group["second_moment"],
    )
    try:
        return flags | _PAST[group["past_dtype"]]
    except KeyError:
        check_past(group)
        raise


def _kernel_flags(decoupled: bool, maximize: bool, first_moment: str, second_moment: str) -> int:
    try:
        return decoupled | 2 * maximize | _FIRST[first_moment] | _SECOND[second_moment]
    except KeyError:
        check_moments({"first_moment": first_moment, "second_moment": second_moment})
        raise


def _as_float(scalar: Tensor | None) -> Tensor | None:
    return None if scalar is None else scalar.to("cpu", torch.float32)


class _Table:
    """The kernel's view of some parameters of one dtype: eleven columns, gradients last.

    ``ends`` says where each parameter group ends; without it all rows are one group's.
    """

    def __init__(
        self, lib: ctypes.CDLL, rows: Sequence[Row], ends: Sequence[int] | None = None
    ) -> None:
        self.ends = array("q", ends or [len(rows)])
        is_float = rows[0].exp_avg.dtype is torch.float32
        self._step: Callable[..., None] = (
            lib.longtail_step_float if is_float else lib.longtail_step_double
        )
        self._end_task: Callable[..., int] = (
            lib.longtail_end_task_float if is_float else lib.longtail_end_task_double
        )
        self.n = len(rows)
        self.params = [row.param for row in rows if row.param is not None]
        columns = zip(*(map(_address, row) for row in rows), strict=True)
        self.cells = array("q", [x for column in columns for x in column])
        self.cells.extend(row.exp_avg.numel() for row in rows)
        self.cells.extend([0] * (3 * self.n))
        self.address = self.cells.buffer_info()[0]

    def step(
        self,
        grads: list[int],
        scalars: array,
        flags: array,
        grad_scale: Tensor | None,
        found_inf: Tensor | None,
    ) -> None:
        """One step; ``scalars`` has six numbers and ``flags`` one for each group of `ends`."""
        self.cells[10 * self.n :] = array("q", grads)
        self._step(
            self.n,
            self.address,
            len(self.ends),
            self.ends.buffer_info()[0],
            scalars.buffer_info()[0],
            flags.buffer_info()[0],
            None if grad_scale is None else grad_scale.data_ptr(),
            None if found_inf is None else found_inf.data_ptr(),
            torch.get_num_threads(),
        )
        # Autograd must notice that parameters it may have saved are no longer the same.
        increment_version(self.params)

    def end_task(
        self, beta1: float | Tensor, beta2: float | Tensor, flags: int, draws: Sequence[Draw]
    ) -> int:
        """How many parameters had taken a step."""
        numbers = [x for column in zip(*draws, strict=True) for x in column]
        self.cells[8 * self.n : 10 * self.n] = array("q", numbers)
        scalars = array("d", map(float, (0.0, beta1, beta2)))
        address = scalars.buffer_info()[0]
        return self._end_task(self.n, self.address, address, flags, torch.get_num_threads())


def _address(tensor: Tensor | None) -> int:
    return 0 if tensor is None else tensor.data_ptr()
