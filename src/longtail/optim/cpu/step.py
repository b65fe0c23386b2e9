"""The compiled CPU step: one call and one pass over memory for all parameters of a group.

``step_`` and ``end_task_`` take lists of tensors, as every implementation does; ``fast_step`` in
``fused_cpu_fast.py`` does without making them. The arithmetic is in ``fused_cpu.cpp``.
"""

import ctypes
from array import array
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.graph import increment_version

from longtail.optim.checks import check_moments
from longtail.optim.cpu.build import library
from longtail.optim.state import is_plain

# The flags of fused_cpu.cpp.
_FIRST = {"reset": 0, "ema": 32, "task": 4}
_SECOND = {"reset": 0, "ema": 8, "task": 16, "task_seen": 16 | 64}
_DTYPES = (torch.float32, torch.float64)


class Row(NamedTuple):
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
                is_plain(x)
                and x.is_cpu
                and x.dtype is p.dtype
                and x.shape == p.shape
                and x.stride() == p.stride()
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


def usable(grad: Tensor, param: Tensor, stride: tuple[int, ...]) -> bool:
    return (
        type(grad) is Tensor
        and grad.layout is torch.strided
        and grad.dtype is param.dtype
        and grad.is_cpu
        and grad.stride() == stride
        and not grad.is_neg()
    )


def kernel_flags(decoupled: bool, maximize: bool, first_moment: str, second_moment: str) -> int:
    try:
        return decoupled | 2 * maximize | _FIRST[first_moment] | _SECOND[second_moment]
    except KeyError:
        check_moments({"first_moment": first_moment, "second_moment": second_moment})
        raise


class Table:
    """The kernel's view of some parameters of one dtype: nine columns, gradients last.

    ``ends`` says where each parameter group ends; without it all rows are one group's.
    """

    def __init__(
        self, lib: ctypes.CDLL, rows: Sequence[Row], ends: Sequence[int] | None = None
    ) -> None:
        self.ends = array("q", ends or [len(rows)])
        is_float = rows[0].param.dtype is torch.float32
        self.step: Callable[..., None] = (
            lib.longtail_step_float if is_float else lib.longtail_step_double
        )
        self.end_task: Callable[..., int] = (
            lib.longtail_end_task_float if is_float else lib.longtail_end_task_double
        )
        self.n = len(rows)
        self.params = [row.param for row in rows]
        columns = zip(*(row.addresses() for row in rows), strict=True)
        self.cells = array("q", [x for column in columns for x in column])
        self.cells.extend(row.param.numel() for row in rows)
        self.cells.extend([0] * self.n)
        self.address = self.cells.buffer_info()[0]

    def run(
        self,
        grads: list[int],
        scalars: array,
        flags: array,
        grad_scale: Tensor | None,
        found_inf: Tensor | None,
    ) -> None:
        """One step; ``scalars`` has six numbers and ``flags`` one for each group of `ends`."""
        self.cells[8 * self.n :] = array("q", grads)
        self.step(
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

    def run_end_task(self, beta1: float | Tensor, beta2: float | Tensor, flags: int) -> int:
        """How many parameters had taken a step."""
        scalars = array("d", map(float, (0.0, beta1, beta2)))
        address = scalars.buffer_info()[0]
        return self.end_task(self.n, self.address, address, flags, torch.get_num_threads())


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
        Row(*row)
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
    flags = kernel_flags(decoupled, maximize, first_moment, second_moment)
    rest: list[int] = []
    taken: dict[torch.dtype, list[int]] = {}
    for i, row in enumerate(rows):
        if row.fits() and is_plain(grads[i]):
            taken.setdefault(row.param.dtype, []).append(i)
        else:
            rest.append(i)
    for indices in taken.values():
        laid_out = [_like(grads[i], params[i]) for i in indices]
        Table(lib, [rows[i] for i in indices]).run(
            [g.data_ptr() for g in laid_out],
            scalars,
            array("i", [flags]),
            as_float(grad_scale),
            as_float(found_inf),
        )
    return rest


def _like(grad: Tensor, param: Tensor) -> Tensor:
    """The gradient in the parameter's memory layout."""
    if usable(grad, param, param.stride()):
        return grad
    return torch.empty_like(param, requires_grad=False).copy_(grad)


def as_float(scalar: Tensor | None) -> Tensor | None:
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
    rows = [Row(row[0], *row) for row in zip(*lists, strict=True)]
    if lib is None or not all(row.fits() for row in rows):
        return None
    flags = kernel_flags(False, False, first_moment, second_moment)
    stepped = 0
    for dtype in {row.param.dtype for row in rows}:
        table = Table(lib, [row for row in rows if row.param.dtype is dtype])
        stepped += table.run_end_task(beta1, beta2, flags)
    return stepped > 0
