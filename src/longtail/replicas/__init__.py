"""Many copies of a small model as one program: `Replicas`, and what works on plain models as well.

`program.py` holds the class, `linear.py` its Linear layers, `per_replica.py` numbers of each
replica. A model whose class has a `forward_stacked` runs a stack of itself, by `linear`, `joined`
and `all_as_one` where they fit.
"""

from longtail.replicas.linear import all_as_one, is_special, joined, linear
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
    "all_as_one",
    "broadcast",
    "build_model",
    "dot",
    "is_special",
    "joined",
    "lead_of",
    "linear",
    "linear_chain",
    "members_of",
    "parameter_groups",
    "task_parameters",
]
