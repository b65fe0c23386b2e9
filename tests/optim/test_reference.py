"""Every implementation against the paper line by line, over random sequences of tasks."""

from typing import Any

import numpy as np
import pytest
import torch
from helpers.optimizers import (
    FIRST_MOMENTS,
    IMPLEMENTATIONS,
    PAIRS,
    SECOND_MOMENTS,
    assert_same,
    parameters,
    train,
    twins,
)
from hypothesis import given, settings
from hypothesis import strategies as st
from optim.reference import Reference
from torch.nn import Parameter

from longtail import ContinualAdam, ContinualAdamW

SHAPES = [(), (1,), (7,), (3, 5), (0,), (2, 3, 4)]

group_settings = st.fixed_dictionaries(
    {
        "lr": st.sampled_from([1e-3, 0.1]),
        "betas": st.sampled_from([(0.9, 0.999), (0.0, 0.5), (0.5, 0.0), (0.8, 0.99)]),
        "beta3": st.sampled_from([0.0, 0.5, 0.9]),
        "eps": st.sampled_from([1e-8, 1e-3]),
        "weight_decay": st.sampled_from([0.0, 0.1]),
        "maximize": st.booleans(),
        "first_moment": st.sampled_from(FIRST_MOMENTS),
        "second_moment": st.sampled_from(SECOND_MOMENTS),
    }
)


@st.composite
def sequences(draw: st.DrawFn) -> dict[str, Any]:
    groups = draw(st.lists(group_settings, min_size=1, max_size=2))
    return {
        "groups": groups,
        "shapes": [draw(st.lists(st.sampled_from(SHAPES), min_size=1, max_size=3)) for _ in groups],
        "tasks": draw(st.lists(st.integers(0, 5), min_size=1, max_size=4)),
        "density": draw(st.sampled_from([1.0, 0.5])),
        "presence": draw(st.sampled_from([1.0, 0.7])),
        "seed": draw(st.integers(0, 2**31)),
        "cls": draw(st.sampled_from([ContinualAdam, ContinualAdamW])),
    }


def reference_of(param: Parameter, group: dict[str, Any], decoupled: bool) -> Reference:
    rest = {k: v for k, v in group.items() if k != "betas"}
    beta1, beta2 = group["betas"]
    theta = param.detach().numpy()
    return Reference(theta, beta1=beta1, beta2=beta2, decoupled=decoupled, **rest)


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
@settings(max_examples=60, deadline=None, derandomize=True)
@given(case=sequences())
def test_implementation_follows_the_paper(implementation: str, case: dict[str, Any]) -> None:
    params = [parameters(*shapes) for shapes in case["shapes"]]
    groups = [{"params": p, **g} for p, g in zip(params, case["groups"], strict=True)]
    optimizer = case["cls"](groups, **IMPLEMENTATIONS[implementation])
    decoupled = case["cls"] is ContinualAdamW
    twin = [
        (p, reference_of(p, g, decoupled))
        for ps, g in zip(params, case["groups"], strict=True)
        for p in ps
    ]
    generator = np.random.default_rng(case["seed"])
    for steps in case["tasks"]:
        # a task may leave some coordinates alone, such as the embeddings of words it lacks
        touched = [generator.random(tuple(p.shape)) < case["density"] for p, _ in twin]
        for _ in range(steps):
            for (p, reference), mask in zip(twin, touched, strict=True):
                p.grad = None
                if generator.random() < case["presence"]:
                    gradient = generator.normal(size=tuple(p.shape)) * mask
                    p.grad = torch.tensor(gradient, dtype=torch.float64)
                    reference.step(np.asarray(gradient))
            optimizer.step()
        optimizer.end_task()
        for _, reference in twin:
            reference.end_task()
        for p, reference in twin:
            np.testing.assert_allclose(p.detach().numpy(), reference.theta, 1e-10, 1e-12)
            if p in optimizer.state:
                state = optimizer.state[p]
                assert state["past_steps"].item() == reference.c
                assert state["step"].item() == 0
                for key, value in (
                    ("exp_avg", reference.m),
                    ("exp_avg_sq", reference.v),
                    ("past_exp_avg_sq", reference.v_c),
                ):
                    np.testing.assert_allclose(state[key].numpy(), value, 1e-10, 1e-14)


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
@pytest.mark.parametrize(("ours", "theirs"), PAIRS)
@pytest.mark.parametrize("weight_decay", [0.0, 0.1])
def test_without_boundary_and_beta3_it_is_adam(
    implementation: str, ours: Any, theirs: Any, weight_decay: float
) -> None:
    for dtype in (torch.float32, torch.float64):
        a = parameters((3, 4), (5,), (), dtype=dtype)
        b = twins(a)
        kwargs = {"lr": 0.05, "weight_decay": weight_decay, **IMPLEMENTATIONS[implementation]}
        train(ours(a, beta3=0.0, **kwargs), a, range(20))
        train(theirs(b, **kwargs), b, range(20))
        if implementation != "fused":
            assert_same(a, b)
        elif dtype == torch.float64:
            assert_same(a, b, rtol=1e-12, atol=1e-12)
        else:
            assert_same(a, b, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
@pytest.mark.parametrize(("ours", "theirs"), PAIRS)
def test_reset_policy_equals_a_fresh_optimizer_for_each_task(
    implementation: str, ours: Any, theirs: Any
) -> None:
    a = parameters((3, 4), (5,))
    b = twins(a)
    kwargs = IMPLEMENTATIONS[implementation]
    optimizer = ours(a, beta3=0.0, first_moment="reset", second_moment="reset", **kwargs)
    for task in range(3):
        seeds = range(10 * task, 10 * task + 4 + task)
        train(optimizer, a, seeds)
        optimizer.end_task()
        train(theirs(b, **kwargs), b, seeds)
        tolerance = {"rtol": 1e-12, "atol": 1e-12} if implementation == "fused" else {}
        assert_same(a, b, **tolerance)


def test_fused_and_foreach_match_the_for_loop_in_float32() -> None:
    for second_moment in SECOND_MOMENTS:
        results = []
        for kwargs in IMPLEMENTATIONS.values():
            params = parameters((40, 9), (300,), dtype=torch.float32)
            optimizer = ContinualAdamW(params, second_moment=second_moment, **kwargs)
            train(optimizer, params, range(30), boundary_after=(4, 11))
            results.append(params)
        assert_same(results[0], results[1], rtol=1e-6, atol=1e-7)
        assert_same(results[0], results[2], rtol=1e-5, atol=1e-6)
