"""The CUDA code must not get in the way where there is no CUDA, and no Triton."""

import subprocess
import sys

import torch

from longtail.optim.cuda import step as fused_cuda

BLOCKED = """
import sys
class Refuse:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] == "triton":
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
sys.meta_path.insert(0, Refuse())
import torch
from longtail import ContinualAdamW
from longtail.optim.cuda import step as fused_cuda
p = torch.nn.Parameter(torch.ones(3))
opt = ContinualAdamW([p])
p.grad = torch.ones(3)
opt.step()
opt.end_task()
assert not fused_cuda.available([p])
assert "triton" not in sys.modules
"""


def test_available_only_for_cuda() -> None:
    assert not fused_cuda.available([])
    assert not fused_cuda.available([torch.zeros(3)])


def test_works_without_triton() -> None:
    subprocess.run([sys.executable, "-c", BLOCKED], check=True)
