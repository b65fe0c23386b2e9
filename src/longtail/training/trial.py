r"""Whether a stack gives each of its runs what that run would have alone: tried, then believed.

Two runs of other seeds, then four with a second rate, are trained as one program and each alone,
over two tasks of unequal size with a boundary between them, and what is left of each is compared:

    |stacked - alone| <= 1e-9 (1 + |alone|)      weights, optimizer state and method state

in float64, since what mixes replicas may be as small as what float32 rounds away.
"""

from __future__ import annotations

import itertools
import json
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from longtail.methods import Finetune, Method
from longtail.names import POLICIES, Policy
from longtail.replicas import build_model, members_of
from longtail.support.random import Seed, integers, normal
from longtail.tasks import (
    CLASSIFICATION,
    REGRESSION,
    Objective,
    Segments,
    TableSequence,
    TaskSequence,
    TensorExamples,
)
from longtail.training.loop import Run, train
from longtail.training.optimizer_class import OptimizerClass
from longtail.training.settings import TrainSettings

TOLERANCE = 1e-9
RATES = (1.0, 0.5)  # of the policies of a stack, in units of the learning rate
SIZES = (44, 17)  # training rows of the two tasks, several batches each
SETTINGS = TrainSettings(epochs=2, batch_size=8, lr=0.02)
_FEATURES, _HIDDEN, _CLASSES = 6, 5, 4


@dataclass(frozen=True)
class Trial:
    """What the runs of a trial are made of, in any precision.

    Attributes:
        make_sequence: (seeds, policies) -> two tasks; of one seed, an int, those of its single run.
        make_model: seed -> the model of a run.
        make_method: (model, sequence, seed or seeds) -> the method.
        policy: of the optimizer, at two rates.
        settings: of training.
        optim: further arguments of the optimizer.
        seeds: of the runs.
    """

    make_sequence: Callable[[Seed, int], TaskSequence]
    make_model: Callable[[int], nn.Module]
    make_method: Callable[[nn.Module, TaskSequence, Seed], Method]
    policy: Policy = POLICIES["continual"]
    settings: TrainSettings = SETTINGS
    optim: Mapping[str, Any] = field(default_factory=dict)
    seeds: tuple[int, int] = (0, 1)

    def train(self, seed: Seed, rates: Sequence[float]) -> _Ended:
        """A run of one seed, or a stack of several, until its end."""
        own = seed.tolist() if isinstance(seed, Tensor) else seed
        sequence = self.make_sequence(seed, len(rates))
        model = build_model(self.make_model, own, len(rates)).double()
        method = self.make_method(model, sequence, seed)
        policies = [replace(self.policy, lr_scale=rate) for rate in rates]
        torch.manual_seed(0)
        run = Run(
            sequence, model, method, policies, self.settings, seed, evaluate=False, optim=self.optim
        )
        train(run)
        return _Ended(run, method.state_dict())


@dataclass(frozen=True)
class _Ended:
    """A run that has come to its end, and what its method is left with."""

    run: Run
    method: dict[str, Any]


class CannotTry(Exception):  # noqa: N818 (not an error of ours: it is told in words)
    """A run of a trial cannot be trained, not even alone."""


def difference(trial: Trial) -> str | None:
    """Where a stack differs first from its runs alone, in words; None where it does not.

    Raises:
        CannotTry: the runs cannot be trained alone.
    """
    with _apart():
        try:
            alone = {
                (p, s): trial.train(seed, [rate])
                for p, rate in enumerate(RATES)
                for s, seed in enumerate(trial.seeds)
            }
        except CannotTry:
            raise
        except Exception as error:  # a stranger's code raises whatever it likes
            raise CannotTry(f"{type(error).__name__}: {error}") from error
        for count in range(1, len(RATES) + 1):
            size = count * len(trial.seeds)
            try:
                stack = trial.train(torch.tensor(trial.seeds), RATES[:count])
            except Exception as error:
                return f"a stack of {size} fails with {type(error).__name__}: {error}"
            for place in itertools.product(range(count), range(len(trial.seeds))):
                lead = (count, len(trial.seeds))
                for text in _differences(stack, alone[place], _Place(lead, place)):
                    return f"in a stack of {size} {text}"
    return None


