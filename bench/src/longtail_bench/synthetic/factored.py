"""A tensor that is a product of two small ones, made only when somebody looks at it.

    x = left @ right        left [..., B, r],  right [..., r, d],  x [..., B, d]

Inputs that depend on few numbers need not be written out: a linear layer can multiply its weights
with ``right`` first. `Regressor` does; for everybody else a `Factored` is an ordinary tensor, and
the first operation on it makes x.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree


class Factored(Tensor):
    """``left @ right``; it cannot be written to and needs no gradient.

    Example:
        >>> x = Factored(torch.ones(5, 2), torch.ones(2, 3))
        >>> x.shape, x.sum()
        (torch.Size([5, 3]), tensor(30.))
    """

    left: Tensor
    right: Tensor
    _made: Tensor | None

    # Operations are seen below, as what they are for the dispatcher; results are plain tensors.
    __torch_function__ = torch._C._disabled_torch_function_impl  # pyright: ignore

    @staticmethod
    def __new__(cls: type[Factored], left: Tensor, right: Tensor) -> Factored:
        shape = (*left.shape[:-1], right.shape[-1])
        made = Tensor._make_wrapper_subclass(cls, shape, dtype=left.dtype, device=left.device)
        made.left, made.right, made._made = left, right, None
        return made

    def __init__(self, left: Tensor, right: Tensor) -> None:
        pass

    def dense(self) -> Tensor:
        """x as a plain tensor."""
        if self._made is None:
            self._made = self.left @ self.right
        return self._made

    def __repr__(self) -> str:  # pyright: ignore[reportIncompatibleMethodOverride]
        return f"Factored({tuple(self.left.shape)} @ {tuple(self.right.shape)})"

    @classmethod
    def __torch_dispatch__(
        cls, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        def plain(value: Any) -> Any:
            return value.dense() if isinstance(value, Factored) else value

        return func(*pytree.tree_map(plain, args), **pytree.tree_map(plain, kwargs or {}))
