"""What a callback does at the two ends of a week, whatever the framework.

At its beginning: the optimizer is looked at, the memory of the week before is found and loaded.
At its end: the task ends, the memory is saved under the week's name, that of the week before is
kept. A checkpoint in the middle carries `Week.state`, and goes on with the same week alone.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from longtail.memory import load_memory
from longtail.memory.chain import (
    Start,
    keep_before,
    previous,
    start_week,
    week_of_memory,
)
from longtail.memory.document import CONTINUAL, KEPT, NEW, POLICIES, by, count, memory_path, rank
from longtail.memory.file import save_stamped, stored_dtype
from longtail.memory.kept import (
    check_state,
    load_state,
    save_nothing,
    save_state,
    torch_optimizer_in,
)
from longtail.memory.stamp import ADAPTER, Stamp, fingerprint, fingerprint_of, plain_of
from longtail.optim import ContinualAdam, end_task, reset
from longtail.optim.wrappers import continual_adam_in
from longtail.support.growth import check_growth
from longtail.support.param_names import Renaming, adapters_in, aliases_of, renamer
from longtail.support.tensor_file import DAMAGED


class Week:
    """One week of a chain.

    Args:
        policy: "continual" needs a Continual Adam; "kept" takes any optimizer of torch, and its
            state from week to week; "new" takes any, without a state.
        memory: where the memory is, or will be; None for the framework's own folder.
        before: where that of the week before is, if each week has a folder of its own.
        week: what it is called; None for "week" and its number.
        dtype: of the file, see `longtail.save_memory`.
        names: renames parameters, see `longtail.save_memory`.
        grow: what rows of a grown tensor start with, see `longtail.load_memory`.
        check: whether a memory that does not belong to the weights, or is missing, is an error.
    """

    def __init__(
        self,
        *,
        policy: str,
        memory: str | os.PathLike[str] | None,
        before: str | os.PathLike[str] | None,
        week: str | None,
        dtype: torch.dtype | str | None,
        names: Renaming | None,
        grow: str,
        check: bool,
    ) -> None:
        if policy not in POLICIES:
            known = ", ".join(map(repr, POLICIES))
            raise ValueError(f"Invalid policy: {policy!r}, must be one of {known}")
        if week is not None and (not isinstance(week, str) or not week.strip()):
            raise ValueError(f"Invalid week: {week!r}, not a name")
        stored_dtype(dtype)
        check_growth(grow)
        renamer(names)
        self.policy, self.memory, self.before, self.week = policy, memory, before, week
        self.dtype, self.names, self.grow, self.check = dtype, names, grow, check
        self.start = Start(week or "week 1")
        self.ended = False
        self._checked_state = policy != KEPT

    def target(self, default: str | os.PathLike[str]) -> Path:
        """The file of this week's memory."""
        return memory_path(default if self.memory is None else self.memory)

    def optimizer_in(self, optimizer: Any, remedy: str) -> Optimizer:
        """The optimizer within a framework's wrappers, if it is one for this policy."""
        if self.policy != CONTINUAL:
            return torch_optimizer_in(optimizer)
        inner = continual_adam_in(optimizer)
        if inner is None:
            raise TypeError(
                f"ContinualCallback found {type(optimizer).__name__} and no ContinualAdamW: "
                f"{remedy}, or say policy='kept' or 'new'"
            )
        return inner

    def check_optimizer(self, optimizer: Optimizer, model: nn.Module) -> None:
        """Raise for an optimizer of other parameters than those the model trains."""
        check_parameters(optimizer, model)
        aliases_of(optimizer, model, self.names)

    def check_target(self, target: Path) -> None:
        """Raise where the memory could not be written when the week is over."""
        if target.is_dir():
            raise ValueError(f"Invalid memory: {target} is a folder")
        try:
            target.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ValueError(f"Invalid memory: {target.parent}: {error.strerror}") from None

    def begin(
        self, optimizer: Optimizer, model: nn.Module, target: Path, scored: Collection[str] = ()
    ) -> None:
        """Give the optimizer what the week before left."""
        now = fingerprint(model, self.names)
        self.start = start_week(
            target, now, week=self.week, before=self.before, scored=scored, check=self.check
        )
        self.ended = False
        source = self.start.source
        if self.start.policy not in (None, self.policy):
            raise ValueError(
                f"The memory at {source or target} is of policy={self.start.policy!r}, and this "
                f"week of {self.policy!r}: each policy needs a folder of its own"
            )
        if self.policy == NEW or self.start.again:
            _make_new(optimizer)
        if rank() == 0:
            self._tell(target)
        if source is None:
            return
        if self.policy == CONTINUAL:
            load_memory(optimizer, source, model, names=self.names, grow=self.grow)
            if self.start.merged:
                from longtail.integrations.peft import spread_over_rank

                spread_over_rank(optimizer, model, self.names)
        elif self.policy == KEPT:
            adapter = [name for name, sample in now.items() if sample.part == ADAPTER]
            anew = adapter if self.start.merged else []
            settings: dict[str, Any] = {"names": self.names, "grow": self.grow, "anew": anew}
            report = load_state(optimizer, source, model, **settings)
            if rank() == 0:
                print(report)

    def _tell(self, target: Path) -> None:
        if self.start.again:
            since = "from the memory of the week before" if self.start.source else "from the start"
            print(f"{self.start.week} is done again, {since}: it takes its own place")
        elif self.start.source is None:
            print(f"no memory at {target} yet: this is the first week")

    def resume(self, saved: dict[str, Any], checkpoint: str, steps: int) -> None:
        """Go on with the week that a checkpoint is of, in which the optimizer's state is.

        Args:
            saved: what `state` gave.
            checkpoint: what it is called.
            steps: how many steps it has behind it.
        """
        try:
            week, tasks, policy = str(saved["week"]), int(saved["tasks"]), saved["policy"]
            began, ended = fingerprint_of(saved["began"]), bool(saved["ended"])
        except DAMAGED:
            raise ValueError(f"{checkpoint} does not say which week it is of") from None
        own = "give each week a folder of its own, and resume within one week alone"
        if ended:
            raise ValueError(
                f"{checkpoint} is of {week!r}, which has ended: resuming from it would skip the "
                f"first {steps} steps of this week. Train without resuming; {own}"
            )
        if self.week is not None and self.week != week:
            raise ValueError(f"{checkpoint} is of {week!r}, and this is {self.week!r}: {own}")
        if policy != self.policy:
            raise ValueError(f"{checkpoint} is of policy={policy!r}, and not {self.policy!r}")
        self.start, self.ended = Start(week, None, tasks, began), False

    def resume_unknown(self, target: Path) -> None:
        """Go on from a checkpoint that this callback has not seen."""
        self.start = Start(self.week or week_of_memory(target) or "week 1")

    def state(self) -> dict[str, Any]:
        """What a checkpoint says of the week it is of, as JSON has it."""
        return {
            "week": self.start.week,
            "tasks": self.start.tasks,
            "policy": self.policy,
            "began": plain_of(self.start.began),
            "ended": self.ended,
        }

    def after_step(self, optimizer: Any) -> None:
        """Look at the state that will have to be saved, once it is there."""
        if not self._checked_state:
            check_state(torch_optimizer_in(optimizer))
            self._checked_state = True

    def end(self, optimizer: Optimizer, model: nn.Module, target: Path) -> None:
        """End the task and write the memory of this week."""
        if self.policy == CONTINUAL:
            end_task(optimizer)
        self.ended = True
        if rank() == 0:
            keep_before(target, self.start.week, week_of_memory)
        self.save(optimizer, model, target)

    def save(self, optimizer: Optimizer, model: nn.Module, target: Path) -> None:
        """Write a memory, in the chain or into a checkpoint."""
        stamp = Stamp(self.start.week, self.start.began, fingerprint(model, self.names))
        tasks = self.start.tasks + 1
        if self.policy == CONTINUAL:
            assert isinstance(optimizer, ContinualAdam)
            save_stamped(optimizer, target, model, stamp, dtype=self.dtype, names=self.names)
        elif self.policy == KEPT:
            save_state(optimizer, target, model, stamp, tasks=tasks, names=self.names)
        else:
            save_nothing(optimizer, target, stamp, tasks=tasks)

    def previous(
        self, target: Path, name: str, week_of: Callable[[Path], str | None]
    ) -> Path | None:
        """The file of the week before that lies beside its memory; None where there is none."""
        home = target if self.before is None else memory_path(self.before)
        return previous(home.parent / name, self.start.week, week_of)

    def keep_before(self, path: Path, week_of: Callable[[Path], str | None]) -> None:
        """Keep a file beside the memory as that of the week before."""
        keep_before(path, self.start.week, week_of)


def _make_new(optimizer: Optimizer) -> None:
    """Forget a state that the optimizer has from a week in the same process."""
    if isinstance(optimizer, ContinualAdam):
        reset(optimizer)
    else:
        optimizer.state.clear()


def check_parameters(optimizer: Optimizer, model: nn.Module) -> None:
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
