"""Evaluation by generation: write an answer to every test question, score it as its field does."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from torch import nn

from longtail.tasks import Evaluator, Score, TaskSequence
from longtail.tasks.examples import Examples, read
from longtail_bench.decoder.answers import on_device
from longtail_bench.decoder.generate import Generator
from longtail_bench.decoder.tokens import Tokens
from longtail_bench.nlp5.examples import Example
from longtail_bench.nlp5.scores import score


class Evaluate(Evaluator):
    """Scores [tasks] of a model: mean over a task's test questions.

    Args:
        kinds: the task (squad, wikisql, ...) of every row of the table.
        examples: the questions, of every row.
        prompts: token ids of context and question, of every row.
        limits: tokens written at most, by task.
        tokens: the tokeniser.
        batch: questions answered at once.
    """

    # beside the score: the share of answers that are no SQL
    own_scores = (Score("unparsable", None, "percent", higher_is_better=False),)
    captured = False  # the generator looks into the model

    def __init__(
        self,
        kinds: Sequence[str],
        examples: Sequence[Example],
        prompts: Sequence[Sequence[int]],
        limits: Mapping[str, int],
        tokens: Tokens,
        batch: int = 256,
    ) -> None:
        self.kinds, self.examples, self.prompts = kinds, examples, prompts
        self.tokens, self.batch, self.limits = tokens, batch, limits
        self._generator: Generator | None = None

    def __call__(
        self, model: nn.Module, sequence: TaskSequence, tasks: range
    ) -> dict[str, np.ndarray]:
        """Scores of one task, or of all from the first on, and the share that did not parse."""
        if tasks.start == 0:
            examples, task = sequence.tests(tasks.stop)
            number = task.cpu().numpy()
        else:
            assert len(tasks) == 1
            examples = sequence.test(tasks.start)
            number = np.zeros(len(examples), dtype=np.int64)
        values = self._scores(model, examples)
        sums = np.stack([np.bincount(number, v, minlength=len(tasks)) for v in values])
        with np.errstate(invalid="ignore"):  # a task without test questions
            means = sums / np.bincount(number, minlength=len(tasks))
        return {"score": means[0], "unparsable": means[1]}

    def validation(self, model: nn.Module, sequence: TaskSequence, task: int) -> np.ndarray | None:
        """Mean score over a task's validation questions."""
        examples = sequence.validation(task)
        return None if examples is None else self._scores(model, examples)[0].mean()

    def answers(self, model: nn.Module, rows: Sequence[int]) -> list[str]:
        """What the model answers to the questions of these rows of the table."""
        generate = self._generate(model)
        texts = [""] * len(rows)
        for kind in dict.fromkeys(self.kinds[row] for row in rows):
            places = [i for i, row in enumerate(rows) if self.kinds[row] == kind]
            prompts = [self.prompts[rows[i]] for i in places]
            written = generate(model, prompts, self.limits[kind])
            for i, text in zip(places, self.tokens.decode(written), strict=True):
                texts[i] = text
        return texts

    def _scores(self, model: nn.Module, examples: Examples) -> np.ndarray:
        """Score, and whether the answer did not parse, of each row: [2, n]."""
        rows: list[int] = read(examples)[1].tolist()
        texts = self.answers(model, rows)
        found = np.zeros((2, len(rows)))
        for kind in dict.fromkeys(self.kinds[row] for row in rows):
            places = [i for i, row in enumerate(rows) if self.kinds[row] == kind]
            asked = [self.examples[rows[i]] for i in places]
            found[:, places] = np.asarray(score(kind, [texts[i] for i in places], asked))
        return found

    def _generate(self, model: nn.Module) -> Generator:
        if self._generator is None:
            half = on_device(model).type == "cuda"
            self._generator = Generator(self.tokens.end, self.batch, half)
        return self._generator
