"""Generation as CUDA graphs writes what it writes step by step, also when the weights change."""

import pytest
import torch

from longtail.runs.build import build_run
from longtail.runs.config import resolve
from longtail.training import train
from longtail_bench.decoder.generate import Generator
from longtail_bench.decoder.llama import Llama, LlamaConfig

pytestmark = pytest.mark.gpu

CONFIG = LlamaConfig(300, 128, 3, 8, 2, 256)


def prompts(count: int) -> list[list[int]]:
    generator = torch.Generator().manual_seed(0)
    lengths = torch.randint(3, 90, (count,), generator=generator).tolist()
    return [torch.randint(0, 299, (n,), generator=generator).tolist() for n in lengths]


def model() -> Llama:
    torch.manual_seed(0)
    made = Llama(CONFIG).cuda()
    with torch.no_grad():
        for p in made.parameters():
            p.mul_(4)  # far from uniform, so that rounding does not choose the token
    return made


@pytest.mark.parametrize("half", [False, True])
def test_captured_generation_is_eager_generation(half: bool) -> None:
    net = model()
    eager, captured = (Generator(299, 32, half, capture) for capture in (False, True))
    asked = prompts(50)
    first = eager(net, asked, 20)
    assert captured(net, asked, 20) == first
    with torch.no_grad():
        net.norm.mul_(torch.linspace(-1, 1, 128, device="cuda"))
    second = eager(net, asked, 20)
    assert second != first
    assert captured(net, asked, 20) == second
    assert captured(net, asked[:7], 20) == eager(net, asked[:7], 20)


def test_gpu_generation_is_cpu_generation() -> None:
    net = model()
    asked = prompts(20)
    assert Generator(299)(net, asked, 12) == Generator(299)(net.cpu(), asked, 12)


@pytest.mark.parametrize("method", ["finetune", "ewc", "ewcpp", "reservoir", "derpp", "agem"])
def test_captured_steps_are_eager_steps(method: str) -> None:
    """Of the benchmark's miniature: widths differ from batch to batch."""
    weights = []
    for captured in (False, True):
        options = {"data.miniature": True, "data.order": ["sst", "woz"], "train.batch_size": 8}
        options |= {"train.cuda_graph": captured, "method": method, "train.epochs": 2}
        run = build_run(resolve("nlp5", flags=options), "cuda")
        train(run)
        weights.append(torch.cat([p.detach().flatten() for p in run.model.parameters()]))
    moved = (weights[0] - weights[1]).abs().max()
    assert moved < 2e-4, moved  # sums in another order; a step moves weights by up to 6e-5
