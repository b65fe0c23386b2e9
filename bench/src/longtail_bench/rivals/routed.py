r"""EWC and A-GEM whose change of the gradient goes into Adam's first moment alone.

    m ← β₁ m + (1 - β₁) (g + d)        v ← β₂ v + (1 - β₂) g²
    d = g̃ - g,  at most b in size,     b = κ max(|g|, √v̂)       weight by weight

g is the task's gradient, g̃ what the method makes of it (Hu et al., 2026; arXiv 2604.22407). Where
both moments see g̃, Adam divides by the size of what a projection has left, so that a direction
which was made smaller is made larger again. With v out of the way nothing divides a large d, least
of all where g is zero and d is not: d is held to κ = `limit` times what Adam has measured there.

The optimizer is left as it is. It steps along g, and m is moved beforehand by what its next average
would lack,

    m ← m + (1 - β₁) / β₁ d

Gradients are clipped before the method sees them. Where the optimizer has no m of a parameter yet,
before its first step and after a reset that forgets the state, both moments take g + d.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch

from longtail.methods import AGEM, EWC, Method
from longtail_bench.rivals.moments import second_moment, states


class Routed(Method):
    """A mixin; list it before the method in the bases.

    So it can compare the gradients before and after that method's `after_backward` changed them.
    """

    clips_first = True

    def after_backward(self) -> None:
        held = {id(p): (s, group) for p, s, group in states(self, "exp_avg", "exp_avg_sq")}
        assert self.optimizer is not None
        every = [p for group in self.optimizer.param_groups for p in group["params"]]
        params = [p for p in every if p.grad is not None]
        grads = [p.grad for p in params]
        raw = [grad.clone() for grad in grads]
        super().after_backward()
        if not grads:
            return
        change = torch._foreach_sub(grads, raw)
        torch._foreach_copy_(grads, raw)
        bound = [
            second_moment(*held[id(p)]).sqrt_().to(g.dtype)
            if id(p) in held
            else torch.zeros_like(g)
            for p, g in zip(params, grads, strict=True)
        ]
        torch._foreach_maximum_(bound, torch._foreach_abs(raw))
        torch._foreach_mul_(bound, self.settings.limit)
        torch._foreach_minimum_(change, bound)
        torch._foreach_maximum_(change, torch._foreach_neg(bound))
        for d, p, grad in zip(change, params, grads, strict=True):
            if id(p) not in held:
                grad.add_(d)
                continue
            state, group = held[id(p)]
            beta1 = group["betas"][0]
            if not beta1 > 0:
                raise ValueError(f"Invalid betas[0]: {beta1}, there is no average to route to")
            state["exp_avg"].add_(d, alpha=(1 - beta1) / beta1)


def _limit() -> Any:
    return field(
        default=1.0, metadata={"help": "κ, how large a change may be, in sizes of the gradient"}
    )


def _check_limit(limit: float) -> None:
    if not limit > 0:
        raise ValueError(f"Invalid limit: {limit}, it must be above zero")


class RoutedEWC(Routed, EWC):
    """EWC whose penalty reaches Adam's first moment and not its second."""

    name = "ewc_routed"
    stackable = True

    @dataclass(frozen=True)
    class Settings(EWC.Settings):
        limit: float = _limit()

        def __post_init__(self) -> None:
            super().__post_init__()
            _check_limit(self.limit)


class RoutedAGEM(Routed, AGEM):
    """A-GEM whose projection reaches Adam's first moment and not its second."""

    name = "agem_routed"
    stackable = True

    @dataclass(frozen=True)
    class Settings(AGEM.Settings):
        limit: float = _limit()

        def __post_init__(self) -> None:
            super().__post_init__()
            _check_limit(self.limit)
