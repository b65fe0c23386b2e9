"""Continual-learning methods. Multi-task training is `Finetune` on `tasks.multitask(sequence)`."""

from longtail.methods.agem import AGEM
from longtail.methods.base import Method
from longtail.methods.derpp import DERPlusPlus
from longtail.methods.ewc import EWC
from longtail.methods.ewcpp import EWCPlusPlus
from longtail.methods.finetune import Finetune
from longtail.methods.reservoir import Reservoir

METHODS: dict[str, type[Method]] = {
    cls.name: cls for cls in (Finetune, EWC, EWCPlusPlus, Reservoir, DERPlusPlus, AGEM)
}

__all__ = [
    "AGEM",
    "EWC",
    "METHODS",
    "DERPlusPlus",
    "EWCPlusPlus",
    "Finetune",
    "Method",
    "Reservoir",
]
