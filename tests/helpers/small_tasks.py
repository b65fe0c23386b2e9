"""A few small tasks of random numbers, a network that learns them, and a run of both."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from longtail.methods import METHODS
from longtail.replicas import build_model
from longtail.tasks import CLASSIFICATION, TableSequence, from_tensors
from longtail.training import POLICIES, Policy, Run, TrainSettings

FEATURES, CLASSES = 6, 3


def make_sequence(
    sizes: Sequence[int],
    seed: int = 0,
    validation: bool = False,
    dtype: torch.dtype = torch.float32,
    tests: int = 4,
) -> TableSequence:
    """Tasks of so many training examples; one without any is zero-shot."""
    generator = torch.Generator().manual_seed(seed)

    def part(n: int) -> tuple[Tensor, Tensor]:
        x = torch.randn(n, FEATURES, generator=generator, dtype=dtype)
        return x, torch.randint(CLASSES, (n,), generator=generator)

    def task(i: int, n: int) -> tuple[Any, ...]:
        train, test, held_out = part(n), part(tests), part(5)
        return (f"{i}", train if n else None, test, *([held_out] if validation else []))

    return from_tensors([task(i, n) for i, n in enumerate(sizes)], CLASSIFICATION)


def make_model(_seed: int = 0) -> nn.Module:
    return nn.Sequential(nn.Linear(FEATURES, 8), nn.ReLU(), nn.Linear(8, CLASSES))


def make_run(
    sequence: TableSequence,
    method: str = "finetune",
    seed: int | list[int] = 3,
    policies: Sequence[str | Policy] = ("continual",),
    *,
    model: nn.Module | None = None,
    evaluate: Any = None,
    options: dict[str, Any] | None = None,
    optim: dict[str, Any] | None = None,
    device: str = "cpu",
    **settings: Any,
) -> Run:
    """A run, or of a list of seeds a stack; `options` are the method's, `optim` the optimizer's."""
    if model is None:
        model = build_model(make_model, seed, len(policies)).to(device)
    seeds = torch.tensor(seed) if isinstance(seed, list) else seed
    made = METHODS[method](model, sequence.objective, seed=seeds, **(options or {}))
    chosen = [POLICIES[policy] if isinstance(policy, str) else policy for policy in policies]
    given = TrainSettings(**{"batch_size": 4, "epochs": 2, "lr": 1e-2, **settings})
    return Run(sequence.to(device), model, made, chosen, given, seeds, evaluate, optim)


def weights(model: nn.Module) -> list[Tensor]:
    return [p.detach().clone() for p in model.parameters()]


def assert_same(a: Sequence[Tensor], b: Sequence[Tensor], **tolerance: float) -> None:
    for x, y in zip(a, b, strict=True):
        torch.testing.assert_close(x, y, **(tolerance or {"rtol": 0, "atol": 0}))
