"""Muon for matrices and AdamW for all else: torch's Muon refuses whatever is not a matrix.

Both are torch's own; this class splits the parameters and is one optimizer to whoever holds it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.optim import AdamW, Optimizer
from torch.optim.optimizer import ParamsT

from longtail.optim.other_optimizers import Moments

# The arguments that one of the two has and the other has not.
OWN = {"muon": ("momentum", "nesterov", "ns_steps", "adjust_lr_fn"), "adamw": ("betas", "eps")}


class MuonAdamW(Optimizer):
    """``torch.optim.Muon`` on parameters of two dimensions, ``torch.optim.AdamW`` on the others.

    Args:
        params: parameters or groups of them; each group is split in two.
        lr: learning rate of both. Muon's is scaled to the size of AdamW's steps where
            ``adjust_lr_fn`` says "match_rms_adamw".
        weight_decay: decoupled, of both.
        momentum, nesterov, ns_steps, adjust_lr_fn: of Muon.
        betas, eps: of AdamW.

    Example:
        >>> layer = torch.nn.Linear(3, 2)
        >>> optimizer = MuonAdamW(layer.parameters(), lr=1e-3)
        >>> [(group["rule"], len(group["params"])) for group in optimizer.param_groups]
        [('muon', 1), ('adamw', 1)]
    """

    unsaved = ("_rules",)
    moments = Moments(
        ("momentum_buffer", "exp_avg"), ("exp_avg_sq", "max_exp_avg_sq"), shared_count=True
    )

    def __init__(
        self,
        params: ParamsT,
        lr: float = 1e-3,
        weight_decay: float = 0.0,
        momentum: float = 0.95,
        nesterov: bool = True,
        ns_steps: int = 5,
        adjust_lr_fn: str | None = "match_rms_adamw",
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
    ) -> None:
        defaults = {
            "lr": lr,
            "weight_decay": weight_decay,
            "momentum": momentum,
            "nesterov": nesterov,
            "ns_steps": ns_steps,
            "adjust_lr_fn": adjust_lr_fn,
            "betas": betas,
            "eps": eps,
        }
        super().__init__(params, defaults)

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add a group, split into its matrices and all else."""
        super().add_param_group(param_group)
        whole = self.param_groups.pop()
        names = whole.get("param_names", [None] * len(whole["params"]))
        for rule, other in (("muon", "adamw"), ("adamw", "muon")):
            pairs = zip(whole["params"], names, strict=True)
            own = [(p, name) for p, name in pairs if (p.dim() == 2) == (rule == "muon")]
            if not own:
                continue
            part = {key: value for key, value in whole.items() if key not in OWN[other]}
            part |= {"params": [p for p, _ in own], "rule": rule}
            if "param_names" in whole:
                part["param_names"] = [name for _, name in own]
            self.param_groups.append(part)
        self._share()

    def _share(self) -> None:
        """Two optimizers over the groups and the state of this one."""
        self._rules: list[Optimizer] = []
        for rule, kind in (("muon", torch.optim.Muon), ("adamw", AdamW)):
            groups = [group for group in self.param_groups if group["rule"] == rule]
            if groups:
                inner = kind([{**group, "params": list(group["params"])} for group in groups])
                for group, complete in zip(groups, inner.param_groups, strict=True):
                    for name, value in complete.items():
                        group.setdefault(name, value)
                inner.param_groups, inner.state = groups, self.state
                self._rules.append(inner)

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        self._share()

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # pyright: ignore[reportIncompatibleMethodOverride]
        """One step of both."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for inner in self._rules:
            inner.step()
        return loss
