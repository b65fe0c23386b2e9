"""Which optimizer a run has: a name or `module:Class`, its settings, and what it allows.

`adamw` and `adam` are Continual AdamW and Adam, the classes of `torch.optim` go by their names in
small letters, and any other class is found where it lies: `schedulefree:AdamWScheduleFree`,
`my_package.my_module:MyOptimizer`. Its settings are the arguments of its constructor; `lr` and
`weight_decay` are those of training, which every optimizer shares.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Mapping
from dataclasses import MISSING, dataclass
from typing import Any, Protocol, get_type_hints, runtime_checkable

import torch
from torch.optim import Optimizer

from longtail.optim import ContinualAdam, ContinualAdamW
from longtail.optim.other_optimizers import Moments, moments_of
from longtail.support import doors
from longtail.support.modules import import_object
from longtail.support.random import Seed

# Of training, or nonsense in a run.
_SHARED = {"params", "lr", "weight_decay", "capturable", "maximize", "differentiable"}
# Settings of training that only Continual Adam and its subclasses have.
ADAM_SETTINGS = ("betas", "eps", "fused")
# Of the run, for a class that takes `lead`: the replicas of a stack and their seeds.
_OF_REPLICAS = {"lead", "seed"}
_POLICY = ("beta3", "first_moment", "second_moment", "past_dtype")
_ADAM_ARGUMENTS = {*ADAM_SETTINGS, *_POLICY, "foreach"}
# Whose steps move every number by its own gradients alone, so that replicas do not meet.
_ELEMENTWISE = {
    *(getattr(torch.optim, name) for name in ("SGD", "ASGD", "Adagrad", "Adadelta", "RMSprop")),
    *(getattr(torch.optim, name) for name in ("Rprop", "Adam", "AdamW", "Adamax", "NAdam")),
    torch.optim.RAdam,
}
_ELEMENTWISE_ELSEWHERE = {
    "schedulefree.AdamWScheduleFree",
    "schedulefree.SGDScheduleFree",
    "schedulefree.RAdamScheduleFree",
}
GROUP = "longtail.optimizers"
_LEFT_OUT = {"Optimizer", "LBFGS", "SparseAdam", "Adam", "AdamW", "Muon"}


@runtime_checkable
class EndsTasks(Protocol):
    """An optimizer that knows what to do at a task boundary."""

    def end_task(self) -> Any: ...


@runtime_checkable
class HasModes(Protocol):
    """An optimizer that trains other weights than those to evaluate, as schedule_free does."""

    def train(self) -> Any: ...

    def eval(self) -> Any: ...


@dataclass(frozen=True)
class Setting:
    """An argument of an optimizer's constructor; `default` is MISSING where there is none."""

    name: str
    type: Any
    default: Any


def core() -> dict[str, type[Optimizer]]:
    """The optimizers of longtail and of torch that go by a short name."""
    by_name: dict[str, type[Optimizer]] = {"adamw": ContinualAdamW, "adam": ContinualAdam}
    for name in sorted(set(dir(torch.optim)) - _LEFT_OUT):
        kind = getattr(torch.optim, name)
        if isinstance(kind, type) and issubclass(kind, Optimizer):
            by_name[name.lower()] = kind
    return by_name


def names() -> dict[str, str]:
    """All short names, with where each optimizer comes from; those of packages stay unimported."""
    places = {name: entry.value for name, entry in doors.offered(GROUP).items()}
    for name, kind in core().items():
        package = kind.__module__.partition(".")[0]
        places[name] = f"{package}'s {kind.__name__}"
    return places


@dataclass(frozen=True)
class OptimizerClass:
    """A class of optimizers, by the name it was asked for."""

    name: str
    kind: type[Optimizer]

    @functools.cached_property
    def ours(self) -> bool:
        """Continual Adam or a subclass of it, whose groups know about boundaries."""
        return issubclass(self.kind, ContinualAdam)

    @functools.cached_property
    def has_modes(self) -> bool:
        return issubclass(self.kind, HasModes)

    @functools.cached_property
    def moments(self) -> Moments | None:
        """The names in its state, where they are known and it has no `end_task` of its own."""
        if issubclass(self.kind, EndsTasks):
            return None
        found = moments_of(self.kind)
        return found and found[1]

    @property
    def elementwise(self) -> bool:
        """Whether runs can be stacked: a class of yours says `elementwise = True`."""
        if "elementwise" in vars(self.kind):
            return bool(vars(self.kind)["elementwise"])
        top = self.kind.__module__.partition(".")[0]
        known = f"{top}.{self.kind.__name__}" in _ELEMENTWISE_ELSEWHERE
        return self.kind in (ContinualAdam, ContinualAdamW, *_ELEMENTWISE) or known

    def settings(self) -> list[Setting]:
        """What its constructor takes beyond what all optimizers share."""
        taken = _SHARED | (_ADAM_ARGUMENTS if self.ours else set())
        taken = taken | (_OF_REPLICAS if self.accepts("lead") else set())
        return [s for s in _arguments(self.kind).values() if s.name not in taken]

    def accepts(self, name: str) -> bool:
        """Whether its constructor takes an argument of this name."""
        return name in _arguments(self.kind)

    def of_replicas(self, lead: tuple[int, ...], seed: Seed) -> dict[str, Any]:
        """What it is told of a stack, where it wants to know which numbers are one replica's."""
        if not self.accepts("lead"):
            return {}
        return {"lead": lead} | ({"seed": seed} if self.accepts("seed") else {})

    def capture_options(self, settings: Mapping[str, Any]) -> dict[str, Any] | None:
        """What makes its step fit for a CUDA graph; None where nothing does."""
        if self.accepts("capturable"):
            return {"capturable": True}
        if self.kind is torch.optim.SGD and not settings.get("foreach"):
            return {"fused": True}  # the one form of it that reads the rate on the device
        return None


