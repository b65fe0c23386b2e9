"""FS-Mol's captured steps on a GPU: the CPU's results, and no head moves but the task's own."""

import copy

import pytest
import torch

from longtail.metrics import summary
from longtail.replicas import Replicas
from longtail.runs.build import build_run, build_stack
from longtail.runs.config import resolve
from longtail.training import train
from longtail_bench.fsmol.model import MoleculeNet

pytestmark = pytest.mark.gpu

REPLAY = ("reservoir", "derpp", "agem")


def config(method: str, policy: str, seed: int = 0, **more):
    flags = {"data.miniature": True, "data.tasks": 12, "method": method, "policy": policy}
    flags |= {"seed": seed, "train.evaluate_every": 5, "train.batch_size": 16, **more}
    if method in REPLAY:
        flags["methods.buffer"] = 60
    return resolve("fsmol", flags=flags)


@pytest.mark.parametrize("policy", ["continual", "kept"])
@pytest.mark.parametrize(
    "method", ["finetune", "ewc", "ewcpp", "reservoir", "derpp", "agem", "multitask"]
)
def test_a_stack_on_a_gpu_gives_what_the_cpu_gives(method: str, policy: str) -> None:
    configs = [config(method, policy, seed) for seed in (0, 1)]
    found = []
    for device in ("cuda", "cpu"):
        run = build_stack(configs, device).run
        train(run)
        found.append([summary(run.matrices[name])["RP"] for name in ("accuracy", "roc_auc")])
    for ours, theirs in zip(*found, strict=True):
        assert abs(ours - theirs).max() < 0.03


@pytest.mark.parametrize("policy", ["continual", "new", "kept"])
@pytest.mark.parametrize("method", ["finetune", "ewc", "ewcpp", *REPLAY])
def test_captured_steps_move_no_other_head(method: str, policy: str) -> None:
    run = build_run(config(method, policy, **{"train.weight_decay": 0.1}), "cuda")
    model = run.model

    def heads() -> torch.Tensor:
        table = model.heads.clone()
        table[int(model.current)] = model.head.detach()
        return table

    before = heads()

    def look(_run) -> None:
        nonlocal before
        now = heads()
        moved = (now != before).any(-1).nonzero().flatten().tolist()
        assert moved in ([], [int(model.current)])
        before = now

    train(run, on_step=look)


def test_policies_share_one_product_and_answer_as_on_a_cpu() -> None:
    generator = torch.Generator().manual_seed(0)
    stack = Replicas([MoleculeNet(7, (256, 16)) for _ in range(2)], policies=3)
    for tensor in (*stack.parameters(), *(m.heads for m in stack.members)):
        tensor.data.normal_(0, 0.1, generator=generator)
    bits = torch.randint(256, (2, 5, 256), dtype=torch.uint8, generator=generator)
    task = torch.tensor([[0, 0, 3, 6, 2], [0, 1, 0, 5, 6]])
    found = []
    for device in ("cpu", "cuda"):
        there = copy.deepcopy(stack).to(device)
        logits = there((bits.to(device), task.to(device)))
        logits.square().sum().backward()
        found.append([logits, *(p.grad for p in there.parameters())])
    for ours, theirs in zip(*found, strict=True):
        torch.testing.assert_close(ours, theirs.cpu(), rtol=1e-3, atol=1e-3)
