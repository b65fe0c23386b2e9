"""Task boundaries for optimizers that are not ours: which state is a moment, and what to do to it.

The paper's Table 1 has rows in which Adam merely keeps v over a boundary and starts m again, and
they do nearly as well as its own method. These can be had with any optimizer whose state is known
by name: the first moment (an average of gradients) and the second (of their squares) are each kept,
or set to what they are in a new optimizer.

Where a bias correction counts steps, moments and count belong together. The count of Adam and its
relatives serves both moments, and v without its count would be divided by 1 - beta2 ** 1, so the
count is kept with v and starts again with it. m then restarts from zero without a correction, as
a momentum does. To keep m and restart the count would multiply m by 1 / (1 - beta1) = 10; that is
refused.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor
from torch.optim import Optimizer

from longtail.optim.wrappers import layers_of

CHOICES = ("reset", "keep")


@runtime_checkable
class Restarts(Protocol):
    """An optimizer that can make the state of some parameters new, in the tensors it has."""

    def restart(self, params: Iterable[Tensor]) -> None: ...


@dataclass(frozen=True)
class Moments:
    """The names in an optimizer's state.

    Attributes:
        first: averages of gradients, zero in a new optimizer.
        second: averages of squares or magnitudes, zero in a new optimizer, or what ``starts`` says.
        counts: of steps, kept and restarted with the second moment; with the first where there is
            no second.
        shared_count: whether the count also corrects the first moment.
        further: state that is no moment and that a boundary leaves alone.
        starts: the value of a name in a new optimizer: a number, or the key of a group.
    """

    first: tuple[str, ...] = ()
    second: tuple[str, ...] = ()
    counts: tuple[str, ...] = ("step",)
    shared_count: bool = False
    further: tuple[str, ...] = ()
    starts: Mapping[str, float | str] | None = None

    @property
    def names(self) -> set[str]:
        return {*self.first, *self.second, *self.counts, *self.further}


_ADAM = Moments(("exp_avg",), ("exp_avg_sq", "max_exp_avg_sq"), shared_count=True)
_NADAM = Moments(
    ("exp_avg", "mu_product"), ("exp_avg_sq",), shared_count=True, starts={"mu_product": 1.0}
)
_ADAMAX = Moments(("exp_avg",), ("exp_inf",), shared_count=True)
_SGD = Moments(("momentum_buffer",), counts=())
_RMSPROP = Moments(("momentum_buffer",), ("square_avg", "grad_avg"))
_ADAGRAD = Moments((), ("sum",), starts={"sum": "initial_accumulator_value"})
_ADADELTA = Moments((), ("square_avg", "acc_delta"))
_ADAFACTOR = Moments((), ("row_var", "col_var", "variance"))
# bitsandbytes: in 8 bits a block of codes is multiplied by its absmax, and zero codes are not zero.
_MAPS = ("qmap1", "qmap2", "unorm_vec")
_BNB_TWO = Moments(("state1", "absmax1"), ("state2", "absmax2"), shared_count=True, further=_MAPS)
_BNB_FIRST = Moments(("state1", "absmax1"), counts=("step",), further=_MAPS)
_BNB_SECOND = Moments((), ("state1", "absmax1"), further=_MAPS)

KNOWN: dict[str, Moments] = {
    "torch.Adam": _ADAM,
    "torch.AdamW": _ADAM,
    "torch.RAdam": _ADAM,
    "torch.SparseAdam": _ADAM,
    "torch.NAdam": _NADAM,
    "torch.Adamax": _ADAMAX,
    "torch.SGD": _SGD,
    "torch.Muon": _SGD,
    "torch.RMSprop": _RMSPROP,
    "torch.Adagrad": _ADAGRAD,
    "torch.Adadelta": _ADADELTA,
    "torch.Adafactor": _ADAFACTOR,
    "bitsandbytes.Adam": _BNB_TWO,
    "bitsandbytes.Adam8bit": _BNB_TWO,
    "bitsandbytes.Adam32bit": _BNB_TWO,
    "bitsandbytes.AdamW": _BNB_TWO,
    "bitsandbytes.AdamW8bit": _BNB_TWO,
    "bitsandbytes.AdamW32bit": _BNB_TWO,
    "bitsandbytes.PagedAdamW": _BNB_TWO,
    "bitsandbytes.PagedAdamW8bit": _BNB_TWO,
    "bitsandbytes.Lion": _BNB_FIRST,
    "bitsandbytes.Lion8bit": _BNB_FIRST,
    "bitsandbytes.SGD": _BNB_FIRST,
    "bitsandbytes.SGD8bit": _BNB_FIRST,
    "bitsandbytes.RMSprop": _BNB_SECOND,
    "bitsandbytes.RMSprop8bit": _BNB_SECOND,
    "bitsandbytes.Adagrad": _BNB_SECOND,
    "bitsandbytes.Adagrad8bit": _BNB_SECOND,
    "torchao._AdamBase": _ADAM,
    "schedulefree.AdamWScheduleFree": Moments(("z",), ("exp_avg_sq",), counts=()),
    "schedulefree.SGDScheduleFree": Moments(("z",), counts=()),
}


@dataclass(frozen=True)
class StateEdit:
    """What a boundary did to the state of an optimizer; printed, it is one line.

    Attributes:
        optimizer: its class.
        parameters: how many had state.
        reset: names of state that were set to what they are in a new optimizer.
        kept: names of state that were left as they were.
    """

    optimizer: str
    parameters: int
    reset: tuple[str, ...]
    kept: tuple[str, ...]

    def __str__(self) -> str:
        def named(names: tuple[str, ...]) -> str:
            return ", ".join(names) or "nothing"

        return (
            f"{self.optimizer}, {self.parameters} parameters: reset {named(self.reset)}; "
            f"kept {named(self.kept)}"
        )


def end_task_of_other(optimizer: Any, first: str, second: str) -> StateEdit:
    """Keep or reset the moments of an optimizer that is not ours.

    Raises:
        TypeError: for an optimizer, or a name in its state, that is not in the table.
        ValueError: for a choice that is none, or that the optimizer's count does not allow.
    """
    for name, choice in (("first", first), ("second", second)):
        if choice not in CHOICES:
            known = " or ".join(map(repr, CHOICES))
            raise ValueError(f"Invalid {name}: {choice!r}, must be {known}")
    inner, key, moments = _known(optimizer, "end_task()")
    if moments.shared_count and first == "keep" and second == "reset":
        raise ValueError(
            f"{type(inner).__name__} counts steps for both moments: with first='keep' and "
            "second='reset' the kept one would be corrected as if it were new"
        )
    count_with = second if moments.second else first
    choices = dict.fromkeys(moments.first, first) | dict.fromkeys(moments.second, second)
    choices |= dict.fromkeys(moments.counts, count_with)
    touched: dict[str, None] = {}
    left: dict[str, None] = {}
    with torch.no_grad():
        if key.startswith("schedulefree.") and inner.state:
            _restart_schedule_free(inner, first, second)
        for group in inner.param_groups:
            for parameter in group["params"]:
                state = inner.state.get(parameter, {})
                for name in list(state):
                    if choices.get(name, "keep") == "keep" or state[name] is None:
                        left[name] = None
                        continue
                    touched[name] = None
                    if name != "z":
                        _set(state, name, _start(moments, name, group))
    return StateEdit(type(inner).__name__, len(inner.state), tuple(touched), tuple(left))


def reset_other(optimizer: Any) -> StateEdit:
    """Make an optimizer that is not ours as it was when new, but for its settings."""
    inner, key, _ = _known(optimizer, "reset()")
    names = tuple(dict.fromkeys(name for state in inner.state.values() for name in state))
    count = len(inner.state)
    if key.startswith("schedulefree.") and inner.state:
        _restart_schedule_free(inner, "reset", "reset")
    inner.state.clear()
    return StateEdit(type(inner).__name__, count, names, ())


def restart(optimizer: Optimizer, parameters: Iterable[Tensor], *, in_place: bool = False) -> None:
    """Make the state of some parameters of an optimizer that is not ours that of a new one.

    Args:
        in_place: keep its tensors, to which somebody points; its names have to be known, or its
            class has a `restart` of its own.
    """
    if not in_place:
        for parameter in parameters:
            optimizer.state.pop(parameter, None)
        return
    if isinstance(optimizer, Restarts):
        with torch.no_grad():
            optimizer.restart(parameters)
        return
    _, _, moments = _known(optimizer, "a captured step")
    group_of = {id(p): group for group in optimizer.param_groups for p in group["params"]}
    with torch.no_grad():
        for parameter in parameters:
            state = optimizer.state.get(parameter, {})
            for name in [n for n in state if n not in moments.further and state[n] is not None]:
                _set(state, name, _start(moments, name, group_of[id(parameter)]))


def moments_of(kind: type) -> tuple[str, Moments] | None:
    """The name of a class of optimizers, or of what it derives from, in the table; its moments.

    A class that is not in the table says them itself: `moments = Moments(...)`.
    """
    for cls in kind.__mro__:
        key = f"{cls.__module__.partition('.')[0]}.{cls.__name__}"
        declared = vars(cls).get("moments")
        if isinstance(declared, Moments):
            return key, declared
        if key in KNOWN:
            return key, KNOWN[key]
    return None


def _known(optimizer: Any, what: str) -> tuple[Optimizer, str, Moments]:
    """The innermost optimizer, its name in the table, and its moments."""
    inner = [layer for layer in layers_of(optimizer) if isinstance(layer, Optimizer)]
    found = moments_of(type(inner[-1])) if inner else None
    if found is not None:
        unknown = {name for s in inner[-1].state.values() for name in s} - found[1].names
        if unknown:
            raise TypeError(
                f"{what} does not know the state {', '.join(sorted(unknown))} of "
                f"{type(inner[-1]).__name__}"
            )
        return inner[-1], *found
    kind = type(inner[-1] if inner else optimizer)
    raise TypeError(
        f"{what} does not know the state of {kind.__module__}.{kind.__qualname__}; it knows "
        "Continual Adam and " + ", ".join(name.replace("._AdamBase", "'s Adam") for name in KNOWN)
    )


def _start(moments: Moments, name: str, group: dict[str, Any]) -> float:
    start = (moments.starts or {}).get(name, 0.0)
    return float(group[start]) if isinstance(start, str) else start


def _set(state: dict[str, Any], name: str, value: float) -> None:
    """In place where it is a tensor, so that whoever points at it goes on doing so."""
    found = state[name]
    if not isinstance(found, Tensor):
        state[name] = type(found)(value)
    elif type(found) is Tensor:
        found.fill_(value)
    else:  # quantized tensors of torchao know copy_ and not fill_
        found.copy_(torch.full(found.shape, value, device=found.device))


def _restart_schedule_free(optimizer: Any, first: str, second: str) -> None:
    """Its momentum is the average x of the iterates z: it starts again from where x is."""
    training = all(group.get("train_mode", True) for group in optimizer.param_groups)
    optimizer.eval()  # the parameters are x
    for group in optimizer.param_groups:
        if first == "reset":
            for parameter in group["params"]:
                if "z" in optimizer.state.get(parameter, {}):
                    optimizer.state[parameter]["z"].copy_(parameter)
            group["weight_sum"], group["lr_max"] = 0.0, -1.0
        if second == "reset":
            group["k"] = 0
    if training:
        optimizer.train()
