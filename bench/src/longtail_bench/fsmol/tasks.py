"""Assays as tasks: a split inside each, an order, and the table that batches are read from."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import binary_cross_entropy_with_logits

from longtail.support.random import uniform
from longtail.tasks import (
    Batch,
    Objective,
    Rows,
    Score,
    Segments,
    TableSequence,
    order_sampled,
)
from longtail.tasks.examples import Device, Index
from longtail_bench.fsmol.prepared import Prepared


def _loss(outputs: Tensor, targets: Tensor) -> Tensor:
    targets = targets.expand(outputs.shape)
    return binary_cross_entropy_with_logits(outputs, targets, reduction="none")


def _is_right(outputs: Tensor, targets: Tensor) -> Tensor:
    return ((outputs > 0) == (targets > 0.5)).float()


ACTIVITY = Objective(_loss, (Score("accuracy", _is_right, "percent", higher_is_better=True),))


class MoleculeTable:
    """Rows (fingerprint, task) and label; a molecule's fingerprint is there once.

    Args:
        fingerprints: uint8 [M, W], packed bits or counts.
        molecule: [N], the molecule of each row.
        task: [N], the place of its assay in the sequence.
        targets: float32 [N].
    """

    capturable = True

    def __init__(
        self, fingerprints: Tensor, molecule: Tensor, task: Tensor, targets: Tensor
    ) -> None:
        self.fingerprints, self.molecule = fingerprints, molecule
        self.task, self.targets = task, targets

    def __len__(self) -> int:
        return len(self.targets)

    def __getitem__(self, index: Index) -> Batch:
        if isinstance(index, slice):
            index = torch.arange(*index.indices(len(self)), device=self.targets.device)
        if index.device != self.targets.device:
            index = index.to(self.targets.device)
        flat = index if index.ndim == 1 else index.flatten()
        bits = self.fingerprints.index_select(0, self.molecule.index_select(0, flat))
        task, targets = self.task.index_select(0, flat), self.targets.index_select(0, flat)
        if index.ndim == 1:
            return (bits, task), targets
        inputs = bits.unflatten(0, index.shape), task.view(index.shape)
        return inputs, targets.view(index.shape)

    def narrow(self, start: int, stop: int) -> Rows:
        return Rows(self, torch.arange(start, stop, device=self.targets.device))

    def to(self, device: Device) -> MoleculeTable:
        columns = (self.fingerprints, self.molecule, self.task, self.targets)
        return MoleculeTable(*(column.to(device) for column in columns))


def assay_tasks(
    prepared: Prepared,
    seed: int,
    *,
    tasks: int = 0,
    cap: int = 0,
    test_share: float = 0.2,
    counts: bool = False,
) -> TableSequence:
    """Split every assay, put them in order, cut to size where that is asked for.

    The next assay is drawn with a chance proportional to its size, so that large ones tend to come
    early.

    Args:
        prepared: the data.
        seed: of the split, the cap and the order.
        tasks: only so many tasks, the first in the order; 0 for all.
        cap: at most so many training molecules a task; 0 for all.
        test_share: of the active and of the inactive molecules of each assay.
        counts: fingerprints of counts in place of bits.
    """
    sizes = prepared.sizes
    order = order_sampled(sizes, seed)
    chance = uniform(len(prepared.label), seed, "split").numpy()
    is_test = split(prepared, chance, test_share)
    assay = np.repeat(np.arange(len(sizes)), sizes)
    is_train = ~is_test
    if cap:
        is_train &= _rank(assay, np.where(is_train, chance, 2.0)) < cap
    place = np.empty(len(order), np.int64)
    place[order] = np.arange(len(order))
    fingerprints = prepared.dense_counts() if counts else prepared.packed()
    table = MoleculeTable(
        torch.from_numpy(fingerprints),
        torch.from_numpy(prepared.molecule.astype(np.int64)),
        torch.from_numpy(place[assay]),
        torch.from_numpy(prepared.label.astype(np.float32)),
    )
    train, test = (_segments(chosen, assay, len(sizes)) for chosen in (is_train, is_test))
    whole = TableSequence(table, train, test, ACTIVITY, prepared.names)
    return whole.select(order[:tasks] if tasks else order)


def split(prepared: Prepared, chance: np.ndarray, share: float) -> np.ndarray:
    """Which rows are tests, bool [N]: `share` of the actives and of the inactives of each assay.

    At least one of each. A molecule that an assay lists more than once is on one side only.
    """
    assay = np.repeat(np.arange(len(prepared.sizes)), prepared.sizes)
    key = assay * prepared.molecules + prepared.molecule
    _, first, unit = np.unique(key, return_index=True, return_inverse=True)
    stratum = assay[first] * 2 + prepared.label[first]
    sizes = np.bincount(stratum, minlength=2 * len(prepared.sizes))
    quota = np.maximum(np.rint(share * sizes).astype(np.int64), 1)
    quota = np.minimum(quota, sizes - 1)  # the only molecule of its kind is for training
    chosen = _rank(stratum, chance[first]) < quota[stratum]
    return chosen[unit]


def _rank(group: np.ndarray, value: np.ndarray) -> np.ndarray:
    """The place of each value among those of its group, from zero."""
    order = np.lexsort((value, group))
    sizes = np.bincount(group)
    starts = np.cumsum(sizes) - sizes
    rank = np.empty(len(group), np.int64)
    rank[order] = np.arange(len(group)) - starts[group[order]]
    return rank


def _segments(chosen: np.ndarray, assay: np.ndarray, count: int) -> Segments:
    sizes = np.bincount(assay[chosen], minlength=count)
    return Segments(np.cumsum([0, *sizes]), torch.from_numpy(np.flatnonzero(chosen)))
