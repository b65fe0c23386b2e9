"""What the callbacks of all frameworks do at the two ends of a week, and at its steps.

At its beginning: the optimizer is looked at, the memory of the week before is found and loaded.
At its end: the task ends, the memory is saved under the week's name, that of the week before is
kept. A checkpoint in the middle carries `WeeklyCallback.state`, and goes on with the same week
alone. What a method in the loop knows, and an average of the weights, go the way of the memory.

A framework's callback says when training begins, steps and ends, which optimizer and model that is
of, and where the week's data and its scores go.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from longtail.integrations.foreign_loop import FILE_NAME as METHOD_FILE
from longtail.integrations.foreign_loop import (
    MakeMethod,
    MethodInLoop,
    RowsOfDataset,
    week_of_method,
)
from longtail.memory import load_memory
from longtail.memory.chain import Start, keep_before, previous, start_week, week_of_memory
from longtail.memory.document import (
    CONTINUAL,
    KEPT,
    NEW,
    POLICIES,
    by,
    count,
    memory_path,
    rank,
    remembered,
)
from longtail.memory.file import save_stamped, stored_dtype
from longtail.memory.kept import (
    check_state,
    load_state,
    save_nothing,
    save_state,
    torch_optimizer_in,
)
from longtail.memory.scores import scored_weeks
from longtail.memory.stamp import ADAPTER, Stamp, fingerprint, fingerprint_of, plain_of
from longtail.optim import ContinualAdam, TaskAverage, end_task, reset
from longtail.optim.average import FILE_NAME as AVERAGE_FILE
from longtail.optim.average import week_of_average
from longtail.optim.wrappers import continual_adam_in
from longtail.support.growth import check_growth
from longtail.support.param_names import Renaming, adapters_in, aliases_of, renamer
from longtail.support.tensor_file import DAMAGED
from longtail.tasks import Objective


@dataclass(frozen=True)
class Chain:
    """How weeks follow one another, whatever the framework.

    Args:
        memory: the folder (or ``.safetensors`` file) of the memory; by default the folder that the
            framework writes to. All weeks may share it.
        policy: "continual" keeps what Continual Adam remembers; "kept" takes any optimizer of torch
            and keeps its state from week to week; "new" takes any and keeps nothing. Scores,
            averages and stamps are the same for all.
        before: the folder of the week before, where each week has one of its own.
        week: what this week is called; by default "week" and its number.
        dtype: of the file, see `longtail.save_memory`.
        names: renames parameters, see `longtail.save_memory`.
        grow: what rows of a grown tensor start with, see `longtail.load_memory`.
        check: False takes the memory as it is, whatever weights it belongs to, and starts without
            one where it is missing.
    """

    memory: str | os.PathLike[str] | None = None
    policy: str = CONTINUAL
    before: str | os.PathLike[str] | None = None
    week: str | None = None
    dtype: torch.dtype | str | None = None
    names: Renaming | None = None
    grow: str = "mean"
    check: bool = True

    def __post_init__(self) -> None:
        if self.policy not in POLICIES:
            known = ", ".join(map(repr, POLICIES))
            raise ValueError(f"Invalid policy: {self.policy!r}, must be one of {known}")
        if self.week is not None and (not isinstance(self.week, str) or not self.week.strip()):
            raise ValueError(f"Invalid week: {self.week!r}, not a name")
        stored_dtype(self.dtype)
        check_growth(self.grow)
        renamer(self.names)


@dataclass(frozen=True)
class Checkpoint:
    """Where training goes on in the middle of a week.

    Attributes:
        name: what the checkpoint is called.
        steps: how many steps it has behind it.
        week: what `WeeklyCallback.state` gave; None where no callback has seen the checkpoint.
        load_method: gives a method what the checkpoint has of it; False where it has nothing.
        load_average: the same for an average.
    """

    name: str
    steps: int
    week: dict[str, Any] | None
    load_method: Callable[[MethodInLoop], bool]
    load_average: Callable[[TaskAverage], bool]


class WeeklyCallback:
    """The part of a callback that knows nothing of its framework.

    Args:
        chain: where the week's memory is, and how it follows the last one.
        earlier: the data of earlier weeks by name.
        method: makes a method of `longtail.methods` for a model and an objective.
        objective: the loss of each example.
        average: the kind of an average of the weights, see `longtail.TaskAverage`.
    """

    def __init__(
        self,
        chain: Chain,
        *,
        earlier: Mapping[str, Any] | None,
        method: MakeMethod | None,
        objective: Objective | None,
        average: str | None,
    ) -> None:
        self.chain, self.earlier = chain, earlier
        self.make_method, self.objective, self.average_kind = method, objective, average
        self.in_loop: MethodInLoop | None = None
        self.average: TaskAverage | None = None
        self.start = Start(chain.week or "week 1")
        self.ended = False
        self._checked_state = chain.policy != KEPT

    def target(self, default: str | os.PathLike[str] | None) -> Path:
        """The file of this week's memory; `default` is the framework's own folder."""
        chosen = default if self.chain.memory is None else self.chain.memory
        return memory_path(chosen or ".")

    def optimizer_in(self, optimizer: Any, remedy: str) -> Optimizer:
        """The optimizer within a framework's wrappers, if it is one for this policy."""
        if self.chain.policy != CONTINUAL:
            return torch_optimizer_in(optimizer)
        inner = continual_adam_in(optimizer)
        if inner is None:
            raise TypeError(
                f"ContinualCallback found {type(optimizer).__name__} and no ContinualAdamW: "
                f"{remedy}, or say policy='kept' or 'new'"
            )
        return inner

    def begin_week(
        self, optimizer: Optimizer, model: nn.Module, target: Path, checkpoint: Checkpoint | None
    ) -> None:
        """Look at everything, and load what the week before left; a checkpoint has it already."""
        _check_parameters(optimizer, model)
        aliases_of(optimizer, model, self.chain.names)
        _check_target(target)
        if checkpoint is not None:
            self._resume(optimizer, target, checkpoint)
        else:
            self._begin(optimizer, model, target)
        if self.average_kind is None:
            return
        self.average = TaskAverage(model, self.average_kind)
        if checkpoint is None or not checkpoint.load_average(self.average):
            file = self._previous(target, AVERAGE_FILE, week_of_average)
            if file is not None:
                self.average.load(file)

    def begin_method(
        self,
        model: nn.Module,
        objective: Objective,
        optimizer: Optimizer,
        target: Path,
        checkpoint: Checkpoint | None,
    ) -> None:
        """Make the method, with what it knew after the last week or at the checkpoint."""
        assert self.make_method is not None
        self.in_loop = MethodInLoop(self.make_method(model, objective))
        self.in_loop.method.optimizer = optimizer
        if checkpoint is None or not checkpoint.load_method(self.in_loop):
            self.in_loop.load(self._previous(target, METHOD_FILE, week_of_method))

    def after_step(self, optimizer: Any) -> None:
        if not self._checked_state:  # what will have to be saved is there now
            check_state(torch_optimizer_in(optimizer))
            self._checked_state = True
        if self.in_loop is not None:
            self.in_loop.observe()
        if self.average is not None:
            self.average.step()

    def end_week(
        self,
        optimizer: Optimizer,
        model: nn.Module,
        target: Path,
        examples: Callable[[], RowsOfDataset],
        *,
        saves: bool,
    ) -> None:
        """End the task and write what is known; of several processes the one that `saves`."""
        if self.in_loop is not None:
            self.in_loop.end_task(examples())
        if self.average is not None:
            self.average.end_task()
        if self.chain.policy == CONTINUAL:
            end_task(optimizer)
        self.ended = True
        if rank() == 0:
            keep_before(target, self.start.week, week_of_memory)
        self.save(optimizer, model, target)
        if saves:
            folder = target.parent
            keep_before(folder / METHOD_FILE, self.start.week, week_of_method)
            keep_before(folder / AVERAGE_FILE, self.start.week, week_of_average)
            self.save_beside(folder)

    def save(self, optimizer: Optimizer, model: nn.Module, target: Path) -> None:
        """Write a memory, in the chain or into a checkpoint."""
        names = self.chain.names
        stamp = Stamp(self.start.week, self.start.began, fingerprint(model, names))
        tasks = self.start.tasks + 1
        if self.chain.policy == CONTINUAL:
            assert isinstance(optimizer, ContinualAdam)
            save_stamped(optimizer, target, model, stamp, dtype=self.chain.dtype, names=names)
        elif self.chain.policy == KEPT:
            save_state(optimizer, target, model, stamp, tasks=tasks, names=names)
        else:
            save_nothing(optimizer, target, stamp, tasks=tasks)

    def save_beside(self, folder: Path) -> None:
        """Write what the method knows and the average."""
        if self.in_loop is not None:
            self.in_loop.save(folder / METHOD_FILE, self.start.week)
        if self.average is not None:
            self.average.save(folder, week=self.start.week)

    def state(self) -> dict[str, Any]:
        """What a checkpoint says of the week it is of, as JSON has it."""
        return {
            "week": self.start.week,
            "tasks": self.start.tasks,
            "policy": self.chain.policy,
            "began": plain_of(self.start.began),
            "ended": self.ended,
        }

    def sets(self, own: Any, whose: str) -> dict[str, Any]:
        """The data of earlier weeks and of this one, by name.

        Args:
            own: this week's; None where there are none.
            whose: where they were given.
        """
        assert self.earlier is not None
        if own is None:
            return dict(self.earlier)
        week = self.start.week
        if week in self.earlier:
            raise ValueError(f"Invalid earlier: {week!r} is this week, whose data are {whose}")
        return {**self.earlier, week: own}

    def _begin(self, optimizer: Optimizer, model: nn.Module, target: Path) -> None:
        chain, now = self.chain, fingerprint(model, self.chain.names)
        scored = [*(self.earlier or ()), *scored_weeks(target.parent)]
        self.start = start_week(
            target, now, week=chain.week, before=chain.before, scored=scored, check=chain.check
        )
        self.ended = False
        source = self.start.source
        if self.start.policy not in (None, chain.policy):
            raise ValueError(
                f"The memory at {source or target} is of policy={self.start.policy!r}, and this "
                f"week of {chain.policy!r}: each policy needs a folder of its own"
            )
        if chain.policy == NEW or self.start.again:
            _make_new(optimizer)
        if rank() == 0:
            self._tell(target)
        if source is None:
            return
        if chain.policy == CONTINUAL:
            load_memory(optimizer, source, model, names=chain.names, grow=chain.grow)
            if self.start.merged:
                from longtail.integrations.peft import spread_over_rank

                spread_over_rank(optimizer, model, chain.names)
        elif chain.policy == KEPT:
            adapter = [name for name, sample in now.items() if sample.part == ADAPTER]
            anew = adapter if self.start.merged else []
            names, grow = chain.names, chain.grow
            report = load_state(optimizer, source, model, names=names, grow=grow, anew=anew)
            if rank() == 0:
                print(report)

    def _tell(self, target: Path) -> None:
        if self.start.again:
            since = "from the memory of the week before" if self.start.source else "from the start"
            print(f"{self.start.week} is done again, {since}: it takes its own place")
        elif self.start.source is None:
            print(f"no memory at {target} yet: this is the first week")

    def _resume(self, optimizer: Optimizer, target: Path, checkpoint: Checkpoint) -> None:
        """Go on with the week that a checkpoint is of, and with no other."""
        name, saved, chain = checkpoint.name, checkpoint.week, self.chain
        if saved is None:
            self.start = Start(chain.week or week_of_memory(target) or "week 1")
            if isinstance(optimizer, ContinualAdam):
                _warn_of_fresh(optimizer, target)
            return
        try:
            week, tasks, policy = str(saved["week"]), int(saved["tasks"]), saved["policy"]
            began, ended = fingerprint_of(saved["began"]), bool(saved["ended"])
        except DAMAGED:
            raise ValueError(f"{name} does not say which week it is of") from None
        own = "give each week a folder of its own, and resume within one week alone"
        if ended:
            raise ValueError(
                f"{name} is of {week!r}, which has ended: resuming from it would skip the first "
                f"{checkpoint.steps} steps of this week. Train without resuming; {own}"
            )
        if chain.week is not None and chain.week != week:
            raise ValueError(f"{name} is of {week!r}, and this is {chain.week!r}: {own}")
        if policy != chain.policy:
            raise ValueError(f"{name} is of policy={policy!r}, and not {chain.policy!r}")
        self.start, self.ended = Start(week, None, tasks, began), False

    def _previous(
        self, target: Path, name: str, week_of: Callable[[Path], str | None]
    ) -> Path | None:
        """The file of the week before that lies beside its memory; None where there is none."""
        home = target if self.chain.before is None else memory_path(self.chain.before)
        return previous(home.parent / name, self.start.week, week_of)


