"""Task sequences: ordered, lazily read lists of tasks, and how to make them from your data.

    sequence = from_tensors([("cats", (x, y), (x_test, y_test)), ...], CLASSIFICATION)
    sequence = sequence.select(order_sampled(sequence.train_sizes, seed=0))
    sequence = validation_share(sequence, seed=0, share=0.05)

Tables of examples live in `examples.py`, losses and scores in `objectives.py`, tasks in
`sequences.py`, orders, splits and unions in `ordering.py`, your own data in `adapters.py`, the pass
that scores a model on all tasks in `evaluator.py`.
"""

from longtail.tasks.adapters import DatasetExamples, from_datasets, from_hf, from_tensors
from longtail.tasks.evaluator import Evaluator
from longtail.tasks.examples import (
    Batch,
    Device,
    Examples,
    Inputs,
    Ragged,
    RaggedColumn,
    Rows,
    StackedExamples,
    Table,
    TensorExamples,
    leaves,
    map_leaves,
    move,
    ragged_examples,
    read,
)
from longtail.tasks.objectives import CLASSIFICATION, REGRESSION, Objective, Outputs, Score
from longtail.tasks.ordering import (
    multitask,
    order_by_frequency,
    order_by_size,
    order_sampled,
    size_statistics,
    split,
    tail_plot,
    validation_share,
)
from longtail.tasks.sequences import Segments, TableSequence, Task, TaskSequence, floor
from longtail.tasks.task_models import TaskModel

__all__ = [
    "CLASSIFICATION",
    "REGRESSION",
    "Batch",
    "DatasetExamples",
    "Device",
    "Evaluator",
    "Examples",
    "Inputs",
    "Objective",
    "Outputs",
    "Ragged",
    "RaggedColumn",
    "Rows",
    "Score",
    "Segments",
    "StackedExamples",
    "Table",
    "TableSequence",
    "Task",
    "TaskModel",
    "TaskSequence",
    "TensorExamples",
    "floor",
    "from_datasets",
    "from_hf",
    "from_tensors",
    "leaves",
    "map_leaves",
    "move",
    "multitask",
    "order_by_frequency",
    "order_by_size",
    "order_sampled",
    "ragged_examples",
    "read",
    "size_statistics",
    "split",
    "tail_plot",
    "validation_share",
]
