"""Distributed checkpoints, and sharded parameters on two processes."""

import os
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
import torch.multiprocessing as mp
from torch import Tensor, nn
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_model_state_dict,
    get_optimizer_state_dict,
    set_optimizer_state_dict,
)

from helpers.optimizers import assert_same, states
from longtail import ContinualAdamW, end_task
from longtail.optim.past import read_past

pytestmark = pytest.mark.filterwarnings("ignore")  # DCP warns about running without a group


def make_model() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 2)).double()


def train(model: nn.Module, optimizer: Any, tasks: list[int], seed: int = 0) -> None:
    generator = torch.Generator().manual_seed(seed)
    for steps in tasks:
        for _ in range(steps):
            inputs = torch.randn(8, 4, generator=generator, dtype=torch.float64)
            optimizer.zero_grad()
            model(inputs).square().mean().backward()
            optimizer.step()
        end_task(optimizer)


@pytest.mark.parametrize(
    "kwargs", [{}, {"foreach": True}, {"fused": True}, {"past_dtype": "uint8"}]
)
def test_checkpoint_round_trip(tmp_path: Path, kwargs: dict[str, Any]) -> None:
    settings = {"lr": 0.05, "first_moment": "task", **kwargs}
    model = make_model()
    optimizer = ContinualAdamW(model.parameters(), **settings)
    train(model, optimizer, [3, 5])
    saved = get_optimizer_state_dict(model, optimizer)
    dcp.save({"optimizer": saved}, checkpoint_id=tmp_path)

    other = make_model()
    other.load_state_dict(model.state_dict())
    fresh = ContinualAdamW(other.parameters(), **settings)
    # DCP takes a step with zero gradients and lr 0 to learn what the state looks like.
    template = {"optimizer": get_optimizer_state_dict(other, fresh)}
    assert_same(other.parameters(), model.parameters())
    dcp.load(template, checkpoint_id=tmp_path)
    set_optimizer_state_dict(other, fresh, template["optimizer"])

    assert_same(states(fresh, other.parameters()), states(optimizer, model.parameters()))
    assert fresh.state[next(other.parameters())]["past_steps"].item() == 8
    assert "tasks seen: 2\n" in repr(fresh)
    train(model, optimizer, [2, 2], seed=1)
    train(other, fresh, [2, 2], seed=1)
    assert_same(other.parameters(), model.parameters())


def on_each_rank(rank: int, folder: str) -> None:
    torch.set_num_threads(1)
    store = f"file://{folder}/store"
    dist.init_process_group("gloo", init_method=store, rank=rank, world_size=2)
    try:
        bytes_ = ({"past_dtype": "uint8"}, {"past_dtype": "uint8", "fused": True})
        for kwargs in ({}, {"fused": True}, {"second_moment": "task_seen"}, *bytes_):
            check_sharded(kwargs)
        dist.barrier()  # neither leaves while the other still talks to it
    finally:
        dist.destroy_process_group()
    Path(folder, f"passed{rank}").touch()
    # gloo's threads may outlive the group, and then abort an interpreter that ends in order
    os._exit(0)


def check_sharded(kwargs: dict[str, Any]) -> None:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard
    from torch.distributed.tensor import DTensor

    expected = make_model()
    kinds = {key: kwargs[key] for key in ("second_moment",) if key in kwargs}
    plain = ContinualAdamW(expected.parameters(), lr=0.05, **kinds)
    train(expected, plain, [3, 4, 2])

    mesh = init_device_mesh("cpu", (2,))
    model = make_model()
    for layer in (model[0], model[2]):
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    optimizer = ContinualAdamW(model.parameters(), lr=0.05, **kwargs)
    train(model, optimizer, [3, 4, 2])
    (first, *_) = model.parameters()
    assert isinstance(first, DTensor)
    assert isinstance(optimizer.state[first]["past_exp_avg_sq"], DTensor)
    assert optimizer.state[first]["past_steps"].item() == 9
    full = [p.full_tensor() for p in model.parameters()]  # type: ignore[attr-defined]
    past = [gathered(optimizer.state[p]["past_exp_avg_sq"]) for p in model.parameters()]
    theirs = [plain.state[p]["past_exp_avg_sq"] for p in expected.parameters()]
    values = [read_past(x, torch.float64) for x in past]
    if "past_dtype" in kwargs:  # random bits depend on the shards, what they stand for does not
        assert {x.dtype for x in past} == {torch.uint8}
        assert_same(full, expected.parameters(), rtol=0, atol=0.05)
        assert_same(values, theirs, rtol=0.5, atol=1e-9)
    else:
        assert_same(full, expected.parameters(), rtol=1e-10, atol=1e-12)
        assert_same(values, theirs, rtol=1e-10, atol=1e-14)

    options = StateDictOptions(full_state_dict=True)
    saved = get_optimizer_state_dict(model, optimizer, options=options)
    optimizer.zero_grad()  # DCP makes no template where there are gradients
    restored = ContinualAdamW(model.parameters(), lr=0.05, **kwargs)
    set_optimizer_state_dict(model, restored, saved, options=options)
    back = [gathered(restored.state[p]["past_exp_avg_sq"]) for p in model.parameters()]
    assert_same(back, past)
    assert get_model_state_dict(model, options=options).keys() == expected.state_dict().keys()


def gathered(tensor: Any) -> Tensor:
    return tensor.full_tensor()


def test_fully_sharded_parameters_on_two_processes(tmp_path: Path) -> None:
    mp.spawn(on_each_rank, args=(str(tmp_path),), nprocs=2)  # type: ignore[attr-defined]
    assert {path.name for path in tmp_path.glob("passed*")} == {"passed0", "passed1"}
