"""Split images on a GPU: augmentations as on a CPU, runs in bf16, stacks."""

from pathlib import Path

import pytest
import torch

from longtail.replicas import Replicas
from longtail.runs.config import resolve
from longtail.runs.session import RunOptions, train_run, train_stack
from longtail_bench.images.inputs import Pixels, RandomCropFlip
from longtail_bench.images.resnet import ResNet18

pytestmark = pytest.mark.gpu


def test_augmentation_and_normalisation_are_those_of_the_cpu() -> None:
    x = torch.randint(256, (3, 16, 3, 32, 32), dtype=torch.uint8)
    layers = [RandomCropFlip(7), Pixels((0.5, 0.4, 0.3), (0.2, 0.3, 0.4))]
    on_gpu = [RandomCropFlip(7).cuda(), Pixels((0.5, 0.4, 0.3), (0.2, 0.3, 0.4))]
    for images in x:
        expected, found = images, images.cuda()
        for cpu, gpu in zip(layers, on_gpu, strict=True):
            expected, found = cpu(expected), gpu(found)
        torch.testing.assert_close(found.cpu(), expected)


def test_a_stack_of_resnets_computes_what_one_does() -> None:
    models = [ResNet18(10, width=8).cuda() for _ in range(3)]
    x = torch.randn(3, 10, 3, 32, 32, device="cuda")
    with torch.backends.cudnn.flags(allow_tf32=False):
        found = Replicas(models)(x)[0]
        expected = torch.stack([model(x[s]) for s, model in enumerate(models)])
    torch.testing.assert_close(found, expected, rtol=1e-3, atol=1e-3)


def test_weights_lie_channels_last_on_the_gpu_alone() -> None:
    weight = ResNet18(10, width=8).cuda().conv1.weight
    assert weight.is_contiguous(memory_format=torch.channels_last)
    assert not weight.is_contiguous()
    assert ResNet18(10, width=8).cuda().cpu().conv1.weight.is_contiguous()


@pytest.mark.parametrize("method", ["finetune", "reservoir", "derpp", "agem", "multitask"])
def test_runs_in_bf16(tmp_path: Path, method: str) -> None:
    flags = {"data.miniature": True, "data.width": 8, "train.autocast": "bf16", "method": method}
    found = train_run(
        resolve("cifar10", flags=flags), tmp_path, RunOptions(quiet=True, device="cuda")
    )
    assert 0.0 <= found["RP"] <= 1.0


def test_a_stack_of_perceptrons_on_the_gpu_scores_as_on_the_cpu(tmp_path: Path) -> None:
    configs = [
        resolve("mnist", flags={"data.miniature": True, "method": "derpp", "seed": s, "lr": lr})
        for lr in (1e-3, 1e-2)
        for s in (0, 1)
    ]
    cpu, gpu = (
        train_stack(configs, tmp_path / device, RunOptions(quiet=True, device=device))
        for device in ("cpu", "cuda")
    )
    for a, b in zip(cpu, gpu, strict=True):
        assert a["summary"]["RP"] == pytest.approx(b["summary"]["RP"], abs=0.05)
