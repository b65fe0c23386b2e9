"""The ways in which a step can be taken: a test that asks for one runs on all."""

from typing import Any

import pytest

from helpers import optimizers


@pytest.fixture(params=optimizers.WAYS)
def implementation(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> dict[str, Any]:
    """Arguments of an optimizer; new parameters are on the device that they are for."""
    device, arguments = request.param
    monkeypatch.setattr(optimizers, "device", device)
    return arguments
