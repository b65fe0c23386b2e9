"""DeepSpeed's engine, stages 0 to 2, with the real package (`make test-frameworks`)."""

import importlib
import os
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from longtail import ContinualAdamW, end_task, load_memory, save_memory

pytestmark = [pytest.mark.filterwarnings("ignore")]

EXAMPLES = Path(__file__).parents[2] / "examples"
ALONE = {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0", "MASTER_ADDR": "127.0.0.1"}


@pytest.fixture(scope="module")
def deepspeed() -> Any:
    if "deepspeed" not in sys.modules and not _installed("deepspeed"):
        pytest.skip("DeepSpeed is not installed; `make test-frameworks` runs this")
    with pytest.MonkeyPatch.context() as patch:
        for name, value in {**ALONE, "MASTER_PORT": "29571", "DS_ACCELERATOR": "cpu"}.items():
            patch.setenv(name, value)
        import deepspeed

        # Its collectives in shared memory would be compiled first, for minutes; gloo does.
        patch.setitem(deepspeed.ops.__compatible_ops__, "deepspeed_shm_comm", False)
        deepspeed.init_distributed(dist_backend="gloo", verbose=False)
        yield deepspeed
        torch.distributed.destroy_process_group()


@pytest.fixture
def ours(monkeypatch: pytest.MonkeyPatch) -> Any:
    """What the example has for an engine."""
    monkeypatch.syspath_prepend(EXAMPLES)
    return importlib.import_module("deepspeed_memory")


def _installed(name: str) -> bool:
    from importlib.util import find_spec

    return find_spec(name) is not None


def model_of() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 2))


def batches(number: int = 3) -> list[torch.Tensor]:
    return [torch.randn(8, 4, generator=torch.Generator().manual_seed(i)) for i in range(number)]


def engine_of(deepspeed: Any, model: nn.Module, stage: int, bf16: bool = False) -> Any:
    config = {
        "train_micro_batch_size_per_gpu": 8,
        "zero_optimization": {"stage": stage},
        "zero_allow_untested_optimizer": True,
        "bf16": {"enabled": bf16},
    }
    optimizer = ContinualAdamW(model.parameters(), lr=1e-2, weight_decay=0.0)
    engine, *_ = deepspeed.initialize(model=model, optimizer=optimizer, config=config)
    return engine


def train(engine: Any) -> None:
    dtype = next(engine.module.parameters()).dtype
    for x in batches():
        engine.backward(engine(x.to(dtype)).square().mean())
        engine.step()


def trained_plainly() -> tuple[nn.Sequential, ContinualAdamW]:
    model = model_of()
    optimizer = ContinualAdamW(model.parameters(), lr=1e-2, weight_decay=0.0)
    for x in batches():
        optimizer.zero_grad()
        model(x).square().mean().backward()
        optimizer.step()
    return model, optimizer


@pytest.mark.parametrize("stage", [0, 1, 2])
def test_the_memory_is_that_of_a_plain_loop(
    deepspeed: Any, ours: Any, stage: int, tmp_path: Path
) -> None:
    engine = engine_of(deepspeed, model_of(), stage)
    train(engine)
    end_task(engine.optimizer)
    ours.save_memory(engine, tmp_path)

    model, optimizer = trained_plainly()
    optimizer.end_task()
    plain = model_of()
    loaded = ContinualAdamW(plain.parameters())
    report = load_memory(loaded, tmp_path, plain, quiet=True)
    assert (report.tasks, report.steps, len(report.loaded)) == (1, 3, 4)
    for mine, theirs in zip(plain.parameters(), model.parameters(), strict=True):
        expected = optimizer.state[theirs]["past_exp_avg_sq"]
        torch.testing.assert_close(loaded.state[mine]["past_exp_avg_sq"], expected)


