"""How a run is trained: its settings, and what the optimizer keeps at a task boundary, by name.

==============  ============  =============  =====  ========  ==================================
policy          first_moment  second_moment  beta3  boundary  which is
==============  ============  =============  =====  ========  ==================================
continual       reset         task           0.9    yes       Continual Adam(W): "with MC"
continual_seen  reset         task_seen      0.9    yes       the same for weights moved before
reset           reset         reset          0      yes       fresh state per task: "without MC"
carry           ema           ema            0      no        plain Adam(W), not told about tasks
==============  ============  =============  =====  ========  ==================================

"With" and "without MC" are the paper's words. `continual_seen` gives weights that no earlier task
has moved plain Adam's step, where `continual` averages their past in as zero.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torch import nn

from longtail.optim import ContinualAdam, ContinualAdamW
from longtail.replicas import broadcast, dot, lead_of, parameter_groups

MOST_GRAPHS = 32  # captured steps of a run; further shapes run uncaptured


def _setting(default: Any, text: str) -> Any:
    return field(default=default, metadata={"help": text})


@dataclass(frozen=True)
class Policy:
    """One optimizer policy; `lr_scale` multiplies the learning rate (learning rates in a stack)."""

    name: str
    first_moment: Literal["reset", "ema", "task"] = _setting(
        "reset", "the first moment at a task boundary"
    )
    second_moment: Literal["reset", "ema", "task", "task_seen"] = _setting(
        "task", "the second moment at a task boundary"
    )
    beta3: float = _setting(0.9, "warm-up at the start of a task, 1 - beta3**t; 0 for none")
    boundary: bool = _setting(True, "tell the optimizer when a task ends (false: plain Adam)")
    lr_scale: float = _setting(1.0, "multiplies the learning rate")


POLICIES: dict[str, Policy] = {
    policy.name: policy
    for policy in (
        Policy("continual"),
        Policy("continual_seen", second_moment="task_seen"),
        Policy("reset", second_moment="reset", beta3=0.0),
        Policy("carry", first_moment="ema", second_moment="ema", beta3=0.0, boundary=False),
    )
}


@dataclass(frozen=True)
class TrainSettings:
    """How a run is trained."""

    epochs: int = _setting(1, "passes over each task's training examples")
    batch_size: int = _setting(16, "examples per batch")
    optimizer: Literal["adamw", "adam"] = _setting("adamw", "Continual AdamW or Continual Adam")
    lr: float = _setting(1e-3, "learning rate")
    betas: tuple[float, float] = _setting((0.9, 0.999), "decay of the first and second moments")
    eps: float = _setting(1e-8, "added to the denominator")
    weight_decay: float = _setting(0.0, "weight decay (decoupled for adamw)")
    schedule: Literal["constant", "linear"] = _setting(
        "constant", "learning rate within a task: constant, or linear decay to zero"
    )
    warmup: float = _setting(0.0, "fraction of a task's steps spent on linear warm-up")
    clip: float | None = _setting(None, "largest gradient norm (per replica); none for no clipping")
    accumulate: int = _setting(1, "batches per optimizer step")
    autocast: Literal["none", "bf16", "fp16"] = _setting("none", "mixed precision")
    compile: bool = _setting(False, "torch.compile the model")
    cuda_graph: bool = _setting(
        False, "on a GPU, replay each step as a CUDA graph (batches are padded)"
    )
    fused: bool = _setting(True, "one fused kernel for the optimizer's step")
    validation: float = _setting(0.0, "share of each task's training examples kept for validation")
    evaluate_every: int = _setting(0, "evaluate all seen tasks every so many tasks; 0: at the end")
    evaluate_at: tuple[int, ...] = _setting((), "evaluate all seen tasks after these many tasks")

    def __post_init__(self) -> None:
        for name in ("epochs", "batch_size", "accumulate"):
            if not getattr(self, name) >= 1:
                raise ValueError(f"Invalid {name}: {getattr(self, name)}")
        for name in ("lr", "eps", "weight_decay", "evaluate_every"):
            if not 0 <= getattr(self, name) < math.inf:  # not: < 0, which NaN would pass
                raise ValueError(f"Invalid {name}: {getattr(self, name)}")
        for name in ("warmup", "validation"):
            if not 0 <= getattr(self, name) < 1:
                raise ValueError(f"Invalid {name}: {getattr(self, name)}, not in [0, 1)")
        if self.clip is not None and not self.clip > 0:
            raise ValueError(f"Invalid clip: {self.clip}")
        if self.cuda_graph and (self.accumulate > 1 or self.autocast == "fp16"):
            raise ValueError("cuda_graph cannot be combined with accumulate or autocast='fp16'")


def captures(settings: TrainSettings, device: torch.device) -> bool:
    """Whether steps are captured: where that is asked for and there is a GPU to do it."""
    return settings.cuda_graph and device.type == "cuda"


def build_optimizer(
    model: nn.Module, policies: Sequence[Policy], settings: TrainSettings
) -> ContinualAdam:
    """ContinualAdam or ContinualAdamW with one parameter group per kind of policy.

    Policies that differ only in the data they learn on share a group, hence a kernel launch.
    """
    groups = parameter_groups(model)
    if len(groups) != len(policies):
        raise ValueError(f"{len(policies)} policies for a model that has room for {len(groups)}")
    if len({policy.boundary for policy in policies}) > 1:
        names = {policy.name: policy.boundary for policy in policies}
        raise ValueError(
            "Policies with and without a task boundary cannot share an optimizer, since a boundary "
            f"reaches all of it; got boundary = {names}. Train them as two stacks."
        )
    device = groups[0][0].device
    captured = captures(settings, device)

    # A captured step reads the learning rate where a schedule can change it, and groups with the
    # same rate read it at one place: filling ten would take longer than the step.
    rates: dict[float, torch.Tensor] = {}

    def learning_rate(policy: Policy) -> float | torch.Tensor:
        lr = settings.lr * policy.lr_scale
        if captured and lr not in rates:
            rates[lr] = torch.tensor(lr, device=device)
        return rates[lr] if captured else lr

    joined: dict[tuple[Any, ...], dict[str, Any]] = {}
    for params, policy in zip(groups, policies, strict=True):
        lr = learning_rate(policy)
        key = (policy.first_moment, policy.second_moment, policy.beta3, policy.lr_scale)
        group = joined.setdefault(
            key,
            {
                "params": [],
                "lr": lr,
                "initial_lr": settings.lr * policy.lr_scale,
                "first_moment": policy.first_moment,
                "second_moment": policy.second_moment,
                "beta3": policy.beta3,
            },
        )
        group["params"] += params
    kinds = {"adamw": ContinualAdamW, "adam": ContinualAdam}
    options: dict[str, Any] = {"capturable": True} if captured else {}
    return kinds[settings.optimizer](
        list(joined.values()),
        betas=settings.betas,
        eps=settings.eps,
        weight_decay=settings.weight_decay,
        fused=settings.fused,  # not None for False, which would be fused on a GPU
        **options,
    )


def autocast(device: torch.device, kind: str) -> AbstractContextManager[Any]:
    """The precision of forward passes, for the length of a `with` block."""
    kinds = {"bf16": torch.bfloat16, "fp16": torch.float16}
    return torch.autocast(device.type, kinds[kind]) if kind in kinds else nullcontext()


def compile_model(model: nn.Module, fixed_shapes: bool) -> None:
    """`torch.compile` in place; for each of a few shapes where steps are captured."""
    if fixed_shapes:
        limits = torch._dynamo.config  # one compilation a shape, as many as there are graphs
        limits.recompile_limit = max(limits.recompile_limit, MOST_GRAPHS)
    model.compile(dynamic=False if fixed_shapes else None)


def set_learning_rate(
    optimizer: torch.optim.Optimizer, settings: TrainSettings, done: int, steps: int
) -> None:
    """Linear warm-up, then linear decay, over one task; `done` of `epochs * steps` steps are done.

    A formula of the base rate: nothing stays at zero from the task before.
    """
    if settings.schedule == "constant" and not settings.warmup:
        return
    total = settings.epochs * steps
    warm = int(settings.warmup * total)
    if done < warm:
        factor = (done + 1) / (warm + 1)
    else:
        factor = (total - done) / (total - warm) if settings.schedule == "linear" else 1.0
    filled = None
    for group in optimizer.param_groups:
        lr = group["initial_lr"] * factor
        if not isinstance(group["lr"], torch.Tensor):
            group["lr"] = lr
        elif group["lr"] is not filled:  # groups may share it
            filled = group["lr"].fill_(lr)


def clip_gradients(model: nn.Module, limit: float) -> None:
    """Scale the gradient of each replica to a norm of at most `limit`."""
    lead = lead_of(model)[1:]
    for params in parameter_groups(model):
        grads = [p.grad for p in params if p.grad is not None]
        if grads and lead in ((), (1,)):  # of one model: two launches for all gradients
            norm = torch.linalg.vector_norm(torch.stack(torch._foreach_norm(grads)))
            torch._foreach_mul_(grads, (limit / (norm + 1e-6)).clamp(max=1.0))
        elif grads:
            scale = (limit / (dot(grads, grads, lead).sqrt() + 1e-6)).clamp(max=1.0)
            for grad in grads:
                grad.mul_(broadcast(scale, grad))
