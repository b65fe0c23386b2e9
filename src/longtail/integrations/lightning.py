"""Lightning's `Trainer`, with the usual `configure_optimizers`.

    class Model(LightningModule):
        def configure_optimizers(self):
            return ContinualAdamW(self.parameters(), lr=5e-4)

    trainer = Trainer(callbacks=[ContinualCallback(memory="model/")])
    trainer.fit(model, this_week)

Every `fit` asks for a new optimizer, which has no past, and writes ``last.ckpt`` before training
has ended; the callback loads the past, ends the task and puts the boundary into that checkpoint.
Whatever can be wrong about a week is looked for before its first step.
"""

from __future__ import annotations

import itertools
import os
import warnings
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from longtail.integrations.accidents import warn_of_fresh
from longtail.integrations.foreign_loop import FILE_NAME as METHOD_FILE
from longtail.integrations.foreign_loop import (
    MakeMethod,
    MethodInLoop,
    RowsOfDataset,
    week_of_method,
)
from longtail.integrations.week import Week
from longtail.memory.document import CONTINUAL
from longtail.memory.scores import WeeklyScores, WeekScore, scored_weeks
from longtail.optim import TaskAverage
from longtail.optim.average import FILE_NAME as AVERAGE_FILE
from longtail.optim.average import week_of_average
from longtail.optim.wrappers import continual_adam_in
from longtail.support.eval_mode import evaluation_mode
from longtail.support.param_names import Renaming
from longtail.tasks import Objective

if TYPE_CHECKING:
    from lightning.pytorch import Callback, LightningModule, Trainer
else:
    try:
        from lightning.pytorch import Callback, LightningModule, Trainer
    except ImportError:  # the same code under its older name
        from pytorch_lightning import Callback, LightningModule, Trainer


