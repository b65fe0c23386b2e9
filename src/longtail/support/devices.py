"""The device that something runs on, chosen and described; `machine.py` is what needs no torch."""

from __future__ import annotations

import os
import platform
from typing import Any

import torch

from longtail.support.machine import cpu_name

TYPES = ("cpu", "cuda", "mps")  # torch names more, which hold no numbers or need other packages


def hardware(device: torch.device | str) -> dict[str, Any]:
    device = torch.device(device)
    found = {
        "system": platform.system(),
        "cpu": cpu_name(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "device": str(device),
    }
    if device.type == "cuda":
        found["gpu"] = torch.cuda.get_device_name(device)
    return found


def choose_device(name: str) -> torch.device:
    """``auto`` is the GPU where there is one; what nothing trains on is a user's mistake."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
    except RuntimeError:
        raise ValueError(f"unknown device {name!r}; try cpu or cuda") from None
    if device.type not in TYPES:
        raise ValueError(f"device {name!r}: nothing trains on {device.type}; try cpu or cuda")
    if device.type == "mps" and not torch.backends.mps.is_available():
        raise ValueError(f"device {name!r} is not there: this machine or its torch has no MPS")
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        count = torch.cuda.device_count()
        raise ValueError(f"device {name!r} is not there: this machine has {count} CUDA devices")
    return device


def data_memory(device: str) -> int:
    """Bytes that the examples of one stack of runs may take: 2 GiB, or a quarter of the GPU's."""
    chosen = choose_device(device)
    if chosen.type == "cuda":
        return torch.cuda.get_device_properties(chosen).total_memory // 4
    return 2**31
