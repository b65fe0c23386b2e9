"""`step` is wrapped like any torch optimizer's: hooks run once, the profiler sees it by name."""

import copy
import pickle
import subprocess
import sys

import pytest
import torch
from torch import nn
from torch.optim.optimizer import (
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)

from longtail import ContinualAdamW


def made() -> ContinualAdamW:
    p = nn.Parameter(torch.ones(3))
    p.grad = torch.ones(3)
    return ContinualAdamW([p])


def test_hooks_run_once_and_in_torchs_order() -> None:
    calls: list[str] = []
    optimizer = made()
    optimizer.step()
    handles = [
        register_optimizer_step_pre_hook(lambda *_: calls.append("all before")),
        optimizer.register_step_pre_hook(lambda *_: calls.append("before")),
        optimizer.register_step_post_hook(lambda *_: calls.append("after")),
        register_optimizer_step_post_hook(lambda *_: calls.append("all after")),
    ]
    optimizer.step()
    assert calls == ["all before", "before", "after", "all after"]
    for handle in handles:
        handle.remove()
    optimizer.step()
    assert len(calls) == 4


def test_global_hooks_alone_are_heard() -> None:
    calls: list[str] = []
    handle = register_optimizer_step_post_hook(lambda *_: calls.append("after"))
    made().step()
    handle.remove()
    assert calls == ["after"]


def test_a_hook_may_change_the_arguments() -> None:
    optimizer = made()
    optimizer.register_step_pre_hook(lambda o, *_: ((o, lambda: 7.0), {}))
    assert optimizer.step() == 7.0


def test_copies_are_wrapped_once() -> None:
    for optimizer in (copy.deepcopy(made()), pickle.loads(pickle.dumps(made()))):
        calls: list[int] = []
        optimizer.register_step_pre_hook(lambda *_: calls.append(1))  # noqa: B023
        optimizer.step()
        assert calls == [1]


@pytest.mark.parametrize("hooked", [False, True])
def test_the_profiler_sees_the_step(hooked: bool) -> None:
    optimizer = made()
    if hooked:
        optimizer.register_step_pre_hook(lambda *_: None)
    optimizer.step()
    with torch.profiler.profile() as profile:
        optimizer.step()
    names = [event.key for event in profile.key_averages()]
    assert names.count("Optimizer.step#ContinualAdamW.step") == 1


def test_a_scheduler_counts_steps() -> None:
    optimizer = made()
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.5)
    for _ in range(2):
        optimizer.step()
        scheduler.step()  # would warn, and so fail, if it had not seen the step
    assert optimizer.param_groups[0]["lr"] == 1e-3 / 4


def test_an_optimizer_does_without_torchs_compiler_until_somebody_compiles() -> None:
    script = """
import sys, torch
from longtail import ContinualAdamW
p = torch.nn.Parameter(torch.ones(3))
p.grad = torch.ones(3)
optimizer = ContinualAdamW([p])
optimizer.step()
optimizer.end_task()
optimizer.load_state_dict(optimizer.state_dict())
assert not torch.is_inference_mode_enabled() and torch.is_grad_enabled()
print("torch._dynamo" in sys.modules)
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.stdout.strip() == "False", done.stderr