def _check_target(target: Path) -> None:
    """Raise where the memory could not be written when the week is over."""
    if target.is_dir():
        raise ValueError(f"Invalid memory: {target} is a folder")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ValueError(f"Invalid memory: {target.parent}: {error.strerror}") from None


def _warn_of_fresh(optimizer: ContinualAdam, target: Path) -> None:
    """Warn of an optimizer that knows no task and will not be told, though a memory lies there."""
    own = max((int(group["tasks_seen"]) for group in optimizer.param_groups), default=0)
    tasks, _ = remembered(target)
    if tasks and not own:
        warnings.warn(
            f"The checkpoint's optimizer has seen no task, and {target} remembers {tasks}: a "
            "checkpoint is taken as it is, and that memory is replaced at the end",
            stacklevel=4,
        )


def _make_new(optimizer: Optimizer) -> None:
    """Forget a state that the optimizer has from a week in the same process."""
    if isinstance(optimizer, ContinualAdam):
        reset(optimizer)
    else:
        optimizer.state.clear()


def _check_parameters(optimizer: Optimizer, model: nn.Module) -> None:
    """Compare the optimizer's parameters with those that the model trains, and say what is missing.

    Raises:
        ValueError: the optimizer was made before the model had its present parameters.
    """
    names: dict[Tensor, str] = {p: name for name, p in model.named_parameters()}
    own: list[Tensor] = [p for group in optimizer.param_groups for p in group["params"]]
    strangers = [parameter for parameter in own if parameter not in names]
    there = set(own)
    missing = {p: name for p, name in names.items() if p.requires_grad and p not in there}
    if not strangers and not missing:
        return
    lacks = f"The optimizer lacks {_some(missing)} that the model trains"
    after = "make the optimizer after it, or leave that to the Trainer: optimizer_cls_and_kwargs="
    if strangers:
        has = _some(dict.fromkeys(strangers, ""))
        raise ValueError(
            f"{lacks}, and has {has} that the model has not: others came after the optimizer was "
            f"made, as resize_token_embeddings() does it; {after}"
        )
    adapters = {*adapters_in(model)}
    if any(not adapters.isdisjoint(name.split(".")) for name in missing.values()):
        raise ValueError(
            f"{lacks}: PEFT wrapped the model after the optimizer was made (peft_config=); {after}"
        )
    if not any(parameter.requires_grad for parameter in own):
        raise ValueError(f"{lacks}, and all that it has is frozen; {after}")
    warnings.warn(f"{lacks}: they stay as they are", stacklevel=4)


def _some(parameters: dict[Tensor, str]) -> str:
    """How many parameters, and what the first of them are."""
    shown = [f"{name} {by(tuple(p.shape))}".strip() for p, name in parameters.items()]
    more = ", ..." if len(shown) > 3 else ""
    return f"{count(len(shown), 'parameter')} ({', '.join(shown[:3])}{more})"
