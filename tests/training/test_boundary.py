"""Any optimizer in THE loop, under every policy: as a loop written out by hand."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from helpers import small_tasks
from helpers.own_optimizers import Ending, Sign, halve_weights
from helpers.small_tasks import make_model
from longtail import end_task
from longtail.methods import Finetune
from longtail.names import POLICIES, Policy
from longtail.replicas import build_model
from longtail.support.random import permutation
from longtail.tasks import CLASSIFICATION
from longtail.training import Interrupted, Run, TrainSettings, train
from longtail.training.boundary import policy_for
from longtail.training.optimizer_class import find_optimizer

SIZES = (9, 4, 0, 6)
OWN = "helpers.own_optimizers"


make_sequence = functools.partial(small_tasks.make_sequence, SIZES)


def trained(
    optimizer: str, policy: str | Policy, optim: dict[str, Any] | None = None, **settings: Any
) -> Run:
    if isinstance(policy, str):
        policy = policy_for(policy, find_optimizer(optimizer))
    settings |= {"optimizer": optimizer, "optim": optim}
    run = small_tasks.make_run(make_sequence(), policies=[policy], **settings)
    train(run)
    return run


def by_hand(
    make: Callable[[Any], torch.optim.Optimizer],
    boundary: Callable[[torch.optim.Optimizer, nn.Module], Any] = lambda optimizer, model: None,
    renew: bool = False,
) -> list[Tensor]:
    sequence, model = make_sequence(), build_model(make_model, 3)
    optimizer = make(model.parameters())
    modes = hasattr(optimizer, "eval")
    for i, n in enumerate(SIZES):
        if not n:
            continue
        if renew:
            optimizer = make(model.parameters())
        if modes:
            optimizer.train()  # pyright: ignore[reportAttributeAccessIssue]
        for epoch in range(2):
            order = permutation(n, 3, "batches", i, epoch) if n > 4 else torch.arange(n)
            for rows in order.split(4):
                optimizer.zero_grad()
                x, y = sequence.train(i)[rows]  # pyright: ignore[reportOptionalSubscript]
                nn.functional.cross_entropy(model(x), y).backward()
                optimizer.step()
        if modes:
            optimizer.eval()  # pyright: ignore[reportAttributeAccessIssue]
        with torch.no_grad():
            boundary(optimizer, model)
    return [p.detach() for p in model.parameters()]


def assert_same(run: Run, wanted: list[Tensor]) -> None:
    small_tasks.assert_same(small_tasks.weights(run.model), wanted, rtol=1e-6, atol=1e-7)


TORCH = {
    "sgd": (torch.optim.SGD, {"momentum": 0.9, "dampening": 0.5}),
    "rmsprop": (torch.optim.RMSprop, {"momentum": 0.5}),
    "adafactor": (torch.optim.Adafactor, {}),
    "nadam": (torch.optim.NAdam, {}),
    "adagrad": (torch.optim.Adagrad, {"initial_accumulator_value": 0.1}),
}


@pytest.mark.parametrize("name", TORCH)
def test_torch_optimizers_under_reset_carry_and_continual(name: str) -> None:
    kind, options = TORCH[name]

    def make(parameters: Any) -> torch.optim.Optimizer:
        return kind(parameters, lr=1e-2, weight_decay=0.1, **options)

    decay = {"weight_decay": 0.1}
    assert_same(trained(name, "kept", options, **decay), by_hand(make))
    assert_same(trained(name, "new", options, **decay), by_hand(make, renew=True))
    kept = by_hand(make, lambda optimizer, model: end_task(optimizer))
    assert_same(trained(name, "continual", options, **decay), kept)


def test_policies_differ_where_there_is_something_to_keep() -> None:
    runs = [trained("rmsprop", policy) for policy in ("continual", "new")]
    first, second = ([p.detach() for p in run.model.parameters()] for run in runs)
    assert not torch.equal(first[0], second[0])


@pytest.mark.parametrize("policy", ["kept", "new", "continual"])
def test_schedule_free_trains_and_is_evaluated_in_its_own_modes(policy: str) -> None:
    schedulefree = pytest.importorskip("schedulefree")
    kind = schedulefree.AdamWScheduleFree
    run = trained("schedulefree:AdamWScheduleFree", policy, {"warmup_steps": 2})

    def make(parameters: Any) -> torch.optim.Optimizer:
        return kind(parameters, lr=1e-2, warmup_steps=2)

    edit = end_task if policy == "continual" else lambda optimizer: None
    wanted = by_hand(make, lambda optimizer, model: edit(optimizer), renew=policy == "new")
    assert_same(run, wanted)
    # the weights that are left, and were scored, are the average and not where gradients are taken
    assert not any(group["train_mode"] for group in run.optimizer.param_groups)
    scored = run.model(make_sequence().test(3)[torch.arange(4)][0])
    assert torch.isfinite(scored).all()


def test_an_own_class_with_settings_is_made_anew_where_nobody_knows_its_state() -> None:
    run = trained(f"{OWN}:Sign", "new", {"share": 0.7})
    wanted = by_hand(lambda parameters: Sign(parameters, lr=1e-2, share=0.7), renew=True)
    assert_same(run, wanted)
    with pytest.raises(ValueError, match=r"does not know the state of .*end_task"):
        trained(f"{OWN}:Sign", "continual")


def test_an_own_end_task_is_the_continual_policy() -> None:
    run = trained(f"{OWN}:Ending", "continual", {"power": 1, "share": 0.7})
    assert run.optimizer.ends == 3  # pyright: ignore[reportAttributeAccessIssue]
    wanted = by_hand(
        lambda parameters: Ending(parameters, power=1, lr=1e-2, share=0.7),
        lambda optimizer, model: optimizer.end_task(),  # pyright: ignore
    )
    assert_same(run, wanted)


@pytest.mark.parametrize("optimizer", ["adamw", "torch.optim:AdamW"])
def test_a_function_is_the_boundary(optimizer: str) -> None:
    run = trained(optimizer, f"{OWN}:halve_weights")
    wanted = by_hand(
        lambda parameters: torch.optim.AdamW(parameters, lr=1e-2, weight_decay=0.0),
        lambda optimizer, model: halve_weights(optimizer, model, 0),
    )
    assert_same(run, wanted)


def test_a_function_has_the_settings_of_its_policy() -> None:
    path = f"{OWN}:soften"
    policy = replace(policy_for(path, find_optimizer("adamw")), settings=(("keep", 0.0),))
    run = trained("torch.optim:Adagrad", policy)
    sums = [state["sum"] for state in run.optimizer.state.values()]
    assert all(float(s.abs().sum()) == 0 for s in sums)


def test_a_policy_asks_only_what_an_optimizer_can_do() -> None:
    with pytest.raises(ValueError, match="'continual_seen' needs Continual Adam, not 'sgd'"):
        policy_for("continual_seen", find_optimizer("sgd"))
    continual = policy_for("continual", find_optimizer("sgd"))
    assert (continual.second_moment, continual.beta3) == ("ema", 0.0)
    assert policy_for("continual", find_optimizer("adamw")) is POLICIES["continual"]


def test_weight_decay_of_an_optimizer_that_has_none_is_refused() -> None:
    with pytest.raises(ValueError, match=":Sign' takes no weight_decay"):
        trained(f"{OWN}:Sign", "kept", weight_decay=0.1)


@pytest.mark.parametrize("name", ["sgd", "rmsprop", f"{OWN}:Sign"])
@pytest.mark.parametrize("policy", ["kept", "new"])
def test_stacked_runs_are_their_own_runs(name: str, policy: str) -> None:
    """Elementwise optimizers: two seeds under two learning rates as one program."""
    seeds, sequence = [3, 5], make_sequence()
    model = build_model(make_model, seeds, 2)
    wanted = policy_for(policy, find_optimizer(name))
    policies = [wanted, replace(wanted, lr_scale=0.1)]
    settings = TrainSettings(batch_size=4, epochs=2, lr=1e-2, optimizer=name)
    numbers = torch.tensor(seeds)
    method = Finetune(model, CLASSIFICATION, seed=numbers)
    stack = Run(sequence, model, method, policies, settings, numbers)
    train(stack)
    alone = trained(name, policy)
    replica = model.replica(0, 0)  # pyright: ignore
    for ours, theirs in zip(replica.parameters(), alone.model.parameters(), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5)


def test_policies_that_differ_do_not_share_an_optimizer_of_others() -> None:
    model = build_model(make_model, [3, 5], 2)
    numbers = torch.tensor([3, 5])
    chosen = find_optimizer("rmsprop")
    policies = [policy_for("continual", chosen), policy_for("new", chosen)]
    method = Finetune(model, CLASSIFICATION, seed=numbers)
    settings = TrainSettings(optimizer="rmsprop")
    with pytest.raises(ValueError, match="continual, new cannot share one 'rmsprop'"):
        Run(make_sequence(), model, method, policies, settings, numbers)


RESUMED = {
    "sgd": {"momentum": 0.9},
    "adafactor": {},
    "muon": {},
    "schedulefree:AdamWScheduleFree": {},
    f"{OWN}:Sign": {"share": 0.7},
}


@pytest.mark.parametrize("name", RESUMED)
@pytest.mark.parametrize("policy", ["kept", "new", f"{OWN}:soften"])
def test_a_saved_state_goes_on_bit_for_bit(name: str, policy: str, tmp_path: Path) -> None:
    """Saved in the middle of a task and between two; loaded as a snapshot is, without code."""
    if name.startswith("schedulefree"):
        pytest.importorskip("schedulefree")
    whole = trained(name, policy, RESUMED[name])
    for stop in (4, 7):  # the first task has six steps, and one call more at its end
        model, sequence = build_model(make_model, 3), make_sequence()
        settings = whole.settings
        parts = [sequence, model, Finetune(model, CLASSIFICATION), whole.policies, settings, 3]
        first, calls = Run(*parts, optim=RESUMED[name]), 0

        def interrupt(run: Run, stop: int = stop) -> None:
            nonlocal calls
            calls += 1
            if calls == stop:
                raise Interrupted

        with contextlib.suppress(Interrupted):
            train(first, on_step=interrupt)
        torch.save(first.state_dict(), tmp_path / "state")
        model = build_model(make_model, 9)
        parts[1:3] = model, Finetune(model, CLASSIFICATION)
        again = Run(*parts, optim=RESUMED[name])
        again.load_state_dict(torch.load(tmp_path / "state", weights_only=True))
        train(again)
        for ours, theirs in zip(model.parameters(), whole.model.parameters(), strict=True):
            assert torch.equal(ours, theirs)
        assert again.matrix.last.tolist() == whole.matrix.last.tolist()
