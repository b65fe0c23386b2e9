"""`transformers.Trainer`, and trainers made from it, such as TRL's `SFTTrainer`.

    optimizer = ContinualAdamW(model.parameters(), lr=5e-4)
    trainer = Trainer(
        model, args, train_dataset=this_week, optimizers=(optimizer, None),
        callbacks=[ContinualCallback(memory="model/")],
    )
    trainer.train()

The Trainer writes its last checkpoint before training has ended, saves no optimizer with
`save_model`, and knows nothing of task boundaries; the callback adds what is missing. Whatever can
be wrong about a week is looked for before its first step.
"""

from __future__ import annotations

import json
import os
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch.optim import Optimizer
from transformers import Trainer, TrainerCallback, TrainerControl, TrainerState, TrainingArguments
from transformers.trainer import OPTIMIZER_NAME, TRAINER_STATE_NAME
from transformers.trainer_utils import PREFIX_CHECKPOINT_DIR, get_last_checkpoint

from longtail.integrations.accidents import warn_of_fresh
from longtail.integrations.foreign_loop import FILE_NAME as METHOD_FILE
from longtail.integrations.foreign_loop import (
    Logits,
    MakeMethod,
    MethodInLoop,
    RowsOfDataset,
    inputs_and_labels,
    own_objective,
    week_of_method,
)
from longtail.integrations.hf_scores import TrainerScores
from longtail.integrations.week import Week
from longtail.memory.document import CONTINUAL, memory_path
from longtail.memory.scores import WeeklyScores, scored_weeks
from longtail.optim import TaskAverage
from longtail.optim.average import FILE_NAME as AVERAGE_FILE
from longtail.optim.average import week_of_average
from longtail.support.files import replacing, write_atomic
from longtail.support.param_names import Renaming
from longtail.tasks import Objective

_KEY = "longtail"  # under which a checkpoint says which week it is of


