"""Continual-learning methods. Multi-task training is `Finetune` on `tasks.multitask(sequence)`."""

from longtail.methods.agem import AGEM
from longtail.methods.base import Method, gradients
from longtail.methods.coma import CoMA
from longtail.methods.derpp import DERPlusPlus
from longtail.methods.ewc import EWC
from longtail.methods.ewcpp import EWCPlusPlus
from longtail.methods.finetune import Finetune
from longtail.methods.fisher import KIND_HELP, Fisher, Kind, check_kind
from longtail.methods.l2 import L2
from longtail.methods.lwf import LwF
from longtail.methods.quadratic import QuadraticPenalty
from longtail.methods.reservoir import Reservoir
from longtail.methods.synaptic import SynapticIntelligence
from longtail.support import doors

GROUP = "longtail.methods"
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
        CoMA,
    )
}


def names() -> list[str]:
    """The names of all methods: of the core, then of those that packages offer."""
    return list(dict.fromkeys([*METHODS, *doors.offered(GROUP)]))


def find(name: str) -> type[Method]:
    """The method of this name; `KeyError` where there is none."""
    if name in METHODS:
        return METHODS[name]
    cls = doors.load(GROUP, name)
    if not (isinstance(cls, type) and issubclass(cls, Method)):
        raise ValueError(f"method {name!r} is not a subclass of longtail.methods.Method")
    return cls


__all__ = [
    "AGEM",
    "EWC",
    "KIND_HELP",
    "L2",
    "METHODS",
    "CoMA",
    "DERPlusPlus",
    "EWCPlusPlus",
    "Finetune",
    "Fisher",
    "Kind",
    "LwF",
    "Method",
    "QuadraticPenalty",
    "Reservoir",
    "SynapticIntelligence",
    "check_kind",
    "find",
    "gradients",
    "names",
]