@contextmanager
def _apart() -> Iterator[None]:
    """Within ``with`` anybody may draw random numbers; afterwards generators are where they were.

    One thread: several would wait for one another longer than these small numbers take.
    """
    of_python, of_numpy = random.getstate(), np.random.get_state()
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    with torch.random.fork_rng(devices=[]):
        try:
            yield
        finally:
            random.setstate(of_python)
            np.random.set_state(of_numpy)
            torch.set_num_threads(threads)


@dataclass(frozen=True)
class _Place:
    """One replica of a stack: its policy and its seed, by number, and how many there are."""

    lead: tuple[int, int]
    at: tuple[int, int]

    def shares(self, stacked: Tensor, shape: torch.Size) -> Iterator[Tensor]:
        """The parts of a stack's tensor that may be this replica's, in the shape it has alone.

        It may be there once for all, once a policy, a seed or a replica, or with the replicas' rows
        behind one another, as buffers keep theirs.
        """
        (policies, seeds), (policy, seed) = self.lead, self.at
        of_policy = [stacked[policy]] if stacked.shape[:1] == (policies,) else []
        for tensor in (stacked, *of_policy):
            if tensor.shape == shape:
                yield tensor
            if tensor.shape == (seeds, *shape):
                yield tensor[seed]
            for dim, size in enumerate(shape):
                if tensor.shape == (*shape[:dim], seeds * size, *shape[dim + 1 :]):
                    yield tensor.narrow(dim, seed * size, size)


def _differences(stack: _Ended, alone: _Ended, place: _Place) -> Iterator[str]:
    """What differs between a stack's replica and the run alone, in words."""
    model, member = alone.run.model, members_of(stack.run.model)[place.at[0]]
    mine = {**dict(model.named_parameters()), **dict(model.named_buffers())}
    theirs = {**dict(member.named_parameters()), **dict(member.named_buffers())}
    yield from _between("weight", theirs, mine, place)
    for name, p in model.named_parameters():
        kept = alone.run.optimizer.state.get(p, {})
        stacked = stack.run.optimizer.state.get(theirs[name], {})
        yield from _between(f"optimizer state of {name}", stacked, kept, place)
    yield from _between(type(alone.run.method).__name__, stack.method, alone.method, place)


def _between(what: str, stacked: Any, alone: Any, place: _Place) -> Iterator[str]:
    if isinstance(alone, dict) and isinstance(stacked, dict):
        for key, value in alone.items():
            of_policy = f"members.{place.at[0]}.{key}"  # parameters of a stack by their names
            there = stacked.get(key, stacked.get(of_policy))
            yield from _between(f"{what} {key}", there, value, place)
    elif isinstance(alone, list | tuple) and isinstance(stacked, list | tuple):
        count, start = len(alone), place.at[0] * len(alone)
        own = stacked[start : start + count] if len(stacked) == place.lead[0] * count else stacked
        if len(own) != count:
            yield f"{what} has {len(own)} entries, and alone {count}"
        for i, (there, value) in enumerate(zip(own, alone, strict=False)):
            yield from _between(f"{what} {i}", there, value, place)
    elif isinstance(stacked, Tensor) and isinstance(alone, Tensor | int | float):
        yield from _between_tensors(what, stacked, torch.as_tensor(alone), place)
    elif isinstance(stacked, float) and isinstance(alone, float):
        yield from _between_tensors(what, torch.tensor(stacked), torch.tensor(alone), place)
    elif type(stacked) is not type(alone) or stacked != alone:
        yield f"{what} is {_shown(stacked)}, and alone {_shown(alone)}"


def _between_tensors(what: str, stacked: Tensor, alone: Tensor, place: _Place) -> Iterator[str]:
    mine = alone.detach().double()
    gaps = []
    for share in place.shares(stacked, alone.shape):
        theirs = share.detach().double()
        if torch.allclose(theirs, mine, TOLERANCE, TOLERANCE, equal_nan=True):
            return
        gaps.append(float((theirs - mine).abs().max()))
    if gaps:
        yield f"{what} is another by {min(gaps):.1e} than alone"
    else:
        yield f"{what} has the shape {tuple(stacked.shape)}, and alone {tuple(alone.shape)}"


