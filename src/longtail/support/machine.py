"""Where and with what something was computed: the part of a result that is not the result.

A report asks for it too, so nothing here needs torch: `devices.py` knows the GPU.
"""

from __future__ import annotations

import contextlib
import os
import platform
import subprocess
from datetime import UTC, datetime
from functools import cache
from importlib import metadata
from pathlib import Path

from longtail.names import __version__


def now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


def usable_cores() -> list[int]:
    """The numbers of the cores this process may use; by their count where nobody says which."""
    if hasattr(os, "sched_getaffinity"):  # Linux
        return sorted(os.sched_getaffinity(0))
    return list(range(os.cpu_count() or 1))


def most_threads() -> int:
    """The most CPU threads that may be asked for: beyond some thousands torch ends by a crash.

    No computation here gains from more than there are cores, and few machines have 1,024.
    """
    return max(1024, os.cpu_count() or 1)


def versions() -> dict[str, str]:
    found = {"python": platform.python_version(), "longtail": __version__}
    for package in ("torch", "numpy"):
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            found[package] = "unknown"
    if described := commit():
        found["commit"] = described
    return found


@cache
def commit() -> str | None:
    """The commit that longtail runs from: of its checkout, or that its wheel was built from.

    A copy without either (on a cluster's node) is told by the variable LONGTAIL_COMMIT. The first
    answer stays, since this process goes on with the code that it has read.
    """
    if told := os.environ.get("LONGTAIL_COMMIT"):
        return told
    here = Path(__file__).parent
    with contextlib.suppress(OSError):  # hatch_build.py puts it into wheels, never into a checkout
        return (here.parent / "COMMIT").read_text(encoding="utf-8").strip()
    command = ["git", "-C", str(here), "describe", "--always", "--dirty", "--abbrev=12"]
    if not (here.parents[2] / ".git").exists():
        return None
    with contextlib.suppress(OSError, subprocess.SubprocessError):
        done = subprocess.run(command, capture_output=True, text=True, timeout=5, check=True)
        return done.stdout.strip()
    return None


def cpu_name() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.processor() or platform.machine())
