"""Norms, products and means of each replica alone."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from longtail.replicas import PerReplica, Replicas, parameter_groups

P, S = 2, 3


@pytest.fixture
def stack() -> Replicas:
    torch.manual_seed(0)
    models = [nn.Sequential(nn.Linear(4, 3), nn.Linear(3, 1)) for _ in range(S)]
    stack = Replicas(models, P).double()
    with torch.no_grad():
        for p in stack.parameters():
            p.add_(torch.randn_like(p))
    return stack


def alone(stack: Replicas, policy: int, seed: int) -> list[Tensor]:
    return [p.detach() for p in stack.replica(policy, seed).parameters()]


def test_norms_and_products_are_those_of_the_run_alone(stack: Replicas) -> None:
    tensors = [p.detach() for group in parameter_groups(stack) for p in group]
    others = [t.sin() for t in tensors]
    each, plain = PerReplica(stack.lead), PerReplica(())
    norm, product = each.norm(tensors), each.dot(tensors, others)
    spread = each.spread(norm, tensors)
    scaled = [t / n for t, n in zip(tensors, spread, strict=True)]
    torch.testing.assert_close(each.norm(scaled), torch.ones(P, S, dtype=torch.float64))
    for p in range(P):
        for s in range(S):
            own = alone(stack, p, s)
            flat = torch.cat([t.flatten() for t in own])
            torch.testing.assert_close(norm[p, s], flat.norm())
            torch.testing.assert_close(plain.norm(own), flat.norm())
            torch.testing.assert_close(product[p, s], flat @ flat.sin())


def test_means_are_of_each_replica_and_of_a_plain_model_the_usual_one() -> None:
    losses = torch.randn(P, S, 5, 2, dtype=torch.float64)
    torch.testing.assert_close(PerReplica((P, S)).mean(losses), losses.mean((2, 3)))
    torch.testing.assert_close(PerReplica(()).mean(losses), losses.mean())


def test_numbers_that_are_not_of_replicas_are_refused() -> None:
    each = PerReplica((P, S))
    with pytest.raises(ValueError, match=r"Invalid tensors \(2, 4\), \(3, 4\).*replicas \(2, 3\)"):
        each.norm([torch.ones(2, 4), torch.ones(3, 4)])
    with pytest.raises(ValueError, match="not those of replicas"):
        each.norm([torch.ones(3, 4)])
    with pytest.raises(ValueError, match=r"Invalid values \(7,\) for replicas"):
        each.mean(torch.ones(7))
    with pytest.raises(ValueError, match=r"Invalid values \(2, 3\)"):
        each.mean(torch.ones(2, 3))
