"""Ray Train's workers, with the real package (`make test-frameworks`)."""

import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from longtail import ContinualAdamW, load_memory

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]


def week(settings: dict[str, Any]) -> None:
    """What a user gives to Ray: two workers train one model under DDP, and share its memory."""
    import ray.train.torch
    import torch
    from torch import nn

    from longtail import ContinualAdamW, load_memory, save_memory

    torch.manual_seed(0)
    model = ray.train.torch.prepare_model(nn.Linear(4, 2), move_to_device=False)
    optimizer = ContinualAdamW(model.parameters(), lr=1e-2)
    if settings["week"] > 1:
        report = load_memory(optimizer, settings["folder"], model, quiet=True)
        assert report.tasks == settings["week"] - 1, report
    rank = ray.train.get_context().get_world_rank()
    for step in range(3):
        x = torch.randn(8, 4, generator=torch.Generator().manual_seed(10 * step + rank))
        optimizer.zero_grad()
        model(x).square().mean().backward()
        optimizer.step()
    optimizer.end_task()
    save_memory(optimizer, settings["folder"], model)


def test_two_weeks_on_two_workers(tmp_path: Path) -> None:
    if find_spec("ray") is None:
        pytest.skip("Ray is not installed; `make test-frameworks` runs this")
    ray = pytest.importorskip("ray")
    trainers = pytest.importorskip("ray.train.torch")
    from ray import cloudpickle
    from ray.train import RunConfig, ScalingConfig

    cloudpickle.register_pickle_by_value(sys.modules[__name__])  # workers cannot import a test
    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False)
    try:
        for number in (1, 2):
            trainers.TorchTrainer(
                week,
                train_loop_config={"week": number, "folder": str(tmp_path / "memory")},
                scaling_config=ScalingConfig(num_workers=2),
                run_config=RunConfig(storage_path=str(tmp_path / "ray"), name=f"week{number}"),
                torch_config=trainers.TorchConfig(backend="gloo"),
            ).fit()
    finally:
        ray.shutdown()
    model = nn.Linear(4, 2)
    optimizer = ContinualAdamW(model.parameters())
    report = load_memory(optimizer, tmp_path / "memory", model, quiet=True)
    assert (report.tasks, report.steps, len(report.loaded)) == (2, 6, 2)
    assert torch.isfinite(optimizer.state[model.weight]["past_exp_avg_sq"]).all()