class ContinualCallback(Callback):
    """One task, or week, for each call of `trainer.fit()`.

    The memory is stamped with the week's name and its weights: a week that is done again starts
    from the memory of the week before and takes its own place, and weights that do not belong to
    the memory are an error.

    Args:
        memory: the folder (or ``.safetensors`` file) of the memory; by default the Trainer's
            ``default_root_dir``. All weeks may share it.
        policy: "continual" keeps what Continual Adam remembers; "kept" takes any optimizer of torch
            and keeps its state from week to week; "new" takes any and keeps nothing.
        before: the folder of the week before, where each week has one of its own.
        dtype: of the file, see `longtail.save_memory`.
        names: renames parameters, see `longtail.save_memory`. A LightningModule that holds the
            model as ``self.model`` puts "model." before every name.
        grow: what rows of a grown tensor start with, see `longtail.load_memory`.
        check: False takes the memory as it is, whatever weights it belongs to, and starts without
            one where it is missing.
        earlier: batches (a DataLoader) of earlier weeks by name, ``{}`` in the first week; scored
            when training ends, and logged with RP, BWT and FGT to the Trainer's loggers. Needs
            ``score``.
        score: ``score(module, batch)`` gives the score of every example of a batch.
        week: what this week is called; by default "week" and its number. Its own score is that of
            the validation data of `fit`, where there are some.
        higher_is_better: direction of the score.
        method: makes a method of `longtail.methods` for a model and an objective:
            ``functools.partial(EWC, strength=2.0)``. Its loss takes the place of `training_step`,
            with the module's `forward` as the model and batches of inputs and targets; what it
            knows is kept beside the memory. Needs ``objective``.
        objective: the loss of each example, such as `longtail.tasks.CLASSIFICATION`.
        average: "task" or "ema" keeps an average of the weights over weeks, `longtail.TaskAverage`,
            in a file beside the memory; ``callback.average.applied()`` puts it into the module.
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
        earlier: Mapping[str, Iterable[Any]] | None = None,
        score: Callable[[LightningModule, Any], Tensor] | None = None,
        week: str | None = None,
        higher_is_better: bool = True,
        method: MakeMethod | None = None,
        objective: Objective | None = None,
        average: str | None = None,
    ) -> None:
        if earlier is not None and score is None:
            raise ValueError("earlier= needs score=, a function of the module and a batch")
        if method is not None and objective is None:
            raise ValueError("method= needs objective=, the loss of each example of a batch")
        self.make_method, self.objective = method, objective
        self.in_loop: MethodInLoop | None = None
        self.average_kind = average
        self.average: TaskAverage | None = None
        self._saved_average: dict[str, Any] | None = None  # of a checkpoint
        self._saved_method: dict[str, Any] | None = None
        self._saved_week: dict[str, Any] | None = None
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
        self.earlier, self.score = earlier, score
        self.higher_is_better = higher_is_better
        self._trains = False
        self._steps = False  # whether this batch completed an optimizer step

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._trains = False
        self._optimizer(trainer)  # the wrong one is told before the first step

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._trains = True
        optimizer, target = self._optimizer(trainer), self._target(trainer)
        self.week.check_optimizer(optimizer, pl_module)
        self.week.check_target(target)
        if trainer.ckpt_path is None:
            known = [*(self.earlier or ()), *scored_weeks(target.parent)]
            self.week.begin(optimizer, pl_module, target, known)
        else:  # the checkpoint has brought the optimizer's state along
            self._resume(trainer, optimizer, target)
        if self.make_method is not None:
            self._enter_loop(trainer, pl_module)
            assert self.in_loop is not None
            self.in_loop.method.optimizer = optimizer
        if self.average_kind is not None:
            self._begin_average(trainer, pl_module)
        if self.earlier is not None:
            self._scores(target)
            self._check_sets(trainer, pl_module)

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        optimizer, target = self._optimizer(trainer), self._target(trainer)
        if self.in_loop is not None:
            loader: Any = trainer.train_dataloader
            self.in_loop.end_task(
                RowsOfDataset(loader.dataset, loader.collate_fn, _pair, pl_module.device)
            )
            del pl_module.training_step  # the class has its own again
        if self.average is not None:
            self.average.end_task()
        self.week.end(optimizer, pl_module, target)
        if trainer.is_global_zero:
            self._save_beside(target.parent)
        self._mend_checkpoints(trainer)
        if self.earlier is not None:
            self._score(trainer, pl_module)

    def _save_beside(self, folder: Path) -> None:
        """What the method knows and the average; those of the week before are kept."""
        self.week.keep_before(folder / METHOD_FILE, week_of_method)
        self.week.keep_before(folder / AVERAGE_FILE, week_of_average)
        if self.in_loop is not None:
            self.in_loop.save(folder / METHOD_FILE, self.week.start.week)
        if self.average is not None:
            self.average.save(folder, week=self.week.start.week)

    def on_fit_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if not self._trains:
            warnings.warn(
                f"fit() trained 0 steps: this Trainer is at epoch {trainer.current_epoch} of "
                f"{trainer.max_epochs}, step {trainer.global_step}. For a new week make a new "
                "Trainer, and give no ckpt_path: the memory is loaded all the same.",
                stacklevel=2,
            )

    def on_before_optimizer_step(
        self, trainer: Trainer, pl_module: LightningModule, optimizer: Any
    ) -> None:
        if self.in_loop is not None:
            self.in_loop.after_backward()  # unscaled, and before Lightning clips
        self._steps = True

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        if not self._steps:
            return
        self._steps = False
        self.week.after_step(self._optimizer(trainer))
        if self.in_loop is not None:
            self.in_loop.observe()
        if self.average is not None:
            self.average.step()

    def state_dict(self) -> dict[str, Any]:
        """What a checkpoint has of the week, of the average and of the method."""
        state: dict[str, Any] = {"week": self.week.state()}
        if self.average is not None:
            state["average"] = self.average.state_dict()
        if self.in_loop is not None:
            state["method"] = self.in_loop.method.state_dict()
        return state

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self._saved_week = state_dict.get("week")
        self._saved_average = state_dict.get("average")
        self._saved_method = state_dict.get("method")

    def _resume(self, trainer: Trainer, optimizer: Optimizer, target: Path) -> None:
        """Go on with the week of a checkpoint, and with no other."""
        if self._saved_week is not None:
            self.week.resume(self._saved_week, str(trainer.ckpt_path), trainer.global_step)
            return
        self.week.resume_unknown(target)
        if self.week.policy == CONTINUAL:
            warn_of_fresh(optimizer, target)

    def _begin_average(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """The average of earlier weeks, or that of the checkpoint that is resumed."""
        assert self.average_kind is not None
        self.average = TaskAverage(pl_module, self.average_kind)
        file = self.week.previous(self._target(trainer), AVERAGE_FILE, week_of_average)
        if trainer.ckpt_path is not None and self._saved_average is not None:
            self.average.load_state_dict(self._saved_average)
        elif file is not None:
            self.average.load(file)
        self._saved_average = None

    def _enter_loop(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Put the method's loss where the module has its own."""
        if not pl_module.automatic_optimization:
            raise ValueError("method= needs automatic optimization: yours calls its own methods")
        assert self.make_method is not None
        in_loop = self.in_loop = MethodInLoop(self.make_method(pl_module, self.objective))
        if trainer.ckpt_path is not None and self._saved_method is not None:
            in_loop.method.load_state_dict(self._saved_method)
        else:
            in_loop.load(self.week.previous(self._target(trainer), METHOD_FILE, week_of_method))
        self._saved_method = None

        def training_step(batch: Any, batch_idx: int) -> Tensor:
            return in_loop.loss(*_pair(batch))

        pl_module.training_step = training_step

    def _optimizer(self, trainer: Trainer) -> Optimizer:
        found: list[Any] = list(trainer.optimizers)
        if self.week.policy == CONTINUAL:
            found = [x for x in map(continual_adam_in, trainer.optimizers) if x is not None]
        if len(found) != 1:
            kinds = ", ".join(type(x).__name__ for x in trainer.optimizers) or "none"
            what = "ContinualAdamW" if self.week.policy == CONTINUAL else "optimizer"
            raise TypeError(
                f"ContinualCallback needs configure_optimizers to return one {what}, and found "
                f"{kinds}"
            )
        return self.week.optimizer_in(found[0], "return one from configure_optimizers")

    def _target(self, trainer: Trainer) -> Path:
        return self.week.target(trainer.default_root_dir)

    def _mend_checkpoints(self, trainer: Trainer) -> None:
        """Put the boundary into the checkpoints that were written after the last step."""
        states = [
            trainer.strategy.optimizer_state(optimizer) for optimizer in trainer.strategy.optimizers
        ]
        if not trainer.is_global_zero:
            return
        paths = {
            str(getattr(callback, name))
            for callback in trainer.checkpoint_callbacks
            for name in ("last_model_path", "best_model_path")
            if getattr(callback, name, None)
        }
        for path in filter(os.path.isfile, paths):
            checkpoint = torch.load(path, map_location="cpu", weights_only=False)  # just written
            if checkpoint.get("global_step") == trainer.global_step:
                checkpoint["optimizer_states"] = states
                checkpoint["callbacks"][self.state_key] = self.state_dict()
                trainer.strategy.checkpoint_io.save_checkpoint(checkpoint, path)

    def _sets(self, trainer: Trainer) -> dict[str, Iterable[Any]]:
        """The batches of this week and of earlier ones, by name."""
        assert self.earlier is not None
        sets, own = dict(self.earlier), trainer.val_dataloaders
        if own is None or isinstance(own, list):
            return sets
        week = self.week.start.week
        if week in sets:
            raise ValueError(
                f"Invalid earlier: {week!r} is this week, whose data are the validation data of fit"
            )
        return {**sets, week: own}

    def _scores(self, target: Path) -> WeeklyScores:
        return WeeklyScores(target.parent, metric="score", higher_is_better=self.higher_is_better)

    def _check_sets(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Score the first batch of every set, without a random number drawn."""
        for name, batches in self._sets(trainer).items():
            with torch.random.fork_rng(devices=range(torch.cuda.device_count())):
                try:
                    score = self._mean(pl_module, itertools.islice(batches, 1))
                except Exception as error:
                    said = f"{type(error).__name__}: {' '.join(str(error).split())}"
                    raise ValueError(
                        f"The data of {name!r} cannot be scored, as their first batch shows: {said}"
                    ) from error
            if not score.examples:
                raise ValueError(f"The data of {name!r} cannot be scored: there is not a batch")

    def _score(self, trainer: Trainer, pl_module: LightningModule) -> None:
        sets = self._sets(trainer)
        scores = {name: self._mean(pl_module, batches) for name, batches in sets.items()}
        if not trainer.is_global_zero:
            return
        kept = self._scores(self._target(trainer))
        metrics = kept.record(self.week.start.week, scores)
        print(kept.sentence())
        metrics |= {f"score/{name}": score.value for name, score in scores.items()}
        for logger in trainer.loggers:
            logger.log_metrics(metrics, step=trainer.global_step)

    def _mean(self, pl_module: LightningModule, batches: Iterable[Any]) -> WeekScore:
        assert self.score is not None
        total, count = 0.0, 0
        with evaluation_mode(pl_module), torch.no_grad():
            for batch in batches:
                batch = pl_module.transfer_batch_to_device(batch, pl_module.device, 0)
                found = self.score(pl_module, batch)
                total, count = total + float(found.sum()), count + found.numel()
        return WeekScore(total / max(1, count), count)


def _pair(batch: Any) -> tuple[Any, Any]:
    """Inputs and targets of a batch."""
    if isinstance(batch, list | tuple) and len(batch) == 2:
        return batch[0], batch[1]
    raise ValueError(f"method= needs batches of inputs and targets, not {type(batch).__name__}")
