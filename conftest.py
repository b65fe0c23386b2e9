"""Before anything else: what must be settled while torch is not imported yet."""

from __future__ import annotations

import os

import pytest

if "PYTEST_XDIST_WORKER" in os.environ:  # with a worker for each core, more threads only wait
    os.environ.setdefault("OMP_NUM_THREADS", "1")
# Some sandboxes announce AMX and forbid it; torch reads this at its first product of bf16 matrices.
os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_BF16")

# Each is two methods of which tests over all methods have both; `make test-all` runs these too.
JOINED_METHODS = {"reservoir_l2", "reservoir_ewc_adam", "reservoir_coma", "reservoir_cofima"}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    gpu = [item for item in items if item.get_closest_marker("gpu") is not None]
    if gpu:
        import torch

        if not torch.cuda.is_available():
            for item in gpu:
                item.add_marker(pytest.mark.skip(reason="needs a CUDA device"))
    for item in items:
        params = getattr(getattr(item, "callspec", None), "params", {})
        if any(isinstance(value, str) and value in JOINED_METHODS for value in params.values()):
            item.add_marker(pytest.mark.slow)
