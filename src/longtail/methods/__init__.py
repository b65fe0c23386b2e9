"""Continual-learning methods. Multi-task training is `Finetune` on `tasks.multitask(sequence)`."""

from longtail.methods.agem import AGEM
from longtail.methods.base import Method
from longtail.methods.coma import CoFiMA, CoMA
from longtail.methods.derpp import DERPlusPlus
from longtail.methods.ewc import EWC
from longtail.methods.ewc_adam import EWCAdam
from longtail.methods.ewcpp import EWCPlusPlus
from longtail.methods.finetune import Finetune
from longtail.methods.l2 import L2
from longtail.methods.lwf import LwF
from longtail.methods.reservoir import Reservoir
from longtail.methods.routed import RoutedAGEM, RoutedEWC
from longtail.methods.synaptic import SynapticIntelligence
from longtail.methods.with_replay import (
    ReservoirCoFiMA,
    ReservoirCoMA,
    ReservoirEWCAdam,
    ReservoirL2,
)

METHODS: dict[str, type[Method]] = {
    cls.name: cls
    for cls in (
        Finetune,
        EWC,
        EWCPlusPlus,
        Reservoir,
        DERPlusPlus,
        AGEM,
        L2,
        SynapticIntelligence,
        LwF,
        EWCAdam,
        RoutedEWC,
        RoutedAGEM,
        CoMA,
        CoFiMA,
        ReservoirL2,
        ReservoirEWCAdam,
        ReservoirCoMA,
        ReservoirCoFiMA,
    )
}

__all__ = [
    "AGEM",
    "EWC",
    "L2",
    "METHODS",
    "CoFiMA",
    "CoMA",
    "DERPlusPlus",
    "EWCAdam",
    "EWCPlusPlus",
    "Finetune",
    "LwF",
    "Method",
    "Reservoir",
    "ReservoirCoFiMA",
    "ReservoirCoMA",
    "ReservoirEWCAdam",
    "ReservoirL2",
    "RoutedAGEM",
    "RoutedEWC",
    "SynapticIntelligence",
]