def _shown(value: Any) -> str:
    return f"a {type(value).__name__}" if isinstance(value, Tensor | list | dict) else repr(value)


def _tasks(objective: Objective) -> TaskSequence:
    """Two tasks of random numbers: what is learned of them says nothing, how it is says enough."""
    rows = sum(SIZES) + len(SIZES)
    inputs = normal(rows * _FEATURES, 0, "trial").view(rows, _FEATURES).double()
    targets = integers(_CLASSES, rows, 0, "trial")
    if objective is REGRESSION:
        targets = targets.double()
    trained = Segments(np.cumsum([0, *SIZES]))
    tested = Segments(sum(SIZES) + np.arange(len(SIZES) + 1))
    return TableSequence(TensorExamples(inputs, targets), trained, tested, objective)


def _network(objective: Objective) -> nn.Module:
    hidden = nn.Linear(_FEATURES, _HIDDEN), nn.Tanh()
    if objective is REGRESSION:
        return nn.Sequential(*hidden, nn.Linear(_HIDDEN, 1), nn.Flatten(-2))
    return nn.Sequential(*hidden, nn.Linear(_HIDDEN, _CLASSES))


_believed: set[tuple[Any, ...]] = set()  # what was tried in this process, and held


def try_method(kind: type[Method], settings: Mapping[str, Any]) -> None:
    """Try that a method with these settings trains the runs of a stack as it trains them alone.

    Raises:
        ValueError: it does not, or cannot be tried; names the method and what differs first.
    """
    key = kind, json.dumps(settings, sort_keys=True, default=str)
    if key in _believed:
        return

    def make(model: nn.Module, sequence: TaskSequence, seed: Seed) -> Method:
        return kind(model, sequence.objective, seed=seed, **settings)

    said = f"method {kind.__module__}:{kind.__name__} says stackable = True"
    reasons: list[str] = []
    for objective in (CLASSIFICATION, REGRESSION):  # it may be made for one of them alone
        try:
            found = difference(_trial(objective, make))
        except CannotTry as error:
            reasons.append(str(error))
            continue
        if found is None:
            _believed.add(key)
            return
        raise ValueError(
            f"{said}, and {found}: norms, products, means and choices over parameters or losses "
            "must be one for each replica (self.per_replica); or leave stackable out"
        )
    raise ValueError(
        f"{said}, and cannot be tried on a small network: {reasons[0]}; leave stackable out"
    )


def try_optimizer(chosen: OptimizerClass, optim: Mapping[str, Any], policy: Policy) -> None:
    """Try that an optimizer, and its policy, step the runs of a stack as each one alone.

    Raises:
        ValueError: they do not, or cannot be tried; names the optimizer and what differs first.
    """
    plain = replace(policy, name="", lr_scale=1.0)
    key = chosen.kind, plain, json.dumps(dict(optim), sort_keys=True, default=str)
    if key in _believed:
        return
    function = f" with {policy.function}" if policy.function else ""
    said = f"optimizer {chosen.name}{function} says elementwise = True"
    settings = replace(SETTINGS, optimizer=chosen.name)
    try:
        found = difference(_trial(CLASSIFICATION, _finetune, plain, settings, optim))
    except CannotTry as error:
        raise ValueError(
            f"{said}, and cannot be tried on a small network: {error}; leave elementwise out"
        ) from None
    if found is not None:
        raise ValueError(
            f"{said}, and {found}: every number must move by its own gradients alone; or leave "
            "elementwise out"
        )
    _believed.add(key)


def _finetune(model: nn.Module, sequence: TaskSequence, seed: Seed) -> Method:
    return Finetune(model, sequence.objective, seed=seed)


def _trial(
    objective: Objective,
    make_method: Callable[[nn.Module, TaskSequence, Seed], Method],
    policy: Policy = POLICIES["continual"],
    settings: TrainSettings = SETTINGS,
    optim: Mapping[str, Any] | None = None,
) -> Trial:
    sequence = _tasks(objective)
    return Trial(
        lambda seed, policies: sequence,
        lambda seed: _network(objective),
        make_method,
        policy,
        settings,
        optim or {},
    )