@pytest.mark.parametrize("stage", [0, 1])
def test_next_week_goes_on_as_in_a_plain_loop(
    deepspeed: Any, ours: Any, stage: int, tmp_path: Path
) -> None:
    model, optimizer = trained_plainly()
    optimizer.end_task()
    save_memory(optimizer, tmp_path, model)

    plain = model_of()
    mine = ContinualAdamW(plain.parameters(), lr=1e-2, weight_decay=0.0)
    load_memory(mine, tmp_path, plain, quiet=True)
    for x in batches():
        mine.zero_grad()
        plain(x).square().mean().backward()
        mine.step()

    engine = engine_of(deepspeed, model_of(), stage)
    report = ours.load_memory(engine, tmp_path, quiet=True)
    assert len(report.loaded) == 4
    train(engine)
    for a, b in zip(engine.module.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(a, b)


def test_float32_copies_of_bf16_weights(deepspeed: Any, ours: Any, tmp_path: Path) -> None:
    engine = engine_of(deepspeed, model_of(), 1, bf16=True)
    train(engine)
    end_task(engine.optimizer)
    ours.save_memory(engine, tmp_path)
    model, optimizer = trained_plainly()
    optimizer.end_task()
    plain = model_of()
    loaded = ContinualAdamW(plain.parameters())
    assert len(load_memory(loaded, tmp_path, plain, quiet=True).loaded) == 4
    for mine, theirs in zip(plain.parameters(), model.parameters(), strict=True):
        expected = optimizer.state[theirs]["past_exp_avg_sq"]
        found = loaded.state[mine]["past_exp_avg_sq"]
        torch.testing.assert_close(found, expected, rtol=0.3, atol=1e-4)  # bf16 gradients


def test_pasts_of_two_lengths_in_one_flat_tensor_are_refused(
    deepspeed: Any, ours: Any, tmp_path: Path
) -> None:
    model, optimizer = trained_plainly()
    optimizer.state.pop(model[2].bias)
    optimizer.end_task()
    save_memory(optimizer, tmp_path, model)
    engine = engine_of(deepspeed, model_of(), 1)
    with pytest.raises(ValueError, match="pasts of 3 and of 0 steps"):
        ours.load_memory(engine, tmp_path, quiet=True)
    assert not any("past_steps" in state for state in engine.optimizer.optimizer.state.values())


SCRIPT = """
    import sys, torch, deepspeed
    sys.path[:0] = {paths!r}
    from test_deepspeed import engine_of, model_of, train
    from longtail import end_task
    import deepspeed_memory as ours
    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
    deepspeed.init_distributed(dist_backend="gloo", verbose=False)
    engine = engine_of(deepspeed, model_of(), 1)
    train(engine)
    end_task(engine.optimizer)
    ours.save_memory(engine, {folder!r})
    again = engine_of(deepspeed, model_of(), 1)
    ours.load_memory(again, {folder!r}, quiet=True)
    (a,), (b,) = (e.optimizer.optimizer.state.values() for e in (engine, again))
    torch.testing.assert_close(a["past_exp_avg_sq"], b["past_exp_avg_sq"])
"""


@pytest.mark.slow
def test_two_processes_each_with_its_part(deepspeed: Any, tmp_path: Path) -> None:
    script = tmp_path / "two.py"
    script.write_text(
        textwrap.dedent(SCRIPT).format(
            paths=[str(Path(__file__).parent), str(EXAMPLES)], folder=str(tmp_path)
        )
    )
    common = {**os.environ, "DS_ACCELERATOR": "cpu", "WORLD_SIZE": "2", "MASTER_PORT": "29572"}
    both = [
        subprocess.Popen(
            [sys.executable, script], env={**common, "RANK": str(i), "LOCAL_RANK": str(i)}
        )
        for i in range(2)
    ]
    assert [process.wait(timeout=300) for process in both] == [0, 0]
    model, optimizer = trained_plainly()  # both processes have the same batches
    optimizer.end_task()
    plain = model_of()
    loaded = ContinualAdamW(plain.parameters())
    load_memory(loaded, tmp_path, plain, quiet=True)
    for mine, theirs in zip(plain.parameters(), model.parameters(), strict=True):
        expected = optimizer.state[theirs]["past_exp_avg_sq"]
        torch.testing.assert_close(loaded.state[mine]["past_exp_avg_sq"], expected)
