"""Lightning's `Trainer`, with the usual `configure_optimizers`.

    class Model(LightningModule):
        def configure_optimizers(self):
            return ContinualAdamW(self.parameters(), lr=5e-4)

    trainer = Trainer(callbacks=[ContinualCallback(memory="model/")])
    trainer.fit(model, this_week)

Every `fit` asks for a new optimizer, which has no past, and writes ``last.ckpt`` before training
has ended; the callback loads the past, ends the task and puts the boundary into that checkpoint.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from longtail.integrations.accidents import warn_of_fresh
from longtail.integrations.foreign_loop import MakeMethod, MethodInLoop, RowsOfDataset
from longtail.integrations.weekly_scores import Score, WeeklyScores
from longtail.memory import load_memory, save_memory
from longtail.memory.document import memory_path
from longtail.optim import ContinualAdam, TaskAverage, end_task
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

    Args:
        memory: the folder (or ``.safetensors`` file) of the memory; by default the Trainer's
            ``default_root_dir``.
        dtype: of the file, see `longtail.save_memory`.
        names: renames parameters, see `longtail.save_memory`. A LightningModule that holds the
            model as ``self.model`` puts "model." before every name.
        grow: what rows of a grown tensor start with, see `longtail.load_memory`.
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
        dtype: torch.dtype | str | None = None,
        names: Renaming | None = None,
        grow: str = "mean",
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
        self.memory, self.dtype, self.names, self.grow = memory, dtype, names, grow
        self.earlier, self.score, self.week = earlier, score, week
        self.higher_is_better = higher_is_better
        self._trains = False
        self._steps = False  # whether this batch completed an optimizer step

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._trains = False
        self._optimizer(trainer)  # the wrong one is told before the first step

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._trains = True
        if self.make_method is not None:
            self._enter_loop(trainer, pl_module)
        if self.in_loop is not None:
            self.in_loop.method.optimizer = self._optimizer(trainer)
        if self.average_kind is not None:
            self._begin_average(trainer, pl_module)
        if trainer.ckpt_path is not None:  # the checkpoint has brought the past along
            warn_of_fresh(self._optimizer(trainer), self._folder(trainer))
            return
        file = memory_path(self._folder(trainer))
        if file.exists():
            load_memory(self._optimizer(trainer), file, pl_module, names=self.names, grow=self.grow)
        elif trainer.is_global_zero:
            print(f"no memory at {file} yet: this is the first week")

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        optimizer = self._optimizer(trainer)
        folder = self._folder(trainer)
        if self.in_loop is not None:
            loader: Any = trainer.train_dataloader
            self.in_loop.end_task(
                RowsOfDataset(loader.dataset, loader.collate_fn, _pair, pl_module.device)
            )
            del pl_module.training_step  # the class has its own again
            if trainer.is_global_zero:
                self.in_loop.save(memory_path(folder).parent)
        end_task(optimizer)
        save_memory(optimizer, folder, pl_module, dtype=self.dtype, names=self.names)
        if self.average is not None:
            self.average.end_task()
            if trainer.is_global_zero:
                self.average.save(memory_path(folder).parent)
        self._mend_checkpoints(trainer)
        if self.earlier is not None:
            self._score(trainer, pl_module, optimizer)

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
        if self.in_loop is not None:
            self.in_loop.observe()
        if self.average is not None:
            self.average.step()

    def state_dict(self) -> dict[str, Any]:
        """What a checkpoint in the middle of a week has of the average and of the method."""
        found = {} if self.average is None else {"average": self.average.state_dict()}
        return found | (
            {} if self.in_loop is None else {"method": self.in_loop.method.state_dict()}
        )

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self._saved_average = state_dict.get("average")
        self._saved_method = state_dict.get("method")

    def _begin_average(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """The average of earlier weeks, or that of the checkpoint that is resumed."""
        assert self.average_kind is not None
        self.average = TaskAverage(pl_module, self.average_kind)
        if trainer.ckpt_path is not None and self._saved_average is not None:
            self.average.load_state_dict(self._saved_average)
        else:
            self.average.load(memory_path(self._folder(trainer)).parent)
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
            in_loop.load(memory_path(self._folder(trainer)).parent)
        self._saved_method = None

        def training_step(batch: Any, batch_idx: int) -> Tensor:
            return in_loop.loss(*_pair(batch))

        pl_module.training_step = training_step

    def _optimizer(self, trainer: Trainer) -> ContinualAdam:
        found = [x for x in map(continual_adam_in, trainer.optimizers) if x is not None]
        if len(found) != 1:
            kinds = ", ".join(type(x).__name__ for x in trainer.optimizers) or "none"
            raise TypeError(
                "ContinualCallback needs configure_optimizers to return one ContinualAdamW, and "
                f"found {kinds}"
            )
        return found[0]

    def _folder(self, trainer: Trainer) -> str | os.PathLike[str]:
        return trainer.default_root_dir if self.memory is None else self.memory

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

    def _score(
        self, trainer: Trainer, pl_module: LightningModule, optimizer: ContinualAdam
    ) -> None:
        assert self.earlier is not None
        tasks = max(int(group["tasks_seen"]) for group in optimizer.param_groups)
        week = self.week or f"week {tasks}"
        data = dict(self.earlier)
        if trainer.val_dataloaders is not None and not isinstance(trainer.val_dataloaders, list):
            data[week] = trainer.val_dataloaders
        scores = {name: self._mean(pl_module, batches) for name, batches in data.items()}
        folder = memory_path(self._folder(trainer)).parent
        kept = WeeklyScores(folder, higher_is_better=self.higher_is_better)
        metrics = kept.record(week, scores)
        metrics |= {f"score/{name}": score.value for name, score in scores.items()}
        for logger in trainer.loggers:
            logger.log_metrics(metrics, step=trainer.global_step)

    def _mean(self, pl_module: LightningModule, batches: Iterable[Any]) -> Score:
        assert self.score is not None
        total, count = 0.0, 0
        with evaluation_mode(pl_module), torch.no_grad():
            for batch in batches:
                batch = pl_module.transfer_batch_to_device(batch, pl_module.device, 0)
                found = self.score(pl_module, batch)
                total, count = total + float(found.sum()), count + found.numel()
        return Score(total / max(1, count), count)


def _pair(batch: Any) -> tuple[Any, Any]:
    """Inputs and targets of a batch."""
    if isinstance(batch, list | tuple) and len(batch) == 2:
        return batch[0], batch[1]
    raise ValueError(f"method= needs batches of inputs and targets, not {type(batch).__name__}")
