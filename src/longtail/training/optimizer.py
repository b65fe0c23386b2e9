"""The optimizer of a run, its learning rate within a task, precision and clipping."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from longtail.methods.saved import restore, saved
from longtail.names import Policy
from longtail.optim import ContinualAdam
from longtail.optim.other_optimizers import restart
from longtail.replicas import (
    broadcast,
    dot,
    lead_of,
    members_of,
    parameter_groups,
    task_parameters,
)
from longtail.support.random import Seed
from longtail.tasks.task_models import TaskModel
from longtail.training.optimizer_class import OptimizerClass, find_optimizer
from longtail.training.settings import TrainSettings

# The settings of a policy that a parameter group of Continual Adam has too.
MOMENTS = ("first_moment", "second_moment", "beta3")
MOST_GRAPHS = 64  # captured steps of a run; further shapes run uncaptured


def captures(
    settings: TrainSettings, device: torch.device, optim: Mapping[str, Any] | None = None
) -> bool:
    """Whether steps are captured: where that is asked for, on a GPU, if the optimizer allows it."""
    if not settings.cuda_graph or device.type != "cuda":
        return False
    return find_optimizer(settings.optimizer).capture_options(optim or {}) is not None


def build_optimizer(
    model: nn.Module,
    policies: Sequence[Policy],
    settings: TrainSettings,
    optim: Mapping[str, Any] | None = None,
    seed: Seed = 0,
) -> Optimizer:
    """The optimizer that the settings name, with one parameter group per kind of policy.

    Policies that differ only in the data they learn on share a group, hence a kernel launch.
    Parameters of one task at a time have plain Adam under every policy, and a group of their own:
    averaged with the zeros of tasks that never had them, their first steps would be enormous.

    Where the past is rounded at random, random bits depend on a parameter's place in its group: a
    policy then has a group of its own, so that it draws in a stack what it would draw alone.

    Args:
        model: whose parameters it moves.
        policies: one per policy of a stack, one for a plain module.
        settings: of training.
        optim: further arguments of the optimizer's class.
        seed: of the run, or one per replica, for optimizers that draw random numbers.
    """
    chosen = find_optimizer(settings.optimizer)
    groups = parameter_groups(model)
    if len(groups) != len(policies):
        raise ValueError(f"{len(policies)} policies for a model that has room for {len(groups)}")
    _check_policies(policies, chosen)
    device = groups[0][0].device
    captured = captures(settings, device, optim)

    # A captured step reads the learning rate where a schedule can change it, and groups with the
    # same rate read it at one place: filling ten would take longer than the step.
    rates: dict[float, torch.Tensor] = {}

    def learning_rate(policy: Policy) -> float | torch.Tensor:
        lr = settings.lr * policy.lr_scale
        if captured and lr not in rates:
            rates[lr] = torch.tensor(lr, device=device)
        return rates[lr] if captured else lr

    joined: dict[tuple[Any, ...], dict[str, Any]] = {}
    # An optimizer that takes `lead` computes one statistic per model, so policies must not share a
    # group.
    apart = bool(chosen.of_replicas((), 0))
    copies = lead_of(model)[1] if lead_of(model) else 1
    for i, params, policy in _assigned(model, groups, policies):
        moments = {k: getattr(policy, k) for k in MOMENTS} if chosen.ours else {}
        past = {"past_dtype": policy.past_dtype, "past_copies": copies} if chosen.ours else {}
        alone = apart or policy.past_dtype != "float32"
        group = joined.setdefault(
            (*moments.values(), policy.lr_scale, policy.past_dtype, i if alone else 0),
            {
                "params": [],
                "lr": learning_rate(policy),
                "initial_lr": settings.lr * policy.lr_scale,
                **moments,
                **past,
            },
        )
        group["params"] += params
    arguments = {**_arguments(settings, chosen), **(optim or {})}
    arguments |= chosen.of_replicas(lead_of(model)[1:], seed)
    if captured:
        arguments |= chosen.capture_options(optim or {}) or {}
    try:
        return chosen.kind(list(joined.values()), **arguments)
    except (TypeError, RuntimeError) as error:  # flags that clash, a class of somebody else's
        raise ValueError(f"optimizer {chosen.name!r}: {error}") from error


def _check_policies(policies: Sequence[Policy], chosen: OptimizerClass) -> None:
    """Refuse policies that one optimizer cannot have at once."""
    if len({policy.boundary for policy in policies}) > 1:
        names = {policy.name: policy.boundary for policy in policies}
        raise ValueError(
            "Policies with and without a task boundary cannot share an optimizer, since a boundary "
            f"reaches all of it; got boundary = {names}. Train them as two stacks."
        )
    kinds = {replace(p, name="", lr_scale=1.0) for p in policies}
    if len(kinds) > 1 and (not chosen.ours or any(p.function for p in policies)):
        names = ", ".join(dict.fromkeys(policy.name for policy in policies))
        raise ValueError(f"Policies {names} cannot share one {chosen.name!r}: it has one boundary")


def _assigned(
    model: nn.Module, groups: Sequence[list[nn.Parameter]], policies: Sequence[Policy]
) -> list[tuple[int, list[nn.Parameter], Policy]]:
    """The number of each policy, parameters that are under it, and the policy itself.

    Parameters of one task at a time are listed on their own, under plain Adam.
    """
    passing = {id(p) for p in task_parameters(model)}
    found: list[tuple[int, list[nn.Parameter], Policy]] = []
    for i, (params, policy) in enumerate(zip(groups, policies, strict=True)):
        found.append((i, [p for p in params if id(p) not in passing], policy))
        own = [p for p in params if id(p) in passing]
        if own:
            fresh = replace(policy, first_moment="reset", second_moment="reset", beta3=0.0)
            found.append((i, own, fresh))
    return found


def _arguments(settings: TrainSettings, chosen: OptimizerClass) -> dict[str, Any]:
    """The arguments of the constructor that follow from the settings of training."""
    if chosen.ours:
        return {
            "betas": settings.betas,
            "eps": settings.eps,
            "weight_decay": settings.weight_decay,
            "fused": settings.fused,  # False stays False: None would be fused on a GPU
        }
    arguments: dict[str, Any] = {"lr": settings.lr}
    if chosen.accepts("weight_decay"):
        arguments["weight_decay"] = settings.weight_decay
    elif settings.weight_decay:
        raise ValueError(
            f"weight_decay = {settings.weight_decay}, but {chosen.name!r} takes no weight_decay"
        )
    return arguments


def begin_task(
    model: nn.Module, optimizer: Optimizer, task: int, *, captured: bool = False
) -> None:
    """Tell models with parameters of one task at a time which task begins.

    The optimizer's state of these parameters begins anew, also under a policy without a boundary:
    the moments are those of another task's head. `captured` says that steps are captured: they read
    the state at fixed addresses, so it is then cleared in place.
    """
    for member in members_of(model):
        if isinstance(member, TaskModel):
            member.begin_task(task)
    if not isinstance(optimizer, ContinualAdam):
        restart(optimizer, task_parameters(model), in_place=captured)
        return
    states = [optimizer.state[p] for p in task_parameters(model) if p in optimizer.state]
    if states:
        torch._foreach_zero_([value for state in states for value in state.values()])


def optimizer_state(optimizer: Optimizer, model: nn.Module) -> dict[str, Any]:
    """What a snapshot holds of an optimizer: its `state_dict`, and what it keeps beside `state`.

    torch's `state_dict` knows nothing of an instance's other attributes. A class that has one of
    its own, or a `load_state_dict`, says itself what it needs.
    """
    kind, beside = type(optimizer), {}
    if (kind.state_dict, kind.load_state_dict) == _OF_TORCH:
        beside = saved(optimizer, model, vars(Optimizer([torch.zeros(1)], {})))
    return {"state": optimizer.state_dict(), "beside": beside}


_OF_TORCH = (Optimizer.state_dict, Optimizer.load_state_dict)


def load_optimizer(
    optimizer: Optimizer, model: nn.Module, state: dict[str, Any], device: torch.device
) -> None:
    """Put back what was saved; learning rates that a captured step reads go to the device."""
    optimizer.load_state_dict(state["state"])
    restore(optimizer, model, state["beside"])
    moved: dict[int, torch.Tensor] = {}  # groups may share one
    for group in optimizer.param_groups:
        if isinstance(group["lr"], torch.Tensor):
            group["lr"] = moved.setdefault(id(group["lr"]), group["lr"].to(device))


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


def set_learning_rate(optimizer: Optimizer, settings: TrainSettings, done: int, total: int) -> None:
    """Warm up linearly and decay linearly, over a task or the sequence, as the settings say.

    `done` of its `total` steps are taken. The rate is computed from the base rate each time, so one
    that ended at zero does not stay there in the next task.
    """
    if settings.schedule == "constant" and not settings.warmup:
        return
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
