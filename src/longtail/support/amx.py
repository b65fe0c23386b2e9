"""Keeps torch alive on a CPU that announces AMX in a sandbox that forbids it.

There torch's product of bf16 matrices dies with an illegal instruction and takes the process with
it. Nothing announces the trap, so a child process walks into it once. Where the child dies, oneDNN,
which makes torch's products, is told to leave AMX alone by a variable that it reads at its first
use: this must happen before torch is imported, and so this module does not import it.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import platform
import subprocess
import sys
from importlib import metadata
from pathlib import Path

from longtail.support.downloads import cache_folder
from longtail.support.files import write_atomic
from longtail.support.machine import cpu_name

VARIABLE = "ONEDNN_MAX_CPU_ISA"
WITHOUT_AMX = "AVX512_CORE_BF16"  # the best that oneDNN has short of AMX
# The limit keeps a child that dies from leaving a core file where the user works.
_PRODUCT = """
import resource, torch
resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
rows = torch.ones(64, 64, dtype=torch.bfloat16, requires_grad=True)
(rows @ rows.detach()).sum().backward()
torch.nn.functional.linear(rows, rows).sum().backward()
"""
PROBE = (sys.executable, "-c", _PRODUCT)
PATIENCE = 120.0  # seconds; importing torch from a cold disk may take many


def announced(cpuinfo: Path = Path("/proc/cpuinfo")) -> bool:
    """Whether the CPU says it has AMX; False where the system has no such file to ask."""
    try:
        lines = cpuinfo.read_text(encoding="utf-8").splitlines()
    except OSError:
        return False
    flags = next((line.partition(":")[2] for line in lines if line.startswith("flags")), "")
    return any(flag.startswith("amx") for flag in flags.split())


def avoid() -> str | None:
    """Set the variable where a bf16 product would kill this process; one line that says so.

    A variable that is set already is the user's and stays.
    """
    if VARIABLE in os.environ or not announced() or not _dies():
        return None
    os.environ[VARIABLE] = WITHOUT_AMX
    done = f"products of bf16 matrices die here (AMX is announced but forbidden): {VARIABLE}"
    if "torch" in sys.modules:
        return (
            f"{done} must be {WITHOUT_AMX} before torch is imported, and it has been imported "
            "already: new processes are safe, this one may not be"
        )
    return f"{done} was set to {WITHOUT_AMX}"


def _dies() -> bool:
    """The child's fate, remembered for this machine, system and torch."""
    try:
        torch = metadata.version("torch")
    except metadata.PackageNotFoundError:
        return False
    key = f"{cpu_name()}, {platform.node()}, {platform.platform()}, torch {torch}"
    path = cache_folder() / f"amx-{hashlib.sha256(key.encode()).hexdigest()[:16]}.json"
    with contextlib.suppress(OSError, ValueError):
        found = json.loads(path.read_text(encoding="utf-8"))
        if isinstance(found, dict) and found.get("key") == key:
            return found.get("dies") is True
    code = _probe()
    if code is not None:
        with contextlib.suppress(OSError):  # a cache that cannot be written costs seconds, no more
            path.parent.mkdir(parents=True, exist_ok=True)
            write_atomic(path, json.dumps({"key": key, "dies": _by_signal(code)}) + "\n")
    return _by_signal(code)


def _probe() -> int | None:
    """The child's exit status; None where it says nothing about AMX."""
    try:
        code = subprocess.run(PROBE, capture_output=True, timeout=PATIENCE).returncode
    except (OSError, subprocess.TimeoutExpired):
        return None
    return code if code == 0 or _by_signal(code) else None


def _by_signal(code: int | None) -> bool:
    """Whether a signal ended the child; a shell between us says so by 128 plus its number."""
    return code is not None and (code < 0 or code > 128)
