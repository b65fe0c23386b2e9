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

import functools
import json
import os
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer
from transformers import Trainer, TrainerCallback, TrainerControl, TrainerState, TrainingArguments
from transformers.trainer import OPTIMIZER_NAME, TRAINER_STATE_NAME
from transformers.trainer_utils import PREFIX_CHECKPOINT_DIR, get_last_checkpoint

from longtail.integrations.foreign_loop import FILE_NAME as METHOD_FILE
from longtail.integrations.foreign_loop import (
    Logits,
    MakeMethod,
    RowsOfDataset,
    inputs_and_labels,
    own_objective,
)
from longtail.integrations.hf_scores import TrainerScores
from longtail.integrations.weekly import Chain, Checkpoint, WeeklyCallback
from longtail.memory.document import memory_path
from longtail.memory.scores import WeeklyScores
from longtail.support.files import replacing, write_atomic
from longtail.tasks import Objective

_KEY = "longtail"  # under which a checkpoint says which week it is of


class ContinualCallback(WeeklyCallback, TrainerCallback):
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
        earlier: evaluation data of earlier weeks by name, ``{}`` in the first week; scored when
            training ends, and logged with RP, BWT and FGT to where the Trainer logs, as is this
            week's ``eval_dataset``. Needs ``trainer``.
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
        chain: ``policy``, ``before``, ``week``, ``dtype``, ``names``, ``grow`` and ``check``, see
            `longtail.integrations.weekly.Chain`.
    """

    def __init__(
        self,
        memory: str | os.PathLike[str] | None = None,
        *,
        earlier: Mapping[str, Any] | None = None,
        metric: str = "loss",
        higher_is_better: bool | None = None,
        method: MakeMethod | None = None,
        objective: Objective | None = None,
        average: str | None = None,
        trainer: Trainer | None = None,
        **chain: Any,
    ) -> None:
        if trainer is None and (earlier is not None or method is not None):
            what = "earlier= is evaluated" if earlier is not None else "method= is called"
            raise ValueError(
                f"{what} by the Trainer: make it first, then "
                "trainer.add_callback(ContinualCallback(..., trainer=trainer))"
            )
        super().__init__(
            Chain(memory, **chain),
            earlier=earlier,
            method=method,
            objective=objective,
            average=average,
        )
        self.metric, self.trainer = metric, trainer
        self.higher_is_better = (
            "loss" not in metric if higher_is_better is None else higher_is_better
        )
        self._entered = False  # whether the Trainer's loss is the method's

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **given: Any
    ) -> None:
        model = given["model"]
        optimizer, target = self._optimizer(given["optimizer"]), self.target(args.output_dir)
        checkpoint = self._checkpoint(args, state) if state.global_step else None
        self.begin_week(optimizer, model, target, checkpoint)
        if self.make_method is not None:
            examples = self._examples(given["train_dataloader"], args)
            logits, objective = self._enter_loop(examples)
            self.begin_method(logits, objective, optimizer, target, checkpoint)
        if self.earlier is not None:
            assert self.trainer is not None
            self._scores(target)
            TrainerScores(self.trainer, self.metric).check(self._sets())
        _saved_with(state)[_KEY] = self.state()

    def on_train_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **given: Any
    ) -> None:
        model, loader = given["model"], given["train_dataloader"]
        optimizer, target = self._optimizer(given["optimizer"]), self.target(args.output_dir)
        examples = functools.partial(self._examples, loader, args)
        self.end_week(optimizer, model, target, examples, saves=args.should_save)
        last = _folder_of(args, state)
        if last.is_dir():
            self.save(optimizer, model, memory_path(last))
            if args.should_save:
                self.save_beside(last)
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
        self.after_step(given["optimizer"])

    def on_save(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **given: Any
    ) -> None:
        if args.should_save:
            self.save_beside(_folder_of(args, state))

    def _optimizer(self, optimizer: Any) -> Optimizer:
        remedy = "pass optimizers=(ContinualAdamW(model.parameters(), lr=...), None) to the Trainer"
        return self.optimizer_in(optimizer, remedy)

    def _checkpoint(self, args: TrainingArguments, state: TrainerState) -> Checkpoint:
        """The checkpoint that is resumed, and what it says of its week."""
        folder = _folder_of(args, state)
        saved = _saved_with(state).get(_KEY)
        if not isinstance(saved, dict):
            saved = None
            if state.global_step >= state.max_steps:
                warnings.warn(
                    f"The checkpoint is at step {state.global_step} of {state.max_steps}, so this "
                    "trains 0 steps. For a new week call train() without resume_from_checkpoint: "
                    "the memory is loaded all the same.",
                    stacklevel=2,
                )
        return Checkpoint(
            folder.name,
            state.global_step,
            saved,
            load_method=lambda in_loop: in_loop.load(folder / METHOD_FILE),
            load_average=lambda average: average.load(folder),
        )

    def _enter_loop(self, examples: RowsOfDataset) -> tuple[nn.Module, Objective]:
        """Put the method's loss and gradient where the Trainer has its own.

        Returns:
            The model and the objective that the method is made for.
        """
        trainer = self.trainer
        assert trainer is not None
        if trainer.accelerator.scaler is not None:
            raise ValueError("method= needs unscaled gradients: use bf16 or float32 and not fp16")
        model: Any = trainer.model
        inputs, labels = examples[torch.arange(min(2, len(examples)))]
        objective = self.objective or own_objective(model, inputs, labels)
        if self._entered:
            return Logits(model), objective
        self._entered = True
        own_loss, own_step = trainer.compute_loss, trainer.training_step

        def compute_loss(
            model: Any, inputs: Any, return_outputs: bool = False, **further: Any
        ) -> Any:
            if return_outputs or not model.training:
                return own_loss(model, inputs, return_outputs=return_outputs, **further)
            assert self.in_loop is not None
            return self.in_loop.loss(*inputs_and_labels(inputs))

        def training_step(*given: Any, **further: Any) -> torch.Tensor:
            loss = own_step(*given, **further)
            if self.in_loop is not None and trainer.accelerator.sync_gradients:
                self.in_loop.after_backward()  # before the Trainer clips
            return loss

        vars(trainer).update(compute_loss=compute_loss, training_step=training_step)
        trainer.loss_is_scaled_for_ga = False  # it is the mean over its own batch
        return Logits(model), objective

    def _examples(self, loader: Any, args: TrainingArguments) -> RowsOfDataset:
        return RowsOfDataset(loader.dataset, loader.collate_fn, inputs_and_labels, args.device)

    def _mark_last_checkpoint(self, args: TrainingArguments, last: Path) -> None:
        """Say in the checkpoints that would be resumed that their week has ended."""
        for folder in {str(last), get_last_checkpoint(args.output_dir)}:
            file = Path(folder or "", TRAINER_STATE_NAME)
            if not file.is_file():
                continue
            told = json.loads(file.read_text(encoding="utf-8"))
            saved = (told.get("stateful_callbacks") or {}).get(_KEY)
            if saved is not None and saved["week"] == self.start.week:
                saved["ended"] = True
                write_atomic(file, json.dumps(told, indent=2, sort_keys=True) + "\n")

    def _sets(self) -> dict[str, Any]:
        assert self.trainer is not None
        own: Any = self.trainer.eval_dataset
        if isinstance(own, dict):
            own = own.get(self.start.week)
        return self.sets(own, "the Trainer's eval_dataset")

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
            self.trainer.log(scores.record(self.start.week, found))
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


def _folder_of(args: TrainingArguments, state: TrainerState) -> Path:
    """The folder of the checkpoint at this step."""
    return Path(args.output_dir or ".", f"{PREFIX_CHECKPOINT_DIR}-{state.global_step}")
