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

from longtail.integrations.foreign_loop import MakeMethod, RowsOfDataset
from longtail.integrations.weekly import Chain, Checkpoint, WeeklyCallback
from longtail.memory.document import CONTINUAL
from longtail.memory.scores import WeeklyScores, WeekScore
from longtail.optim.wrappers import continual_adam_in
from longtail.support.eval_mode import evaluation_mode
from longtail.tasks import Objective

if TYPE_CHECKING:
    from lightning.pytorch import Callback, LightningModule, Trainer
else:
    try:
        from lightning.pytorch import Callback, LightningModule, Trainer
    except ImportError:  # the same code under its older name
        from pytorch_lightning import Callback, LightningModule, Trainer


class ContinualCallback(WeeklyCallback, Callback):
    """One task, or week, for each call of `trainer.fit()`.

    The memory is stamped with the week's name and its weights: a week that is done again starts
    from the memory of the week before and takes its own place, and weights that do not belong to
    the memory are an error.

    Args:
        memory: the folder (or ``.safetensors`` file) of the memory; by default the Trainer's
            ``default_root_dir``. All weeks may share it.
        earlier: batches (a DataLoader) of earlier weeks by name, ``{}`` in the first week; scored
            when training ends, and logged with RP, BWT and FGT to the Trainer's loggers, as are
            the validation data of `fit`, where there are some. Needs ``score``.
        score: ``score(module, batch)`` gives the score of every example of a batch.
        higher_is_better: direction of the score.
        method: makes a method of `longtail.methods` for a model and an objective:
            ``functools.partial(EWC, strength=2.0)``. Its loss takes the place of `training_step`,
            with the module's `forward` as the model and batches of inputs and targets; what it
            knows is kept beside the memory. Needs ``objective``.
        objective: the loss of each example, such as `longtail.tasks.CLASSIFICATION`.
        average: "task" or "ema" keeps an average of the weights over weeks, `longtail.TaskAverage`,
            in a file beside the memory; ``callback.average.applied()`` puts it into the module.
        chain: ``policy``, ``before``, ``week``, ``dtype``, ``names``, ``grow`` and ``check``, see
            `longtail.integrations.weekly.Chain`. A LightningModule that holds the model as
            ``self.model`` puts "model." before every name.
    """

    def __init__(
        self,
        memory: str | os.PathLike[str] | None = None,
        *,
        earlier: Mapping[str, Iterable[Any]] | None = None,
        score: Callable[[LightningModule, Any], Tensor] | None = None,
        higher_is_better: bool = True,
        method: MakeMethod | None = None,
        objective: Objective | None = None,
        average: str | None = None,
        **chain: Any,
    ) -> None:
        if earlier is not None and score is None:
            raise ValueError("earlier= needs score=, a function of the module and a batch")
        if method is not None and objective is None:
            raise ValueError("method= needs objective=, the loss of each example of a batch")
        super().__init__(
            Chain(memory, **chain),
            earlier=earlier,
            method=method,
            objective=objective,
            average=average,
        )
        self.score, self.higher_is_better = score, higher_is_better
        self._saved: dict[str, Any] = {}  # what a checkpoint has of `state_dict`
        self._trains = False
        self._steps = False  # whether this batch completed an optimizer step

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._trains = False
        self._optimizer(trainer)  # the wrong one is told before the first step

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._trains = True
        optimizer, target = self._optimizer(trainer), self.target(trainer.default_root_dir)
        checkpoint = None
        if trainer.ckpt_path is not None:  # it has brought the optimizer's state along
            saved = self._saved
            checkpoint = Checkpoint(
                str(trainer.ckpt_path),
                trainer.global_step,
                saved.get("week"),
                load_method=lambda in_loop: _load(in_loop.method, saved.get("method")),
                load_average=lambda average: _load(average, saved.get("average")),
            )
        self.begin_week(optimizer, pl_module, target, checkpoint)
        if self.make_method is not None:
            if not pl_module.automatic_optimization:
                raise ValueError("method= needs automatic optimization: yours calls its own")
            assert self.objective is not None
            self.begin_method(pl_module, self.objective, optimizer, target, checkpoint)
            in_loop = self.in_loop
            assert in_loop is not None
            pl_module.training_step = lambda batch, batch_idx: in_loop.loss(*_pair(batch))
        self._saved = {}
        if self.earlier is not None:
            self._scores(target)
            self._check_sets(trainer, pl_module)

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        optimizer, target = self._optimizer(trainer), self.target(trainer.default_root_dir)
        loader: Any = trainer.train_dataloader
        self.end_week(
            optimizer,
            pl_module,
            target,
            lambda: RowsOfDataset(loader.dataset, loader.collate_fn, _pair, pl_module.device),
            saves=trainer.is_global_zero,
        )
        if self.in_loop is not None:
            del pl_module.training_step  # the class has its own again
        self._mend_checkpoints(trainer)
        if self.earlier is not None:
            self._score(trainer, pl_module)

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
        self.after_step(self._optimizer(trainer))

    def state_dict(self) -> dict[str, Any]:
        """What a checkpoint has of the week, of the average and of the method."""
        state: dict[str, Any] = {"week": self.state()}
        if self.average is not None:
            state["average"] = self.average.state_dict()
        if self.in_loop is not None:
            state["method"] = self.in_loop.method.state_dict()
        return state

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self._saved = state_dict

    def _optimizer(self, trainer: Trainer) -> Optimizer:
        found: list[Any] = list(trainer.optimizers)
        if self.chain.policy == CONTINUAL:
            found = [x for x in map(continual_adam_in, trainer.optimizers) if x is not None]
        if len(found) != 1:
            kinds = ", ".join(type(x).__name__ for x in trainer.optimizers) or "none"
            what = "ContinualAdamW" if self.chain.policy == CONTINUAL else "optimizer"
            raise TypeError(
                f"ContinualCallback needs configure_optimizers to return one {what}, and found "
                f"{kinds}"
            )
        return self.optimizer_in(found[0], "return one from configure_optimizers")

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
        own = trainer.val_dataloaders
        return self.sets(None if isinstance(own, list) else own, "the validation data of fit")

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
        kept = self._scores(self.target(trainer.default_root_dir))
        metrics = kept.record(self.start.week, scores)
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


def _load(thing: Any, state: Any) -> bool:
    """Give it the state that a checkpoint has of it, where it has one."""
    if state is not None:
        thing.load_state_dict(state)
    return state is not None


def _pair(batch: Any) -> tuple[Any, Any]:
    """Inputs and targets of a batch."""
    if isinstance(batch, list | tuple) and len(batch) == 2:
        return batch[0], batch[1]
    raise ValueError(f"method= needs batches of inputs and targets, not {type(batch).__name__}")
