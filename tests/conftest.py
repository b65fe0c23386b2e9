"""Before anything else: what must be settled while torch is not imported yet."""

from __future__ import annotations

import os

import pytest

from longtail.support import amx

if "PYTEST_XDIST_WORKER" in os.environ:  # with a worker for each core, more threads only wait
    os.environ.setdefault("OMP_NUM_THREADS", "1")
AMX_TRAP = amx.avoid()  # workers of pytest-xdist and children of tests inherit the variable

# Each is two methods of which tests over all methods have both; `make test-all` runs these too.
JOINED_METHODS = {"reservoir_l2", "reservoir_ewc_adam", "reservoir_coma", "reservoir_cofima"}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        params = getattr(getattr(item, "callspec", None), "params", {})
        if any(isinstance(value, str) and value in JOINED_METHODS for value in params.values()):
            item.add_marker(pytest.mark.slow)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    if AMX_TRAP:
        terminalreporter.write_line(AMX_TRAP)
