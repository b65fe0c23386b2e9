"""A step under ``torch.compile``: same numbers, and one compilation for all tasks."""

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch._dynamo.testing import CompileCounter

from helpers.optimizers import IMPLEMENTATIONS, assert_same, parameters, train, twins
from longtail import ContinualAdam, ContinualAdamW


@pytest.fixture(autouse=True)
def _fresh() -> Iterator[None]:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
@pytest.mark.parametrize("policy", [("reset", "task"), ("task", "ema"), ("reset", "task_seen")])
def test_compiled_step_matches_and_compiles_once_for_all_tasks(
    implementation: str, policy: tuple[str, str]
) -> None:
    a = parameters((3, 2), (4,), dtype=torch.float32)
    b = twins(a)
    kwargs: dict[str, Any] = {"first_moment": policy[0], "second_moment": policy[1], "lr": 0.01}
    compiled = ContinualAdamW(a, **kwargs, **IMPLEMENTATIONS[implementation])
    eager = ContinualAdamW(b, **kwargs)
    counter = CompileCounter()
    step = torch.compile(compiled.step, backend=counter)
    train(compiled, a, range(3), step=step)
    before = counter.frame_count
    assert before > 0
    train(compiled, a, range(3, 30), boundary_after=(3, 7, 8, 20), step=step)
    assert counter.frame_count == before
    train(eager, b, range(30), boundary_after=(3, 7, 8, 20))
    assert_same(a, b, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
def test_a_past_in_bytes_is_read_by_a_compiled_step(implementation: str) -> None:
    a = parameters((3, 2), (4,), dtype=torch.float32)
    b = twins(a)
    compiled = ContinualAdamW(a, past_dtype="uint8", **IMPLEMENTATIONS[implementation])
    eager = ContinualAdamW(b, past_dtype="uint8")
    counter = CompileCounter()
    step = torch.compile(compiled.step, backend=counter)
    train(compiled, a, range(3), step=step)
    before = counter.frame_count
    train(compiled, a, range(3, 9), boundary_after=(4, 6), step=step)
    assert counter.frame_count == before > 0
    train(eager, b, range(9), boundary_after=(4, 6))
    assert_same(a, b, rtol=1e-4, atol=1e-6)


@pytest.mark.slow  # inductor compiles C++
@pytest.mark.parametrize("past_dtype", ["float32", "uint8"])
def test_inductor_step(past_dtype: str) -> None:
    a = parameters((3, 2), (4,), dtype=torch.float32)
    b = twins(a)
    compiled = ContinualAdam(a, past_dtype=past_dtype)
    eager = ContinualAdam(b, past_dtype=past_dtype)
    step = torch.compile(compiled.step)
    train(compiled, a, range(6), boundary_after=[3], step=step)
    train(eager, b, range(6), boundary_after=[3])
    assert_same(a, b, rtol=1e-4, atol=1e-6)