class ContinualCallback(TrainerCallback):
    """One task, or week, for each call of `trainer.train()`.

    When training begins, what the week before left is loaded; a Trainer that resumes from a
    checkpoint in the middle of a week has it there already. When training ends, the task is ended,
    the memory is saved, and the last checkpoint, which the Trainer has written before, gets the
    boundary too. The memory is stamped with the week's name and its weights: a week that is done
    again starts from the memory of the week before and takes its own place, and weights that do not
    belong to the memory are an error.

    Args:
        memory: the folder (or ``.safetensors`` file) of the memory; by default the Trainer's
            ``output_dir``. All weeks may share it.
        policy: "continual" keeps what Continual Adam remembers; "kept" takes any optimizer of torch
            and keeps its state from week to week; "new" takes any and keeps nothing. Scores,
            averages and stamps are the same for all.
        before: the folder of the week before, where each week has one of its own.
        dtype: of the file, see `longtail.save_memory`.
        names: renames parameters, see `longtail.save_memory`.
        grow: what rows of a grown tensor start with, see `longtail.load_memory`.
        check: False takes the memory as it is, whatever weights it belongs to, and starts without
            one where it is missing.
        earlier: evaluation data of earlier weeks by name, ``{}`` in the first week; scored when
            training ends, and logged with RP, BWT and FGT to where the Trainer logs. Needs
            ``trainer``.
        week: what this week is called; by default "week" and its number. Its own score is that of
            the Trainer's ``eval_dataset``.
        metric: which of the Trainer's metrics is the score: "loss", one of ``compute_metrics``, or
            one of TRL's own.
        higher_is_better: direction of the score; by default True for all but a loss.
        method: makes a method of `longtail.methods` for a model and an objective:
            ``functools.partial(EWC, strength=2.0)``. Its loss takes the place of the Trainer's, and
            what it knows is kept beside the memory. Needs ``trainer``; not with fp16, whose
            gradients are scaled.
        objective: the loss of each example; by default the model's own, see `foreign_loop`.
        average: "task" or "ema" keeps an average of the weights over weeks, `longtail.TaskAverage`,
            in a file beside the memory; ``callback.average.applied()`` puts it into the model.
        trainer: the Trainer itself, for what a callback cannot do from outside:
            ``trainer.add_callback(ContinualCallback(..., trainer=trainer))``.
    """

    def __init__(
        self,
        memory: str | os.PathLike[str] | None = None,
        *,
        policy: str = CONTINUAL,
        before: str | os.PathLike[str] | None = None,
        dtype: torch.dtype | str | None = None,
        names: Renaming | None = None,
        grow: str = "mean",
        check: bool = True,
        earlier: Mapping[str, Any] | None = None,
        week: str | None = None,
        metric: str = "loss",
        higher_is_better: bool | None = None,
        method: MakeMethod | None = None,
        objective: Objective | None = None,
        average: str | None = None,
        trainer: Trainer | None = None,
    ) -> None:
        if trainer is None and (earlier is not None or method is not None):
            what = "earlier= is evaluated" if earlier is not None else "method= is called"
            raise ValueError(
                f"{what} by the Trainer: make it first, then "
                "trainer.add_callback(ContinualCallback(..., trainer=trainer))"
            )
        self.week = Week(
            policy=policy,
            memory=memory,
            before=before,
            week=week,
            dtype=dtype,
            names=names,
            grow=grow,
            check=check,
        )
        self.earlier, self.metric = earlier, metric
        self.higher_is_better = (
            "loss" not in metric if higher_is_better is None else higher_is_better
        )
        self.make_method, self.objective, self.trainer = method, objective, trainer
        self.in_loop: MethodInLoop | None = None
        self.average_kind = average
        self.average: TaskAverage | None = None

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **given: Any
    ) -> None:
        model = given["model"]
        optimizer = self._optimizer(given["optimizer"])
        target = self._target(args)
        self.week.check_optimizer(optimizer, model)
        self.week.check_target(target)
        if state.global_step:
            self._resume(optimizer, target, state)
        else:
            known = [*(self.earlier or ()), *scored_weeks(target.parent)]
            self.week.begin(optimizer, model, target, known)
        if self.make_method is not None:
            self._begin_method(given["train_dataloader"], args, state)
            assert self.in_loop is not None
            self.in_loop.method.optimizer = optimizer
        if self.average_kind is not None:
            self._begin_average(model, args, state)
        if self.earlier is not None:
            assert self.trainer is not None
            self._scores(target)
            TrainerScores(self.trainer, self.metric).check(self._sets())
        _saved_with(state)[_KEY] = self.week.state()

    def on_train_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **given: Any
    ) -> None:
        model = given["model"]
        optimizer = self._optimizer(given["optimizer"])
        target = self._target(args)
        if self.in_loop is not None:
            self.in_loop.end_task(self._examples(given["train_dataloader"], args))
        if self.average is not None:
            self.average.end_task()
        self.week.end(optimizer, model, target)
        if args.should_save:
            self.week.keep_before(target.parent / METHOD_FILE, week_of_method)
            self.week.keep_before(target.parent / AVERAGE_FILE, week_of_average)
        self._save_beside(args, target.parent)
        last = _checkpoint(args, state)
        if last.is_dir():
            self.week.save(optimizer, model, memory_path(last))
            self._save_beside(args, last)
            if args.should_save and (last / OPTIMIZER_NAME).is_file():
                with replacing(last / OPTIMIZER_NAME) as file:
                    torch.save(optimizer.state_dict(), file)
        if args.should_save:
            self._mark_last_checkpoint(args, last)
        if self.earlier is not None:
            self._score(target)

    def on_step_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **given: Any
    ) -> None:
        self.week.after_step(given["optimizer"])
        if self.in_loop is not None:
            self.in_loop.observe()
        if self.average is not None:
            self.average.step()

    def on_save(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **given: Any
    ) -> None:
        self._save_beside(args, _checkpoint(args, state))

    def _optimizer(self, optimizer: Any) -> Optimizer:
        remedy = "pass optimizers=(ContinualAdamW(model.parameters(), lr=...), None) to the Trainer"
        return self.week.optimizer_in(optimizer, remedy)

    def _target(self, args: TrainingArguments) -> Path:
        assert args.output_dir is not None
        return self.week.target(args.output_dir)

    def _resume(self, optimizer: Optimizer, target: Path, state: TrainerState) -> None:
        """Go on with the week of a checkpoint, and with no other."""
        saved = _saved_with(state).get(_KEY)
        if isinstance(saved, dict):
            checkpoint = f"{PREFIX_CHECKPOINT_DIR}-{state.global_step}"
            self.week.resume(saved, checkpoint, state.global_step)
            return
        self.week.resume_unknown(target)
        if self.week.policy == CONTINUAL:
            warn_of_fresh(optimizer, target)
        if state.global_step >= state.max_steps:
            warnings.warn(
                f"The checkpoint is at step {state.global_step} of {state.max_steps}, so this "
                "trains 0 steps. For a new week call train() without resume_from_checkpoint: "
                "the memory is loaded all the same.",
                stacklevel=2,
            )

    def _begin_average(self, model: Any, args: TrainingArguments, state: TrainerState) -> None:
        """The average of earlier weeks, or that of a checkpoint in the middle of one."""
        assert self.average_kind is not None
        average = self.average = TaskAverage(model, self.average_kind)
        if state.global_step and average.load(_checkpoint(args, state)):
            return
        file = self.week.previous(self._target(args), AVERAGE_FILE, week_of_average)
        if file is not None:
            average.load(file)

    def _begin_method(self, loader: Any, args: TrainingArguments, state: TrainerState) -> None:
        """A method that knows what it knew after the last week, or at a checkpoint in this one."""
        trainer = self.trainer
        assert trainer is not None
        assert self.make_method is not None
        if trainer.accelerator.scaler is not None:
            raise ValueError("method= needs unscaled gradients: use bf16 or float32 and not fp16")
        model: Any = trainer.model
        examples = self._examples(loader, args)
        inputs, labels = examples[torch.arange(min(2, len(examples)))]
        objective = self.objective or own_objective(model, inputs, labels)
        method = self.make_method(Logits(model), objective)
        if self.in_loop is None:
            self.in_loop = MethodInLoop(method)
            self._enter_loop(self.in_loop)
        self.in_loop.method = method
        if not (state.global_step and self.in_loop.load(_checkpoint(args, state) / METHOD_FILE)):
            target = self._target(args)
            self.in_loop.load(self.week.previous(target, METHOD_FILE, week_of_method))

    def _enter_loop(self, in_loop: MethodInLoop) -> None:
        """Put the method's loss and gradient where the Trainer has its own."""
        trainer = self.trainer
        assert trainer is not None
        own_loss, own_step = trainer.compute_loss, trainer.training_step

        def compute_loss(
            model: Any, inputs: Any, return_outputs: bool = False, **further: Any
        ) -> Any:
            if return_outputs or not model.training:
                return own_loss(model, inputs, return_outputs=return_outputs, **further)
            return in_loop.loss(*inputs_and_labels(inputs))

        def training_step(*given: Any, **further: Any) -> torch.Tensor:
            loss = own_step(*given, **further)
            if trainer.accelerator.sync_gradients:
                in_loop.after_backward()  # before the Trainer clips
            return loss

        vars(trainer).update(compute_loss=compute_loss, training_step=training_step)
        trainer.loss_is_scaled_for_ga = False  # it is the mean over its own batch

    def _examples(self, loader: Any, args: TrainingArguments) -> RowsOfDataset:
        return RowsOfDataset(loader.dataset, loader.collate_fn, inputs_and_labels, args.device)

    def _save_beside(self, args: TrainingArguments, folder: Path) -> None:
        """What the method knows and the average, by the process that saves."""
        if not args.should_save:
            return
        if self.in_loop is not None:
            self.in_loop.save(folder / METHOD_FILE, self.week.start.week)
        if self.average is not None:
            self.average.save(folder, week=self.week.start.week)

    def _mark_last_checkpoint(self, args: TrainingArguments, last: Path) -> None:
        """Say in the checkpoints that would be resumed that their week has ended."""
        for folder in {str(last), get_last_checkpoint(args.output_dir)}:
            file = Path(folder or "", TRAINER_STATE_NAME)
            if not file.is_file():
                continue
            told = json.loads(file.read_text(encoding="utf-8"))
            saved = (told.get("stateful_callbacks") or {}).get(_KEY)
            if saved is not None and saved["week"] == self.week.start.week:
                saved["ended"] = True
                write_atomic(file, json.dumps(told, indent=2, sort_keys=True) + "\n")

    def _sets(self) -> dict[str, Any]:
        """The data of this week and of earlier ones, by name."""
        assert self.trainer is not None
        assert self.earlier is not None
        sets, week = dict(self.earlier), self.week.start.week
        own: Any = self.trainer.eval_dataset
        if isinstance(own, dict):
            own = own.get(week)
        if own is None:
            return sets
        if week in sets:
            raise ValueError(
                f"Invalid earlier: {week!r} is this week, whose data are the Trainer's eval_dataset"
            )
        return {**sets, week: own}

    def _scores(self, target: Path) -> WeeklyScores:
        assert self.trainer is not None
        return WeeklyScores(
            target.parent,
            metric=self.metric.removeprefix("eval_"),
            higher_is_better=self.higher_is_better,
            unit=_unit(self.metric, self.trainer.model),
        )

    def _score(self, target: Path) -> None:
        """Evaluate this week's data and the earlier ones', and log what was forgotten."""
        assert self.trainer is not None
        scores = self._scores(target)
        found = TrainerScores(self.trainer, self.metric)(self._sets())
        if self.trainer.is_world_process_zero():
            self.trainer.log(scores.record(self.week.start.week, found))
            print(scores.sentence())


def _unit(metric: str, model: Any) -> str:
    """What a loss is measured in; that of a regression has the unit of its data."""
    config = getattr(model, "config", None)
    regression = getattr(config, "problem_type", None) == "regression"
    return "nats" if "loss" in metric and not regression else ""


def _saved_with(state: TrainerState) -> dict[str, Any]:
    """What every checkpoint is written with; the Trainer keeps it for callbacks, by name."""
    saved: Any = state.stateful_callbacks
    return saved


def _checkpoint(args: TrainingArguments, state: TrainerState) -> Path:
    """The folder of the checkpoint at this step."""
    return Path(args.output_dir or ".", f"{PREFIX_CHECKPOINT_DIR}-{state.global_step}")
