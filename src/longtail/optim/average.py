r"""An average of the weights over tasks, kept beside them: one more buffer, and no data.

    "task"    w̄ <- w̄ + (w - w̄) / c        at the end of every task, the c-th since w first moved
    "ema"     w̄ <- d w̄ + (1 - d) w        after every step; w̄ = w after the first

The rules are torch's own, ``torch.optim.swa_utils``. Training never sees the average: it is
evaluated in place of the weights, or saved.

What is averaged are the parameters that are trained. One that no task has moved yet is not averaged
with its initial value: c of "task" counts from the first task that moved it, so that the head of a
single task, or an adapter that came later, has the mean of what it was since then. Buffers, such as
the statistics of BatchNorm, are not averaged: the average is evaluated with those of the model.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any

import torch
from torch import Tensor, nn
from torch.optim.swa_utils import get_ema_multi_avg_fn, get_swa_multi_avg_fn

from longtail.support.growth import fit, shared_part
from longtail.support.param_names import normalise
from longtail.support.tensor_file import (
    DAMAGED,
    Entry,
    counted,
    not_finite,
    read_header,
    read_tensor,
    verify,
    write_tensors,
)

KINDS = ("task", "ema")
DECAY = 0.999  # of torch's own rule
FILE_NAME = "longtail_average.safetensors"
_FORMAT = "longtail-average"
_HALVES = (torch.float16, torch.bfloat16)


class TaskAverage:
    """The average of a model's trained parameters over tasks, or over steps.

    Args:
        model: whose parameters change in place; those that need no gradient are left out.
        kind: "task" averages the weights at the ends of tasks, each the same; "ema" all steps,
            later ones more.
        decay: d of "ema".
        leave_out: parameters that are not averaged, such as those of the task at hand alone.

    The average of half-precision parameters is in float32: in their own precision the hundredth
    task would change nothing.

    Example:
        >>> model = nn.Linear(1, 1, bias=False)
        >>> average = TaskAverage(model)
        >>> for value in (1.0, 2.0, 6.0):          # three tasks
        ...     _ = nn.init.constant_(model.weight, value)
        ...     average.end_task()
        >>> with average.applied():
        ...     model.weight.item()
        3.0
        >>> model.weight.item()
        6.0
    """

    def __init__(
        self,
        model: nn.Module,
        kind: str = "task",
        decay: float = DECAY,
        *,
        leave_out: Iterable[Tensor] = (),
    ) -> None:
        if kind not in KINDS:
            raise ValueError(f"Invalid kind: {kind!r}, not {' or '.join(map(repr, KINDS))}")
        if not 0 <= decay < 1:
            raise ValueError(f"Invalid decay: {decay}, not in [0, 1)")
        self.kind, self.decay = kind, decay
        out = {id(p) for p in leave_out}
        named = {n: p for n, p in model.named_parameters() if p.requires_grad and id(p) not in out}
        self._names = [normalise(name) for name in named]
        self._weights = [p.detach() for p in named.values()]  # the same memory
        self._average = [w.to(_wide(w), copy=True) for w in self._weights]
        self._counts = [0] * len(self._weights)  # tasks since each first moved
        self._started = False  # whether "ema" has seen a step
        self._rule: Callable[..., None]
        self._rule = get_swa_multi_avg_fn() if kind == "task" else get_ema_multi_avg_fn(decay)

    @property
    def tasks(self) -> int:
        """How many tasks the average is of, so far as it knows; "ema" does not count them."""
        return max(self._counts, default=0)

    @torch.no_grad()
    def step(self) -> None:
        """Call it after every step of the optimizer; it does something for "ema" alone."""
        if self.kind != "ema":
            return
        if self._started:
            self._lerp(range(len(self._weights)), 0)
        elif self._weights:
            torch._foreach_copy_(self._average, self._weights)
        self._started = True

    @torch.no_grad()
    def end_task(self) -> None:
        """Call it at the end of every task; it does something for "task" alone."""
        if self.kind != "task":
            return
        still = [i for i, count in enumerate(self._counts) if not count]
        if still:  # from the second task on there are few, mostly none: then nobody waits
            pairs = [(self._weights[i], self._average[i]) for i in still]
            moved = torch.stack([(w != a).any().to(pairs[0][0].device) for w, a in pairs]).tolist()
            still = [i for i, moves in zip(still, moved, strict=True) if not moves]
        alike: dict[int, list[int]] = {}
        for i in sorted({*range(len(self._counts))} - {*still}):
            alike.setdefault(self._counts[i], []).append(i)
            self._counts[i] += 1
        for count, places in alike.items():
            self._lerp(places, count)

    def _lerp(self, places: Iterable[int], count: int) -> None:
        """One step of torch's rule, for parameters of which `count` values are averaged so far."""
        kinds: dict[tuple[torch.device, torch.dtype], list[int]] = {}
        for i in places:
            kinds.setdefault((self._average[i].device, self._average[i].dtype), []).append(i)
        for chosen in kinds.values():
            current = [self._weights[i].to(self._average[i].dtype) for i in chosen]
            self._rule([self._average[i] for i in chosen], current, count)

    @contextmanager
    def applied(self) -> Iterator[None]:
        """Within ``with`` the model has the averaged weights; afterwards its own, to the bit.

        While it lasts it takes a copy of the weights beside the average.
        """
        if not self._weights:
            yield
            return
        kept = [torch.empty_like(w) for w in self._weights]
        with torch.no_grad():
            torch._foreach_copy_(kept, self._weights)
            torch._foreach_copy_(self._weights, self._average)
        try:
            yield
        finally:
            with torch.no_grad():
                torch._foreach_copy_(self._weights, kept)

    def state_dict(self) -> dict[str, Any]:
        """Tensors and plain values: what it takes to go on bit for bit."""
        return {
            "kind": self.kind,
            "counts": list(self._counts),
            "started": self._started,
            "average": list(self._average),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from `state_dict` of an average of the same kind and parameters."""
        shapes = [tuple(a.shape) for a in state["average"]]
        if state["kind"] != self.kind or shapes != [tuple(a.shape) for a in self._average]:
            raise ValueError(
                f"The saved average is of kind {state['kind']!r} over {len(shapes)} parameters, "
                f"this one {self.kind!r} over {len(self._average)}, or they differ in shape"
            )
        self._counts, self._started = list(state["counts"]), state["started"]
        if self._average:
            with torch.no_grad():
                for mine, saved in zip(self._average, state["average"], strict=True):
                    mine.copy_(saved)

    def save(self, path: str | os.PathLike[str], *, week: str | None = None) -> Path:
        """Write the average by parameter name, for the next process; see `load`.

        Args:
            path: a ``.safetensors`` file, or the folder for `longtail_average.safetensors`.
            week: what the last task is called, see `week_of_average`.
        """
        file = average_path(path)
        file.parent.mkdir(parents=True, exist_ok=True)
        values = dict(zip(self._names, self._average, strict=True))
        counts = dict(zip(self._names, self._counts, strict=True))
        told = {"kind": self.kind, "started": self._started, "counts": counts, "week": week}

        def tensor_of(name: str) -> Tensor:
            if (wrong := not_finite(values[name])) is not None:
                raise ValueError(f"Cannot save {file}: the average of {name} {wrong}")
            return values[name].detach().cpu().contiguous()

        write_tensors(
            file,
            {name: Entry(a.dtype, tuple(a.shape)) for name, a in values.items()},
            {"format": _FORMAT, "average": json.dumps(told)},
            tensor_of,
        )
        return file

    def load(self, path: str | os.PathLike[str]) -> bool:
        """Go on from what `save` wrote; whether there was something.

        A parameter that the file does not have begins anew, with the weights as they are now. So do
        the new rows of one that has grown; one that has shrunk keeps its first rows.

        Raises:
            ValueError: the file is damaged, of the other kind, or has another shape of something,
                which no rows added or cut off explain.
        """
        file = average_path(path)
        if not file.is_file():
            return False
        with open(file, "rb", buffering=0) as opened:
            self._read(file, opened)
        return True

    @torch.no_grad()
    def _read(self, file: Path, opened: IO[bytes]) -> None:
        try:
            header = read_header(opened, _FORMAT)
            told = json.loads(header.metadata["average"])
            counts = {name: counted(told["counts"][name]) for name in header.entries}
            kind, started = told["kind"], bool(told["started"])
            verify(opened, header, lambda _, piece: not_finite(piece))
        except DAMAGED as error:
            raise ValueError(f"{file} holds no average: {error}") from None
        if kind != self.kind:
            raise ValueError(f"Cannot load {file}: it is one of kind {kind!r}, not {self.kind!r}")
        places = [i for i, name in enumerate(self._names) if name in header.entries]
        for i in places:  # all of it is looked at before any of it is taken over
            saved, shape = header.entries[self._names[i]].shape, tuple(self._average[i].shape)
            if fit(saved, shape) is None:
                raise ValueError(
                    f"Cannot load {file}: {self._names[i]} is {saved} there and {shape} here"
                )
        for i in places:
            entry = header.entries[self._names[i]]
            saved = shared_part(read_tensor(opened, entry), tuple(self._average[i].shape))
            shared_part(self._average[i], entry.shape).copy_(saved)
            self._counts[i] = counts[self._names[i]]
        self._started = started


def week_of_average(path: Path) -> str | None:
    """What the last task in the file of an average was called; None where nobody said."""
    with suppress(OSError, *DAMAGED), open(path, "rb") as file:
        return json.loads(read_header(file, _FORMAT).metadata["average"])["week"]
    return None


def average_path(path: str | os.PathLike[str]) -> Path:
    """The file of an average: ``path`` itself if it ends in .safetensors, else in that folder."""
    path = Path(path)
    return path if path.suffix == ".safetensors" else path / FILE_NAME


def _wide(weights: Tensor) -> torch.dtype:
    return torch.float32 if weights.dtype in _HALVES else weights.dtype
