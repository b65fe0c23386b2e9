"""Many copies of a small model as one program: `Replicas`, and what works on plain models as well.

`program.py` holds the class, `linear.py` its Linear layers, `per_replica.py` numbers of each
replica, `factored.py` inputs that are a product of two.
"""

from longtail.replicas.per_replica import PerReplica
from longtail.replicas.program import (
    Replicas,
    broadcast,
    build_model,
    dot,
    lead_of,
    linear_chain,
    members_of,
    parameter_groups,
    task_parameters,
)

__all__ = [
    "PerReplica",
    "Replicas",
    "broadcast",
    "build_model",
    "dot",
    "lead_of",
    "linear_chain",
    "members_of",
    "parameter_groups",
    "task_parameters",
]
