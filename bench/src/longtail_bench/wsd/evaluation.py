r"""What a model scores on targets.

A target is right if the candidate with the largest score is one of its gold senses:

    right(t) = gold[argmax_k z(t, k)]            one forward pass over all pairs, by length,
                                                 then the arg-max of each target's segment
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from longtail.metrics import ScoreMatrix
from longtail.support.eval_mode import evaluation_mode
from longtail.tasks import Evaluator, Ragged
from longtail_bench.wsd.baselines import describe
from longtail_bench.wsd.pairs import PairTable
from longtail_bench.wsd.tasks import WordTasks

# Tokens of all replicas in one batch: enough to keep the device busy, little enough to fit.
TOKENS = {"cpu": 1 << 14, "cuda": 1 << 17}


class Evaluation(Evaluator):
    """``evaluation(model, sequence, tasks)``: accuracy of each task, [*lead, len(tasks)].

    The result stays on the device, so that a task's score costs no wait.
    """

    def __init__(self) -> None:
        self._union: tuple[nn.Module, Tensor] | None = None

    def __call__(self, model: nn.Module, sequence: Any, tasks: range) -> Tensor:
        words = _words(sequence)
        if words is sequence:
            return self.accuracy(model, words, tasks)
        # All tasks learned as one: after the first, which is that, no weight changes any more.
        known = self._union
        if known is None or known[0] is not model or tasks.stop == 1:
            known = self._union = model, self.accuracy(model, words, range(len(words)))
        return known[1][..., tasks.start : tasks.stop]

    def accuracy(self, model: nn.Module, words: WordTasks, tasks: range) -> Tensor:
        right = self.right(model, words.pairs, words.targets("test", tasks))
        sizes = torch.from_numpy(words.test_sizes[tasks.start : tasks.stop])
        if len(tasks) == 1:
            return right.mean(-1, keepdim=True, dtype=torch.float64)
        task = torch.repeat_interleave(sizes).to(right.device)
        sums = right.new_zeros((*right.shape[:-1], len(tasks)), dtype=torch.float64)
        sums.index_add_(-1, task, right.double())
        return sums / sizes.to(right.device)

    def validation(self, model: nn.Module, sequence: Any, task: int) -> Tensor:
        """Accuracy [*lead] on a task's validation targets; on all of them for the union."""
        targets = _held_out(sequence, task)
        return self.right(model, _words(sequence).pairs, targets).mean(-1, dtype=torch.float64)

    def validation_size(self, sequence: Any, task: int) -> int:
        """Targets, not pairs; all tasks as one are one part, also where the first has none."""
        words = _words(sequence)
        segments = words.segments("validation")
        assert segments is not None
        return int(segments.sizes[task] if words is sequence else segments.sizes.sum())

    def right(self, model: nn.Module, table: PairTable, targets: np.ndarray) -> Tensor:
        """1 where the best candidate is a right one, [*lead, n], of targets [n] or [S, n]."""
        lead: tuple[int, ...] = getattr(model, "lead", ())
        senses = table.targets.senses
        many = senses[targets if targets.ndim == 1 else targets[0]] > 1
        found = torch.ones((*lead, targets.shape[-1]), device=table.device)
        if not many.any():  # one candidate: no model can miss it
            return found
        chosen = targets[..., many]
        pairs = table.targets.pairs_of(chosen)
        sizes = senses[chosen if chosen.ndim == 1 else chosen[0]]
        scores = self.scores(model, table, pairs, lead)
        gold, segments = (_sent(x, table) for x in (table.targets.gold[pairs], sizes))
        right = best_is_gold(scores, gold, segments)
        if many.all():
            return right
        found[..., _sent(np.flatnonzero(many), table)] = right
        return found

    def scores(
        self, model: nn.Module, table: PairTable, pairs: np.ndarray, lead: tuple[int, ...]
    ) -> Tensor:
        """The model's scores [*lead, n] of pairs [n] or [S, n], computed from long to short."""
        order = np.argsort(-table.targets.length[pairs], axis=-1, kind="stable")
        ordered = np.take_along_axis(pairs, order, -1)
        limit = TOKENS.get(table.device.type, TOKENS["cpu"]) // max(1, int(np.prod(lead)))
        parts, start = [], 0
        with evaluation_mode(model), torch.no_grad():
            while start < pairs.shape[-1]:
                width = table.width(int(table.targets.length[ordered[..., start]].max()))
                stop = start + max(1, limit // width)
                inputs, _ = table[torch.from_numpy(ordered[..., start:stop])]
                if lead and pairs.ndim == 1:  # all replicas see the same pairs
                    inputs = Ragged(*(t.expand(lead[1], *t.shape) for t in inputs))
                parts.append(model(inputs).float())
                start = stop
        joined = parts[0] if len(parts) == 1 else torch.cat(parts, -1)
        back = _sent(np.argsort(order, axis=-1), table)
        return joined.gather(-1, back.expand(joined.shape))

    def summary(self, matrix: ScoreMatrix, sequence: Any) -> dict[str, Any]:
        """What summary.json holds beside the four metrics: see `describe`."""
        return describe(matrix, _words(sequence))


def best_is_gold(scores: Tensor, gold: Tensor, sizes: Tensor) -> Tensor:
    """Whether the first largest score of each segment is gold: [*lead, segments].

    Args:
        scores: [*lead, n].
        gold: [n], or [S, n] where the last leading dimension has its own.
        sizes: how long each segment is; they sum to n.
    """
    segment = torch.repeat_interleave(sizes, output_size=scores.shape[-1]).expand(scores.shape)
    shape = (*scores.shape[:-1], len(sizes))
    best = scores.new_full(shape, -torch.inf).scatter_reduce(-1, segment, scores, "amax")
    place = torch.arange(scores.shape[-1], device=scores.device).expand(scores.shape)
    place = place.masked_fill(scores != best.gather(-1, segment), scores.shape[-1])
    first = place.new_full(shape, scores.shape[-1]).scatter_reduce(-1, segment, place, "amin")
    known = first < scores.shape[-1]  # NaN is no largest score of anything
    right = gold.expand(scores.shape).gather(-1, first.clamp(max=scores.shape[-1] - 1))
    return torch.where(known, right.float(), torch.nan)


def _sent(array: np.ndarray, table: PairTable) -> Tensor:
    """On the device, without waiting for it: a plain `to` would, once for every task."""
    return torch.from_numpy(array).to(table.device, non_blocking=True)


def _held_out(sequence: Any, task: int) -> np.ndarray:
    """A task's validation targets, [n] or [S, n]; those of all tasks for their union."""
    words = _words(sequence)
    tasks = range(task, task + 1) if words is sequence else range(len(words))
    return words.targets("validation", tasks)


def _words(sequence: Any) -> WordTasks:
    """The tasks themselves, also of their union (`multitask`)."""
    return sequence if isinstance(sequence, WordTasks) else sequence.sequence