def find_optimizer(name: str) -> OptimizerClass:
    """The optimizer of this name, or at this `module:Class`.

    Raises:
        ValueError: there is none, it is no optimizer, or its steps need a closure.
    """
    return _find(name if ":" in name else name.lower())


@functools.lru_cache(maxsize=256)
def _find(name: str) -> OptimizerClass:
    if ":" in name:
        try:
            kind = import_object(name)
        except ImportError as error:
            raise ValueError(f"optimizer {name!r} cannot be imported: {error}") from None
    else:
        kind = core().get(name)
        if kind is None and name in doors.offered(GROUP):
            kind = doors.load(GROUP, name)
        if kind is None:
            listed = ", ".join(sorted(names()))
            raise ValueError(f"unknown optimizer {name!r}; known: {listed}, or module:Class")
    if not (isinstance(kind, type) and issubclass(kind, Optimizer)):
        raise ValueError(f"optimizer {name!r} is not a subclass of torch.optim.Optimizer")
    closure = inspect.signature(kind.step).parameters.get("closure")
    if closure is not None and closure.default is inspect.Parameter.empty:
        raise ValueError(f"optimizer {name!r} needs a closure at every step, which a run has not")
    if "lr" not in _arguments(kind):
        raise ValueError(f"optimizer {name!r} takes no lr, which every run sets")
    return OptimizerClass(name, kind)


@functools.lru_cache(maxsize=256)
def _arguments(kind: type) -> dict[str, Setting]:
    """The arguments of a constructor by name, those that `**kwargs` passes on included."""
    found: dict[str, Setting] = {}
    for cls in kind.__mro__:
        init = vars(cls).get("__init__")
        if init is None:
            continue
        parameters = inspect.signature(init).parameters
        hints = _hints(init)
        for name, parameter in list(parameters.items())[1:]:
            named = parameter.kind in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY)
            if named and name not in found:
                found[name] = Setting(name, *typed(parameter, hints))
        if all(p.kind is not p.VAR_KEYWORD for p in parameters.values()):
            break
    return found


def _hints(function: Any) -> dict[str, Any]:
    try:
        return get_type_hints(function)
    except (NameError, TypeError):  # names that only a type checker sees
        return {}


def typed(parameter: inspect.Parameter, hints: Mapping[str, Any]) -> tuple[Any, Any]:
    """Type and default of a parameter as those of a setting; a type is guessed from its default."""
    missing = parameter.default is parameter.empty
    default = MISSING if missing else parameter.default
    if parameter.name in hints:
        return hints[parameter.name], default
    if isinstance(default, (bool, str)):
        return type(default), default
    if isinstance(default, (int, float)):
        return int | float, default
    if isinstance(default, (tuple, list)):
        return tuple[Any, ...], tuple(default)
    return Any | None, default


def function_settings(path: str) -> list[Setting]:
    """The keyword-only arguments of a function `boundary(optimizer, model, task, *, ...)`."""
    function = find_function(path)
    hints = _hints(function)
    parameters = inspect.signature(function).parameters.values()
    return [Setting(p.name, *typed(p, hints)) for p in parameters if p.kind is p.KEYWORD_ONLY]


@functools.lru_cache(maxsize=256)
def find_function(path: str) -> Any:
    """The function at `module:function` that is called at every task boundary."""
    try:
        found = import_object(path)
    except ImportError as error:
        raise ValueError(f"policy {path!r} cannot be imported: {error}") from None
    if not callable(found) or isinstance(found, type):
        raise ValueError(f"policy {path!r} is not a function")
    signature = inspect.signature(found)
    settings = {p.name: None for p in signature.parameters.values() if p.kind is p.KEYWORD_ONLY}
    try:
        signature.bind(None, None, 0, **settings)
    except TypeError:
        raise ValueError(
            f"policy {path!r} must be a function of (optimizer, model, task), with "
            "settings as keyword-only arguments"
        ) from None
    return found
