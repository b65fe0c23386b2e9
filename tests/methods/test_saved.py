"""A method's state as its attributes are: saved and loaded by the base class."""

from __future__ import annotations

import functools
import random
from collections import OrderedDict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from longtail.methods import METHODS, Finetune, Method
from longtail.methods.buffers import ReservoirBuffer
from longtail.runs.snapshot import Snapshots
from longtail.tasks import CLASSIFICATION


def make(kind: type[Method] = Finetune) -> Any:
    torch.manual_seed(0)
    return kind(nn.Linear(3, 2), CLASSIFICATION, seed=0)


def through_a_snapshot(method: Any, other: Any, folder: Path) -> Any:
    Snapshots(folder).save({"method": method.state_dict()})
    loaded = Snapshots(folder).load()
    assert loaded is not None
    other.load_state_dict(loaded["method"])
    return other


def alike(one: Any, other: Any) -> bool:
    if isinstance(one, Tensor):
        return torch.equal(one, other) and one.dtype == other.dtype
    if isinstance(one, np.ndarray):
        return bool((one == other).all()) and one.dtype == other.dtype
    if isinstance(one, dict):
        return list(one) == list(other) and all(alike(one[key], other[key]) for key in one)
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(alike, one, other))
    return one == other


@pytest.mark.parametrize(
    "value",
    [
        3,
        2.5,
        True,
        None,
        "phase two",
        torch.arange(3.0),
        torch.tensor([1, 2], dtype=torch.int16),
        [torch.ones(2), torch.zeros(1)],
        {"weight": torch.ones(2, 2), "counts": [1, 2, (3.5, "x")]},
        {0: torch.ones(1), 7: {"nested": None}},
        OrderedDict(weight=torch.ones(2)),
        np.arange(4, dtype=np.int32),
        np.float32(0.1),
        np.float64(0.1),
        (),
        [],
    ],
    ids=repr,
)
def test_what_a_method_holds_comes_back_as_it_was(value: Any, tmp_path: Path) -> None:
    method = make()
    method.held = value
    other = through_a_snapshot(method, make(), tmp_path)  # which had no such attribute
    assert type(other.held) is type(value)
    assert alike(value, other.held)


@pytest.mark.parametrize("there", [True, False])
def test_generators_go_on_where_they_were(there: bool, tmp_path: Path) -> None:
    def draws(method: Any) -> list[float]:
        of_torch = torch.rand(1, generator=method.of_torch).item()
        return [of_torch, method.of_python.random(), method.of_numpy.random(), method.old.random()]

    def with_generators(method: Any) -> Any:
        method.of_torch = torch.Generator().manual_seed(1)
        method.of_python = random.Random(1)
        method.of_numpy = np.random.default_rng(1)
        method.old = np.random.Generator(np.random.MT19937(1))
        return method

    method = with_generators(make())
    draws(method)
    other = with_generators(make()) if there else make()
    through_a_snapshot(method, other, tmp_path)
    assert draws(method) == draws(other)


def test_tensors_are_loaded_in_place_where_they_fit(tmp_path: Path) -> None:
    method, other = make(), make()
    method.held = {"a": [torch.ones(2), torch.ones(3)]}
    other.held = {"a": [torch.zeros(2), torch.zeros(4)]}
    fits = other.held["a"][0]
    through_a_snapshot(method, other, tmp_path)
    assert other.held["a"][0] is fits
    assert torch.equal(fits, torch.ones(2))
    assert torch.equal(other.held["a"][1], torch.ones(3))


def test_two_names_of_one_list_stay_so(tmp_path: Path) -> None:
    method = make()
    method.best = method.latest = [torch.zeros(1)]
    other = through_a_snapshot(method, make(), tmp_path)
    assert other.best is other.latest


def test_the_model_and_what_the_constructor_gives_take_no_room() -> None:
    method = make()
    model = method.model
    method.net, method.weights = model, [p.detach() for p in model.parameters()]
    method.by_name = dict(model.named_parameters())
    method.where, method.distance, method.loss_of = model.weight.device, torch.dist, nn.MSELoss()
    assert method.state_dict() == {}


class Own(Finetune):
    """Of another's class, with an attribute of its own."""

    unsaved = ("scratch",)

    def __init__(self, *args: Any, **settings: Any) -> None:
        super().__init__(*args, **settings)
        self.scratch, self.steps = object(), 5


class Younger(Own):
    unsaved = ("cache",)

    def __init__(self, *args: Any, **settings: Any) -> None:
        super().__init__(*args, **settings)
        self.cache, self.more = object(), 6


def test_what_is_left_out_adds_up_over_the_classes() -> None:
    assert make(Younger).state_dict() == {"steps": 5, "more": 6}


@pytest.mark.parametrize(
    ("value", "what"),
    [
        (nn.Linear(2, 2), "is or holds a Linear"),
        ([{"a": {1, 2}}], "is or holds a set"),
        (functools.partial(print), "is or holds a partial"),
        ({(1, 2): 3}, "has a tuple as a key"),
        (np.array(["a"]), "is a ndarray of <U1"),
    ],
    ids=str,
)
def test_what_cannot_be_saved_is_named(value: Any, what: str) -> None:
    method = make(Own)
    method.teacher = value
    with pytest.raises(ValueError, match=f"Own.teacher {what}.*give Own a state_dict"):
        method.state_dict()


def test_parameters_are_not_told_apart_by_a_number_that_a_new_process_gives_anew() -> None:
    method = make(Own)
    method.importance = {id(p): torch.zeros_like(p) for p in method.model.parameters()}
    with pytest.raises(ValueError, match=r"Own.importance has the id\(\) of a parameter as a key"):
        method.state_dict()


def test_a_buffer_is_made_by_the_constructor(tmp_path: Path) -> None:
    method = make()
    method.memory = ReservoirBuffer(4, 0)
    method.memory.add(torch.ones(2, 3), torch.zeros(2))
    there = make()
    there.memory = ReservoirBuffer(4, 0)
    through_a_snapshot(method, there, tmp_path / "a")
    assert len(there.memory) == 2
    with pytest.raises(ValueError, match=r"Finetune\.memory is a buffer in the snapshot"):
        through_a_snapshot(method, make(), tmp_path / "b")


@pytest.mark.parametrize("name", METHODS)
def test_ours_hold_what_they_held(name: str) -> None:
    """No copy of the model comes into a snapshot by accident, and nothing goes missing."""
    held = {
        "ewc": {"sum_F", "anchor", "tasks"},
        "ewcpp": {"sum_F", "anchor", "running_F"},
        "reservoir": {"buffer"},
        "derpp": {"buffer"},
        "agem": {"buffer"},
        "l2": {"anchor", "pull"},
        "si": {"sum_F", "anchor", "omega"},
        "lwf": {"past", "weight"},
        "coma": {"anchor", "tasks"},
    }
    method = make(METHODS[name])
    assert method.state_dict().keys() == held.get(name, set())
