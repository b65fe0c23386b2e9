"""Which tensors the fused kernels can walk as flat memory, and copies of those they cannot."""

import torch
from torch import Tensor

from longtail.optim.cuda.plan import Tensors

DTYPES = frozenset({torch.float16, torch.bfloat16, torch.float32, torch.float64})


def same_layout(a: Tensor, b: Tensor) -> bool:
    """Whether element k of one block of memory belongs to element k of the other."""
    if a.is_contiguous() and b.is_contiguous():
        return True
    order = _order(a)
    return order is not None and order == _order(b)


def fits(tensors: Tensors) -> bool:
    """Whether the kernels can take these as they are."""
    return (
        all(x.dtype is torch.float32 for x in (tensors.step, tensors.past_steps))
        and tensors.exp_avg.dtype in DTYPES
        and all(x.dtype is tensors.exp_avg.dtype for x in _moments(tensors))
        and all(same_layout(tensors.exp_avg, x) for x in _elements(tensors))
    )


def flat(tensors: Tensors, grad: Tensor) -> tuple[Tensors, Tensor]:
    """The same values where the kernels can take them; the tensors themselves if possible."""
    if not fits(tensors):
        dtype = torch.float64 if tensors.exp_avg.dtype is torch.float64 else torch.float32
        tensors = Tensors(
            None if tensors.param is None else tensors.param.contiguous(),
            tensors.exp_avg.to(dtype).contiguous(),
            tensors.exp_avg_sq.to(dtype).contiguous(),
            _copy(tensors.past_exp_avg_sq, dtype),
            _copy(tensors.past_exp_avg, dtype),
            tensors.step.to(torch.float32),
            tensors.past_steps.to(torch.float32),
        )
    grad = grad.resolve_neg()
    if grad.dtype not in DTYPES:
        grad = grad.to(torch.float32)
    if not same_layout(tensors.exp_avg, grad):
        grad = torch.empty_like(tensors.exp_avg, dtype=grad.dtype).copy_(grad)
    return tensors, grad


def write_back(originals: Tensors, used: Tensors) -> None:
    """Copy what was changed to where it belongs, if a copy was made."""
    if originals is not used:
        for original, copy in zip(originals, used, strict=True):
            if original is not copy and original is not None and copy is not None:
                original.copy_(copy)


def _copy(tensor: Tensor | None, dtype: torch.dtype) -> Tensor | None:
    return None if tensor is None else tensor.to(dtype).contiguous()


def _elements(tensors: Tensors) -> list[Tensor]:
    return [x for x in tensors[:5] if x is not None]


def _moments(tensors: Tensors) -> list[Tensor]:
    return [x for x in tensors[1:5] if x is not None]


def _order(tensor: Tensor) -> tuple[tuple[int, int], ...] | None:
    """(stride, dimension) from the innermost out; None if there are gaps or overlaps."""
    order = sorted(
        (stride, i)
        for i, (stride, size) in enumerate(zip(tensor.stride(), tensor.shape, strict=True))
        if size != 1
    )
    expected = 1
    for stride, i in order:
        if stride != expected:
            return None
        expected *= tensor.shape[i]
    return tuple(order)
