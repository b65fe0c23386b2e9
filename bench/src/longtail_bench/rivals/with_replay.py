"""Replay beside a memory of the weights: Reservoir's loss, and what another method does otherwise.

    L(θ) = L_reservoir(θ) + the penalty         or, at a task's end, the average of the other method

Each is its two parents and nothing else; their pages have the equations.
"""

from __future__ import annotations

from dataclasses import dataclass

from longtail.methods import L2, CoMA, Reservoir
from longtail_bench.rivals.cofima import CoFiMA
from longtail_bench.rivals.ewc_adam import EWCAdam


class ReservoirL2(Reservoir, L2):
    """Reservoir with a penalty around the last task's weights."""

    name = "reservoir_l2"
    stackable = True

    @dataclass(frozen=True)
    class Settings(Reservoir.Settings, L2.Settings):
        """Those of both."""


class ReservoirEWCAdam(Reservoir, EWCAdam):
    """Reservoir with EWC whose Fisher information is Adam's own second moment."""

    name = "reservoir_ewc_adam"
    stackable = True

    @dataclass(frozen=True)
    class Settings(Reservoir.Settings, EWCAdam.Settings):
        """Those of both."""


class ReservoirCoMA(Reservoir, CoMA):
    """Reservoir whose weights are averaged with those of before at a task's end."""

    name = "reservoir_coma"
    stackable = True

    @dataclass(frozen=True)
    class Settings(Reservoir.Settings, CoMA.Settings):
        """Those of both."""


class ReservoirCoFiMA(Reservoir, CoFiMA):
    """Reservoir whose weights are averaged by Fisher information at a task's end."""

    name = "reservoir_cofima"
    stackable = True

    @dataclass(frozen=True)
    class Settings(Reservoir.Settings, CoFiMA.Settings):
        """Those of both."""
