"""FS-Mol: 5,131 assays of ChEMBL, each a task: is this molecule active?

Sizes run from 3,594 molecules down to 32, the largest tenth of the assays has 45% of the labels.
Molecules are Morgan fingerprints of 2,048 bits, the model a perceptron with one head an assay, so
that a run over all tasks takes a minute on one core. The order of the assays and the split inside
each follow ``data.seed``; the run's seed sets the first weights, the batches and the validation
share.

================= ==========================================================================
assays            the published files, line by line
morgan            fingerprints from SMILES, where the files have none (RDKit)
prepared          each molecule once, as a folder of tables
data              where the files are, fetching them, what they hold (`longtail data fsmol`)
miniature         made-up molecules
tasks             split, order and cap: the sequence of tasks
model             a trunk, and heads of which one is learned at a time
evaluation        accuracy and ROC-AUC of all tasks in one pass
================= ==========================================================================
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from longtail.benchmarks import Benchmark, BenchmarkSpec
from longtail.names import option
from longtail_bench.fsmol.data import prepared_from
from longtail_bench.fsmol.evaluation import Evaluation
from longtail_bench.fsmol.miniature import miniature
from longtail_bench.fsmol.model import MoleculeNet
from longtail_bench.fsmol.prepared import Prepared, load
from longtail_bench.fsmol.tasks import assay_tasks

__all__ = ["SPEC", "Settings", "build", "prepared_of"]


@dataclass(frozen=True)
class Settings:
    """Which assays, how they are split, and what learns them."""

    tasks: int = option(0, "only so many assays, the first of the order; 0: all")
    cap: int = option(0, "training molecules of an assay at most; 0: all of them")
    test_share: float = option(0.2, "of the actives and of the inactives of each assay")
    seed: int = option(0, "seed of the split and of the order of the assays")
    fingerprint: Literal["binary", "count"] = option("binary", "2,048 bits, or counts")
    hidden: tuple[int, ...] = option((256, 128), "widths of the trunk's layers")
    source: str = option("", "FS-Mol, folder or archive; empty: where `longtail data` puts it")
    prepared: str = option("", "prepared folder, in place of source")
    miniature: bool = option(False, "the built-in molecules: needs no files")

    def __post_init__(self) -> None:
        for name in ("tasks", "cap", "seed"):
            if getattr(self, name) < 0:
                raise ValueError(f"Invalid {name}: {getattr(self, name)}")
        if not 0 < self.test_share < 1:
            raise ValueError(f"Invalid test_share: {self.test_share}, should be between 0 and 1")
        if not self.hidden or min(self.hidden) < 1:
            raise ValueError(f"Invalid hidden: {self.hidden}, should be one width or more")
        given = [name for name in ("source", "prepared") if getattr(self, name)]
        if len(given) + self.miniature > 1:
            raise ValueError(
                f"{' and '.join([*given, *['miniature'] * self.miniature])} exclude each other"
            )


def build(settings: Settings, seed: int) -> Benchmark:
    """The tasks and the model; only the model's first weights depend on the run's seed."""
    prepared = prepared_of(settings)
    if settings.tasks > len(prepared.names):
        raise ValueError(f"Invalid tasks: {settings.tasks}, there are {len(prepared.names)} assays")
    sequence = assay_tasks(
        prepared,
        settings.seed,
        tasks=settings.tasks,
        cap=settings.cap,
        test_share=settings.test_share,
        counts=settings.fingerprint == "count",
    )
    count = len(sequence)

    def make_model(seed: int) -> MoleculeNet:
        return MoleculeNet(count, settings.hidden)

    def make_joint_model(seed: int) -> MoleculeNet:
        return MoleculeNet(count, settings.hidden, joint=True)

    return Benchmark(sequence, make_model, Evaluation(), make_joint_model)


def prepared_of(settings: Settings) -> Prepared:
    """The molecules: built in, from a prepared folder, from the cache, or made of the files now."""
    if settings.miniature:
        return miniature()
    return load(settings.prepared) if settings.prepared else prepared_from(settings.source)


SPEC = BenchmarkSpec(
    Settings,
    build,
    # two steps for the smallest assay: in the first of a task the trunk has no gradient
    train={"batch_size": 16, "evaluate_every": 1000, "cuda_graph": True},
    method_settings={
        # a backward pass a batch: squaring each molecule's gradient takes longer than training
        "ewc": {"strength": 10.0, "fisher": "batch"},
        "cofima": {"fisher": "batch"},
        "ewcpp": {"strength": 1e4, "decay": 0.9},
        "reservoir": {"buffer": 3863},  # 1% of the training molecules
        "derpp": {"buffer": 3863},
        "agem": {"buffer": 3863},
    },
    stackable=True,  # the data depend on data.seed, not on the run's
    captured_fisher=True,
)
