"""Muon for matrices, AdamW for the rest: torch's own, held as one optimizer."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

from longtail_bench.rivals.muon import MuonAdamW

pytestmark = pytest.mark.skipif(not hasattr(torch.optim, "Muon"), reason="torch has no Muon")


def make_model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(5, 4), nn.ReLU(), nn.Linear(4, 2))


def take_steps(model: nn.Module, optimizers: list[torch.optim.Optimizer], count: int) -> None:
    generator = torch.Generator().manual_seed(1)
    for _ in range(count):
        model.zero_grad()
        model(torch.randn(3, 5, generator=generator)).square().sum().backward()
        for optimizer in optimizers:
            optimizer.step()


def test_each_parameter_moves_as_under_its_own_optimizer() -> None:
    ours, theirs = make_model(), make_model()
    take_steps(ours, [MuonAdamW(ours.parameters(), lr=0.01, weight_decay=0.1)], 4)
    matrices = [p for p in theirs.parameters() if p.dim() == 2]
    others = [p for p in theirs.parameters() if p.dim() != 2]
    muon = torch.optim.Muon(matrices, lr=0.01, weight_decay=0.1, adjust_lr_fn="match_rms_adamw")
    take_steps(theirs, [muon, torch.optim.AdamW(others, lr=0.01, weight_decay=0.1)], 4)
    for a, b in zip(ours.parameters(), theirs.parameters(), strict=True):
        assert torch.equal(a, b)


def test_a_rate_set_in_a_group_reaches_both_and_state_survives_a_round_trip() -> None:
    model = make_model()
    optimizer = MuonAdamW(model.parameters(), lr=0.01)
    take_steps(model, [optimizer], 3)
    other = copy.deepcopy(model)
    again = MuonAdamW(other.parameters(), lr=0.5)
    again.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    for each in (optimizer, again):
        for group in each.param_groups:
            group["lr"] = 0.02
    take_steps(model, [optimizer], 2)
    take_steps(other, [again], 2)
    for a, b in zip(model.parameters(), other.parameters(), strict=True):
        assert torch.equal(a, b)
    before = [p.detach().clone() for p in model.parameters()]
    for group in optimizer.param_groups:
        group["lr"] = 0.0
    take_steps(model, [optimizer], 1)
    assert all(torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True))


def test_a_group_that_is_added_later_is_split_and_stepped_too() -> None:
    """As when a head is unfrozen; a group's own settings go to the rule that has them."""
    model, head = make_model(), torch.nn.Linear(5, 2)
    optimizer = MuonAdamW(model.named_parameters(), lr=0.01, momentum=0.8)
    named = [(f"head.{name}", p) for name, p in head.named_parameters()]
    optimizer.add_param_group({"params": named, "lr": 0.05, "betas": (0.7, 0.9)})
    muon, adamw = optimizer.param_groups[-2:]
    assert (muon["rule"], muon["param_names"]) == ("muon", ["head.weight"])
    assert (adamw["rule"], adamw["param_names"]) == ("adamw", ["head.bias"])
    assert (muon["lr"], muon["momentum"], adamw["betas"]) == (0.05, 0.8, (0.7, 0.9))
    assert "betas" not in muon
    assert "momentum" not in adamw
    before = [p.detach().clone() for p in head.parameters()]
    head(torch.ones(3, 5)).square().sum().backward()
    optimizer.step()
    assert all(not torch.equal(a, b) for a, b in zip(before, head.parameters(), strict=True))
