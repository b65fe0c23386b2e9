"""Settings a user may get wrong, in the words that ``torch.optim`` uses."""

from collections.abc import Iterable
from typing import Any

from torch import Tensor

MOMENTS = {
    "first_moment": ("reset", "ema", "task"),
    "second_moment": ("reset", "ema", "task", "task_seen"),
}


def check_settings(group: dict[str, Any]) -> None:
    """Raise for the first bad value among the settings of a parameter group."""
    _check_types(group)
    lr, betas = group["lr"], group["betas"]
    eager_foreach = group["foreach"] and not group["capturable"]
    if isinstance(lr, Tensor):
        if eager_foreach:
            raise ValueError(
                "lr as a Tensor is not supported for capturable=False and foreach=True"
            )
        if lr.numel() != 1:
            raise ValueError("Tensor lr must be 1-element")
    if not lr >= 0.0:
        raise ValueError(f"Invalid learning rate: {lr}")
    if not group["eps"] >= 0.0:
        raise ValueError(f"Invalid epsilon value: {group['eps']}")
    for i, beta in enumerate(betas):
        if not 0.0 <= beta < 1.0:
            raise ValueError(f"Invalid beta parameter at index {i}: {beta}")
    if not group["weight_decay"] >= 0.0:
        raise ValueError(f"Invalid weight_decay value: {group['weight_decay']}")
    if len(betas) != 2:
        raise ValueError(f"Invalid betas: {betas}, two are needed")
    if isinstance(betas[0], Tensor) != isinstance(betas[1], Tensor):
        raise ValueError("betas must be either both floats or both Tensors")
    for i, beta in enumerate(betas):
        if isinstance(beta, Tensor):
            if eager_foreach:
                raise ValueError(
                    f"betas[{i}] as a Tensor is not supported for capturable=False and foreach=True"
                )
            if beta.numel() != 1:
                raise ValueError(f"Tensor betas[{i}] must be 1-element")
    if isinstance(group["beta3"], Tensor) or not 0.0 <= group["beta3"] < 1.0:
        raise ValueError(f"Invalid beta3 value: {group['beta3']}")
    check_moments(group)
    if group["fused"]:
        if group["differentiable"]:
            raise RuntimeError("`fused` does not support `differentiable`")
        if group["foreach"]:
            raise RuntimeError("`fused` and `foreach` cannot be `True` together.")


def check_moments(group: dict[str, Any]) -> None:
    """Raise for a policy that is none of ours; each of the steps would take it for another."""
    for name, choices in MOMENTS.items():
        if group[name] not in choices:
            known = ", ".join(map(repr, choices))
            raise ValueError(f"Invalid {name} value: {group[name]!r}, must be one of {known}")


def check_rate(group: dict[str, Any]) -> None:
    """Raise for a learning rate, set after the optimizer was made, that its steps cannot take."""
    if group["foreach"] and isinstance(group["lr"], Tensor) and not group["capturable"]:
        raise RuntimeError("lr as a Tensor is not supported for capturable=False and foreach=True")


def _check_types(group: dict[str, Any]) -> None:
    """A comparison would fail for these too, but without saying which setting it was."""
    betas = group["betas"]
    if isinstance(betas, str) or not isinstance(betas, Iterable):
        raise ValueError(f"Invalid betas: {betas!r}, two are needed")
    named = {name: group[name] for name in ("lr", "eps", "weight_decay", "beta3")}
    named |= {f"betas[{i}]": beta for i, beta in enumerate(betas)}
    for name, value in named.items():
        if not hasattr(value, "__float__"):  # numbers and tensors have it, text and None do not
            raise ValueError(f"Invalid {name} value: {value!r}, a number is needed")
