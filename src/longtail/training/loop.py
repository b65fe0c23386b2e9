"""THE loop: every task, every epoch, every batch, and what happens between tasks.

`train` below is all of it, with `step.py` for what happens to one batch. `Run` holds everything
that changes while they run, so that a snapshot of it, taken after any step, continues bit for bit.
"""

from __future__ import annotations

import contextlib
import copy
import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from longtail.methods import Method
from longtail.methods.saved import restore_beside, saved_beside
from longtail.metrics import ScoreMatrix
from longtail.names import POLICIES, Policy
from longtail.replicas import lead_of, parameter_groups
from longtail.support.random import Seed, permutation
from longtail.tasks import Evaluator, Examples, Score, TaskSequence
from longtail.tasks.examples import in_order, rows_device
from longtail.tasks.keywords import accept_keywords
from longtail.tasks.objectives import check_names
from longtail.training.averaging import build_average, of_average
from longtail.training.best_epoch import Best, keep_best, load_best, restore_best
from longtail.training.boundary import end_task, set_mode
from longtail.training.cuda_graphs import GraphForward, GraphStep
from longtail.training.divergence import Divergence
from longtail.training.evaluation import Function, as_evaluator, due
from longtail.training.optimizer import (
    autocast,
    begin_task,
    build_optimizer,
    captures,
    compile_model,
    load_optimizer,
    optimizer_state,
    set_learning_rate,
)
from longtail.training.optimizer_class import find_optimizer
from longtail.training.recorder import Recorder
from longtail.training.settings import TrainSettings
from longtail.training.step import step

_NOTHING = contextlib.nullcontext()

__all__ = ["POLICIES", "Interrupted", "Policy", "Position", "Run", "TrainSettings", "train"]


class Interrupted(Exception):  # noqa: N818 (not an error: the run stops where it can go on)
    """Raised by `on_step` to leave `train` after a complete step."""


@dataclass
class Position:
    """How far a run is: `step` optimizer steps of epoch `epoch` of task `task` are done."""

    task: int = 0
    epoch: int = 0
    step: int = 0


