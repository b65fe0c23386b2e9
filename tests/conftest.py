"""Before anything else: what must be settled while torch is not imported yet."""

from __future__ import annotations

import os

import pytest

from longtail.support import amx

if "PYTEST_XDIST_WORKER" in os.environ:  # with a worker for each core, more threads only wait
    os.environ.setdefault("OMP_NUM_THREADS", "1")
AMX_TRAP = amx.avoid()  # workers of pytest-xdist and children of tests inherit the variable


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    if AMX_TRAP:
        terminalreporter.write_line(AMX_TRAP)
