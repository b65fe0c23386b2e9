"""`transformers.Trainer`, and trainers made from it, such as TRL's `SFTTrainer`.

    optimizer = ContinualAdamW(model.parameters(), lr=5e-4)
    trainer = Trainer(
        model, args, train_dataset=this_week, optimizers=(optimizer, None),
        callbacks=[ContinualCallback(memory="model/")],
    )
    trainer.train()

The Trainer writes its last checkpoint before training has ended, saves no optimizer with
`save_model`, and knows nothing of task boundaries; the callback adds what is missing.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from transformers import Trainer, TrainerCallback, TrainerControl, TrainerState, TrainingArguments
from transformers.trainer import OPTIMIZER_NAME
from transformers.trainer_utils import PREFIX_CHECKPOINT_DIR

from longtail.integrations.accidents import warn_of_fresh
from longtail.integrations.foreign_loop import (
    Logits,
    MakeMethod,
    MethodInLoop,
    RowsOfDataset,
    inputs_and_labels,
    own_objective,
)
from longtail.integrations.weekly_scores import Score, WeeklyScores, is_score
from longtail.memory import load_memory, save_memory
from longtail.memory.document import memory_path
from longtail.optim import TaskAverage, end_task
from longtail.optim.wrappers import continual_adam_in
from longtail.support.param_names import Renaming
from longtail.tasks import Objective


class ContinualCallback(TrainerCallback):
    """One task, or week, for each call of `trainer.train()`.

    When training begins, what earlier weeks left in ``memory`` is loaded; a Trainer that resumes
    from a checkpoint in the middle of a week has it there already. When training ends, the task is
    ended, the memory is saved, and the last checkpoint, which the Trainer has written before, gets
    the boundary too.

    Args:
        memory: the folder (or ``.safetensors`` file) of the memory; by default the Trainer's
            ``output_dir``.
        dtype: of the file, see `longtail.save_memory`.
        names: renames parameters, see `longtail.save_memory`.
        grow: what rows of a grown tensor start with, see `longtail.load_memory`.
        earlier: evaluation data of earlier weeks by name, ``{}`` in the first week; scored when
            training ends, and logged with RP, BWT and FGT to where the Trainer logs. Needs
            ``trainer``.
        week: what this week is called; by default "week" and its number. Its own score is that of
            the Trainer's ``eval_dataset``.
        metric: which of the Trainer's metrics is the score, "loss" or one of ``compute_metrics``.
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
        dtype: torch.dtype | str | None = None,
        names: Renaming | None = None,
        grow: str = "mean",
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
        self.memory, self.dtype, self.names, self.grow = memory, dtype, names, grow
        self.earlier, self.week, self.metric = earlier, week, metric
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
        optimizer = given["optimizer"]
        if continual_adam_in(optimizer) is None:
            raise TypeError(
                f"ContinualCallback found {type(optimizer).__name__} and no ContinualAdamW: pass "
                "optimizers=(ContinualAdamW(model.parameters(), lr=...), None) to the Trainer"
            )
        if self.make_method is not None and self.in_loop is None:
            self._enter_loop(given["train_dataloader"], args, state)
        if self.in_loop is not None:
            self.in_loop.method.optimizer = continual_adam_in(optimizer)
        if self.average_kind is not None:
            self._begin_average(given["model"], args, state)
        if state.global_step:
            warn_of_fresh(optimizer, self._folder(args))
            if state.global_step >= state.max_steps:
                warnings.warn(
                    f"The checkpoint is at step {state.global_step} of {state.max_steps}, so this "
                    "trains 0 steps. For a new week call train() without resume_from_checkpoint: "
                    "the memory is loaded all the same.",
                    stacklevel=2,
                )
            return
        file = memory_path(self._folder(args))
        if file.exists():
            load_memory(optimizer, file, given["model"], names=self.names, grow=self.grow)
        elif state.is_world_process_zero:
            print(f"no memory at {file} yet: this is the first week")

    def on_train_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **given: Any
    ) -> None:
        optimizer, model = given["optimizer"], given["model"]
        if self.in_loop is not None:
            self.in_loop.end_task(self._examples(given["train_dataloader"], args))
        end_task(optimizer)
        self._save(optimizer, self._folder(args), model)
        if self.average is not None:
            self.average.end_task()
        self._save_beside(args, memory_path(self._folder(args)).parent)
        last = _checkpoint(args, state)
        if last.is_dir():
            self._save(optimizer, last, model)
            self._save_beside(args, last)
            if args.should_save and (last / OPTIMIZER_NAME).is_file():
                torch.save(optimizer.state_dict(), last / OPTIMIZER_NAME)
        if self.earlier is not None:
            self._score(optimizer, args)

    def on_step_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **given: Any
    ) -> None:
        if self.in_loop is not None:
            self.in_loop.observe()
        if self.average is not None:
            self.average.step()

    def on_save(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **given: Any
    ) -> None:
        self._save_beside(args, _checkpoint(args, state))

    def _begin_average(self, model: Any, args: TrainingArguments, state: TrainerState) -> None:
        """The average of earlier weeks, or that of a checkpoint in the middle of one."""
        assert self.average_kind is not None
        if self.average is None:
            self.average = TaskAverage(model, self.average_kind)
        if not (state.global_step and self.average.load(_checkpoint(args, state))):
            self.average.load(memory_path(self._folder(args)).parent)

    def _enter_loop(self, loader: Any, args: TrainingArguments, state: TrainerState) -> None:
        """Put the method's loss and gradient where the Trainer has its own.

        It knows what it knew after the last week, or at the checkpoint in the middle of this one.
        """
        trainer = self.trainer
        assert trainer is not None
        assert self.make_method is not None
        if trainer.accelerator.scaler is not None:
            raise ValueError("method= needs unscaled gradients: use bf16 or float32 and not fp16")
        model: Any = trainer.model
        examples = self._examples(loader, args)
        inputs, labels = examples[torch.arange(min(2, len(examples)))]
        objective = self.objective or own_objective(model, inputs, labels)
        in_loop = self.in_loop = MethodInLoop(self.make_method(Logits(model), objective))
        if not (state.global_step and in_loop.load(_checkpoint(args, state))):
            in_loop.load(memory_path(self._folder(args)).parent)
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

    def _save(self, optimizer: Any, folder: str | os.PathLike[str], model: Any) -> None:
        save_memory(optimizer, folder, model, dtype=self.dtype, names=self.names)

    def _save_beside(self, args: TrainingArguments, folder: Path) -> None:
        """What the method knows and the average, by the process that saves."""
        for part in (self.in_loop, self.average):
            if part is not None and args.should_save:
                part.save(folder)

    def _folder(self, args: TrainingArguments) -> str | os.PathLike[str]:
        if self.memory is not None:
            return self.memory
        assert args.output_dir is not None
        return args.output_dir

    def _score(self, optimizer: Any, args: TrainingArguments) -> None:
        """Evaluate this week's data and the earlier ones', and log what was forgotten."""
        assert self.trainer is not None
        assert self.earlier is not None
        inner = continual_adam_in(optimizer)
        assert inner is not None
        tasks = max(int(group["tasks_seen"]) for group in inner.param_groups)
        week = self.week or f"week {tasks}"
        data = dict(self.earlier)
        if self.trainer.eval_dataset is not None and not isinstance(
            self.trainer.eval_dataset, dict
        ):
            data[week] = self.trainer.eval_dataset
        scores = {}
        for name, dataset in data.items():
            prefix = f"eval_{name.replace(' ', '_')}"
            found = self.trainer.evaluate(dataset, metric_key_prefix=prefix)
            value = found.get(f"{prefix}_{self.metric}")
            if value is None or not is_score(value):
                known = ", ".join(key.removeprefix(f"{prefix}_") for key in found)
                raise ValueError(f"Invalid metric: {self.metric!r}, the Trainer gives {known}")
            scores[name] = Score(float(value), len(dataset))
        folder = memory_path(self._folder(args)).parent
        kept = WeeklyScores(folder, higher_is_better=self.higher_is_better)
        self.trainer.log(kept.record(week, scores))


def _checkpoint(args: TrainingArguments, state: TrainerState) -> Path:
    """The folder of the checkpoint at this step."""
    return Path(args.output_dir or ".", f"{PREFIX_CHECKPOINT_DIR}-{state.global_step}")