class Run:
    """Everything that changes while training.

    Args:
        sequence: the tasks, on the model's device.
        model: a plain module, or `Replicas` with one policy per entry of `policies`. One that takes
            its inputs by name, as those of Hugging Face do, is given inputs that are dicts so.
        method: built on that model.
        policies: what becomes of the optimizer at a boundary, one for a plain module.
        settings: see `TrainSettings`.
        seed: an int, or a LongTensor with one seed per replica; orders the batches.
        evaluate: an `Evaluator` in place of the usual one; or a function, called as
            `evaluate(model, sequence, tasks)` for a range of tasks, that gives their scores
            [*lead, len(tasks)] or a dict of such by name; False for no evaluation at all. Tensors
            are read when somebody looks at the matrix.
        optim: arguments of the optimizer's class that `settings` do not have.
    """

    def __init__(
        self,
        sequence: TaskSequence,
        model: nn.Module,
        method: Method,
        policies: Sequence[Policy] = (POLICIES["continual"],),
        settings: TrainSettings = TrainSettings(),  # noqa: B008 (frozen)
        seed: Seed = 0,
        evaluate: Evaluator | Function | bool | None = None,
        optim: Mapping[str, Any] | None = None,
    ) -> None:
        _check_replicas(model, sequence, seed)
        if not lead_of(model):
            accept_keywords(model)
        self.sequence, self.model, self.method = sequence, model, method
        self.policies, self.settings, self.seed = list(policies), settings, seed
        self.evaluate = as_evaluator(evaluate)  # None for no evaluation
        self.parameters = [p for group in parameter_groups(model) for p in group]
        self.device = self.parameters[0].device
        self.chosen, self.optim = find_optimizer(settings.optimizer), dict(optim or {})
        self.optimizer = build_optimizer(model, self.policies, settings, self.optim, seed)
        method.optimizer = self.optimizer
        self.autocast = autocast(self.device, settings.autocast)
        self.scaler = torch.amp.GradScaler(self.device.type, enabled=settings.autocast == "fp16")
        self.divergence = Divergence(parameter_groups(model), lead_of(model))
        self.average = build_average(model, settings)
        # A copy, because an evaluator may remember what the weights themselves have scored.
        self.evaluate_average = copy.copy(self.evaluate) if self.average is not None else None
        self.position = Position()
        self.best: Best | None = None  # the best epoch of this task so far
        # What is measured, the score that tables lead with first.
        own = self.evaluate.own_scores if self.evaluate else ()
        self.scores = (*sequence.objective.scores, *own)
        self.recorder = _recorder(sequence, self.scores, averaged=self.average is not None)
        size = settings.batch_size * settings.accumulate
        each = -(-sequence.trained_rows // size) * settings.epochs
        self._steps_before = [0, *np.cumsum(each).tolist()]  # before each task; last, of all tasks
        self.take_step, self.scored = _step_and_scored(self)

    @property
    def matrices(self) -> dict[str, ScoreMatrix]:
        return self.recorder.matrices

    @property
    def matrix(self) -> ScoreMatrix:
        return self.matrices[self.recorder.main]

    def schedule_place(self, done: int, steps: int) -> tuple[int, int]:
        """How many steps of the learning rate's schedule are done, and how many it has.

        Args:
            done: steps of the task at hand.
            steps: how many one of its epochs has.
        """
        if self.settings.span == "task":
            return done, self.settings.epochs * steps
        return self._steps_before[self.position.task] + done, self._steps_before[-1]

    def state_dict(self) -> dict[str, Any]:
        cuda = self.device.type == "cuda"
        averaged = {} if self.average is None else {"average": self.average.state_dict()}
        return {
            "position": asdict(self.position),
            "model": self.model.state_dict(),
            "beside": {} if lead_of(self.model) else saved_beside(self.model),
            "optimizer": optimizer_state(self.optimizer, self.model),
            "method": self.method.state_dict(),
            "scaler": self.scaler.state_dict(),
            "best": self.best,
            "diverged": self.divergence.first,
            "losses": self.divergence.losses_dict(),
            "matrices": {name: matrix.state_dict() for name, matrix in self.matrices.items()},
            "generator": torch.get_rng_state(),
            "cuda_generator": torch.cuda.get_rng_state(self.device) if cuda else None,
            **averaged,
        }

    @contextlib.contextmanager
    def evaluating(self) -> Iterator[None]:
        """Evaluate in the precision of training, uncompiled: a new shape takes long to compile."""
        plain = torch.compiler.set_stance("force_eager") if self.settings.compile else _NOTHING
        with self.autocast, plain:
            yield

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.position = Position(**state["position"])
        self.model.load_state_dict(state["model"])
        restore_beside(self.model, state["beside"])
        load_optimizer(self.optimizer, self.model, state["optimizer"], self.device)
        self.method.load_state_dict(state["method"])
        self.scaler.load_state_dict(state["scaler"])
        self.best = load_best(state["best"], self.device)
        if self.average is not None:
            self.average.load_state_dict(state["average"])
        self.divergence.first = state["diverged"].to(self.device)
        self.divergence.load_losses_dict(state["losses"])
        self.recorder.forget()
        for name, matrix in self.matrices.items():
            matrix.load_state_dict(state["matrices"][name])
        torch.set_rng_state(state["generator"].cpu())
        if state["cuda_generator"] is not None:
            torch.cuda.set_rng_state(state["cuda_generator"].cpu(), self.device)
        if isinstance(self.take_step, GraphStep):  # its graphs point at what was replaced
            self.take_step = GraphStep(self, self.take_step.graphs.capture)


def train(
    run: Run,
    *,
    on_evaluation: Callable[[Run, int, range, dict[str, np.ndarray]], None] | None = None,
    on_step: Callable[[Run], None] | None = None,
) -> None:
    """Train from `run.position` to the end of the sequence.

    Args:
        on_evaluation: called as `on_evaluation(run, after, tasks, scores)` when scores, {name:
            [*lead, len(tasks)]}, were recorded: of all tasks so far where that is due, else of the
            last. The calls come in order, but perhaps late: scores of a single task are recorded
            when somebody reads the matrix.
        on_step: called after every optimizer step, and after every task, with a state that
            `run.state_dict()` may save; may raise `Interrupted`.
    """
    sequence, settings, position = run.sequence, run.settings, run.position
    run.recorder.listener = on_evaluation and functools.partial(on_evaluation, run)
    run.model.train()
    while position.task < len(sequence):
        examples = sequence.train(position.task)
        if examples is not None:  # a zero-shot task is only evaluated
            if position.epoch == position.step == 0:
                captured = isinstance(run.take_step, GraphStep)
                begin_task(run.model, run.optimizer, position.task, captured=captured)
            set_mode(run, training=True)
            validation = sequence.validation(position.task) if settings.epochs > 1 else None
            size = settings.batch_size * settings.accumulate
            steps = -(-len(examples) // size)
            while position.epoch < settings.epochs:
                order = batch_order(run, examples)
                source, order = arranged(run, examples, order)
                while position.step < steps:
                    done = position.epoch * steps + position.step
                    set_learning_rate(run.optimizer, settings, *run.schedule_place(done, steps))
                    start = position.step * size
                    index = order if steps == 1 else order[..., start : start + size]
                    run.take_step(run, source, index)
                    position.step += 1
                    if on_step is not None:
                        on_step(run)
                if validation is not None:
                    compare_epoch(run)
                position.epoch, position.step = position.epoch + 1, 0
            set_mode(run, training=False)
            restore_best(run.best, run.model, run.method.beside_weights())
            run.best = None
            run.method.end_task(examples)
            end_task(run, position.task)
            if run.average is not None:
                run.average.end_task()
            run.divergence.look(position.task)
        record_scores(run)
        position.task, position.epoch, position.step = position.task + 1, 0, 0
        if on_step is not None:
            on_step(run)
    run.recorder.settle()


def batch_order(run: Run, examples: Examples) -> Tensor:
    """The order of a task's examples in this epoch, [n], or [S, n] for replicas.

    A function of seed, task and epoch, the same on every device. A task that fits into one step
    needs no order.
    """
    n, device = len(examples), rows_device(examples, run.device)
    if n <= run.settings.batch_size * run.settings.accumulate:
        return in_order(n, device, len(run.seed) if isinstance(run.seed, Tensor) else None)
    key = ("batches", run.position.task, run.position.epoch)
    return permutation(n, run.seed, *key, device=device)


def arranged(run: Run, examples: Examples, order: Tensor) -> tuple[Examples, Tensor]:
    """The examples in the order of this epoch, where they can be copied so, and the rows to read.

    The copy pays on a CPU, for many batches and epochs of replicas whose data lie far apart in
    memory. Elsewhere the examples and the order are returned as they are.
    """
    lay_out = getattr(examples, "arranged", None)
    few = len(examples) <= run.settings.batch_size or run.settings.epochs == 1
    if lay_out is None or few or run.device.type != "cpu":
        return examples, order
    return lay_out(order), torch.arange(len(examples))


def record_scores(run: Run) -> None:
    """Scores of all tasks so far where that is due; otherwise of the task just learned (a_ii)."""
    if run.evaluate is None:
        return
    after, settings = run.position.task, run.settings
    everything = due(after, len(run.sequence), settings.evaluate_every, settings.evaluate_at)
    tasks = range(0 if everything else after, after + 1)
    scores = scores_of(run, run.evaluate, tasks)
    if run.average is not None and run.evaluate_average is not None:
        with run.average.applied():
            scores |= of_average(scores_of(run, run.evaluate_average, tasks), run.recorder.main)
    run.recorder.add(after, tasks, scores)


def scores_of(run: Run, evaluate: Evaluator, tasks: range) -> dict[str, Any]:
    """What the model as it is scores on some tasks, by name."""
    with run.evaluating():  # each time anew: autocast remembers the weights it has cast
        scores = evaluate(run.scored, run.sequence, tasks)
    return dict(scores) if isinstance(scores, dict) else {run.recorder.main: scores}


def compare_epoch(run: Run) -> None:
    """Keep the weights of this epoch where they are the task's best so far."""
    evaluator = run.evaluate or Evaluator()
    set_mode(run, training=False)
    with run.evaluating():
        score = evaluator.validation(run.scored, run.sequence, run.position.task)
    higher = run.sequence.objective.main.higher_is_better
    beside, tie = run.method.beside_weights(), run.settings.tie
    run.best = keep_best(run.best, run.model, score, higher, tie, beside)
    set_mode(run, training=True)


def _recorder(sequence: TaskSequence, scores: Sequence[Score], *, averaged: bool) -> Recorder:
    """Empty score matrices: of the objective's scores and of those that the evaluator adds.

    With `averaged` there is a second one of each, for the average of the weights.
    """
    check_names(scores)
    trained, main = sequence.train_sizes > 0, scores[0].name
    matrices = {
        score.name: ScoreMatrix(sequence.test_sizes, score.higher_is_better, trained)
        for score in scores
    }
    if averaged:
        matrices |= of_average(copy.deepcopy(matrices), main)
    return Recorder(matrices, main)


def _step_and_scored(run: Run) -> tuple[Callable[[Run, Examples, Tensor], None], nn.Module]:
    """What takes a step, and the model that is scored: both replay CUDA graphs where captured.

    The model is compiled here, in place, where the settings ask for it.
    """
    capture = captures(run.settings, run.device, run.optim)
    if run.settings.compile:
        compile_model(run.model, fixed_shapes=capture)
    take_step = GraphStep(run) if capture else step
    replays = capture and run.evaluate is not None and run.evaluate.captured
    return take_step, GraphForward(run.model) if replays else run.model


def _check_replicas(model: nn.Module, sequence: TaskSequence, seed: Seed) -> None:
    seeds = seed.shape[0] if isinstance(seed, Tensor) else None
    copies = lead_of(model)[1] if lead_of(model) else None
    if seeds != copies:
        raise ValueError(f"The model has {copies} replicas and the run {seeds} seeds")
    if sequence.replicas not in (None, copies):
        raise ValueError(f"The data have {sequence.replicas} replicas and the model {copies}")
