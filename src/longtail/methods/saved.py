"""What a snapshot holds of a method: whatever its instance does, in tensors and plain values.

A method is saved by its attributes, so that one of your own resumes as it was without a line of
code, and so is what an optimizer keeps beside its `state`. Left out are what their classes name in
`unsaved`, what belongs to the model, which has a place of its own in a snapshot, and functions,
classes and devices, which the constructor gives them again. What is neither saved nor left out is
refused.
"""

from __future__ import annotations

import random
from collections import OrderedDict
from collections.abc import Collection, Iterator
from types import BuiltinFunctionType, FunctionType
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor, nn

from longtail.methods.buffers import Storage

_PLAIN = (str, int, float, bool, type(None))
# The constructor has them from the code or from its arguments; they do not change on the way.
_GIVEN = (FunctionType, BuiltinFunctionType, type, torch.device, torch.dtype)
# Marks a tuple that stands for what a snapshot has no word for.
_ELSEWHERE, _ARRAY, _SCALAR = "a tensor elsewhere", "an array", "a scalar"
_TORCH, _PYTHON, _NUMPY = "torch.Generator", "random.Random", "numpy.random.Generator"
_MARK = "longtail:"


class _Refused(Exception):  # noqa: N818 (not an error: the attribute's name is still to be told)
    """What cannot be saved, in words."""


def saved(owner: object, its_model: nn.Module, elsewhere: Collection[str] = ()) -> dict[str, Any]:
    """The attributes of a method or an optimizer, as a snapshot can hold them.

    Args:
        owner: whose they are.
        its_model: what it trains.
        elsewhere: attributes that are saved elsewhere, or not to be.

    Raises:
        ValueError: one of them cannot be saved.
    """
    model, left_out = _Model(its_model), {*elsewhere, *_unsaved(type(owner))}
    state: dict[str, Any] = {}
    for name, value in vars(owner).items():
        if name in left_out or isinstance(value, _GIVEN) or model.has(value):
            continue
        try:
            state[name] = _plain(value, model)
        except _Refused as refused:
            kind = type(owner).__name__
            raise ValueError(
                f"{kind}.{name} {refused}, which a snapshot cannot hold: give {kind} a "
                f"state_dict() and a load_state_dict(state), or, where its constructor or every "
                f"step makes it anew, unsaved = ({name!r},)"
            ) from None
    return state


def restore(owner: object, its_model: nn.Module, state: dict[str, Any]) -> None:
    """Put back what `saved` gave; tensors in place, as a captured step goes on pointing at them."""
    model = _Model(its_model)
    for name, value in state.items():
        own = getattr(owner, name, None)
        try:
            setattr(owner, name, _back(value, own, model))
        except _Refused as refused:
            raise ValueError(f"{type(owner).__name__}.{name} {refused}") from None


def saved_beside(its_model: nn.Module) -> dict[str, Any]:
    """The numbers and tensors that modules keep as plain attributes, which no `state_dict` has.

    By module and name; other attributes are what the constructor made them.
    """
    model, of_torch = _Model(its_model), vars(nn.Module())
    state: dict[str, Any] = {}
    for place, module in its_model.named_modules():
        for name, value in vars(module).items():
            if name in of_torch or model.has(value):
                continue
            if type(value) in (int, float, bool):
                state[f"{place}.{name}"] = value
            elif isinstance(value, Tensor):
                state[f"{place}.{name}"] = value.detach()
    return state


def restore_beside(its_model: nn.Module, state: dict[str, Any]) -> None:
    """Put back what `saved_beside` gave."""
    device = _Model(its_model).device
    for path, value in state.items():
        place, _, name = path.rpartition(".")
        module, back = its_model.get_submodule(place), value
        if isinstance(value, Tensor):
            back = _tensor(value, getattr(module, name, None), device, learned=False)
        setattr(module, name, back)


def _unsaved(kind: type) -> set[str]:
    """What the class and those it is made of leave out."""
    names: set[str] = set()
    for cls in kind.__mro__:
        names.update(vars(cls).get("unsaved", ()))
    return names


class _Model:
    """The model, and which tensors are its own."""

    def __init__(self, model: nn.Module) -> None:
        self.modules = {id(module) for module in model.modules()}
        tensors = [*model.parameters(), *model.buffers()]
        self.ids = {id(tensor) for tensor in tensors}
        self.storages = {tensor.untyped_storage().data_ptr() for tensor in tensors} - {0}
        self.device = tensors[0].device if tensors else torch.device("cpu")
        # Values by their id() and what was made of them: two names of one list stay two names of
        # one list. That a value is kept here keeps its id from being given to another one.
        self.made: dict[int, tuple[Any, Any]] = {}

    def has(self, value: Any) -> bool:
        """Whether a value is the model, a part of it, or nothing but tensors of it.

        A module without a tensor, such as a loss, is taken for a function.
        """
        if isinstance(value, nn.Module):
            return id(value) in self.modules or not [*value.parameters(), *value.buffers()]
        leaves = list(_leaves(value))
        tensors = [leaf for leaf in leaves if isinstance(leaf, Tensor)]
        own = [t for t in tensors if t.untyped_storage().data_ptr() in self.storages]
        return bool(leaves) and len(own) == len(leaves)


def _leaves(value: Any) -> Iterator[Any]:
    if isinstance(value, list | tuple | dict):
        for part in value.values() if isinstance(value, dict) else value:
            yield from _leaves(part)
    else:
        yield value


def _plain(value: Any, model: _Model) -> Any:
    """A value in tensors, plain values, lists, tuples and dicts of them."""
    if type(value) in _PLAIN:
        return value
    if id(value) not in model.made:
        model.made[id(value)] = value, _made_plain(value, model)
    return model.made[id(value)][1]


def _made_plain(value: Any, model: _Model) -> Any:
    kind = type(value)
    if kind is list or kind is tuple:
        return kind(_plain(item, model) for item in value)
    if kind is dict or kind is OrderedDict:
        for key in value:
            if type(key) not in _PLAIN:
                raise _Refused(f"has a {type(key).__name__} as a key")
            if key in model.ids:
                raise _Refused("has the id() of a parameter as a key, another one in a new process")
        return kind((key, _plain(item, model)) for key, item in value.items())
    if isinstance(value, Tensor):
        tensor = value.detach()
        usual = tensor.device == model.device and not value.requires_grad
        return tensor if usual else _marked(_ELSEWHERE, tensor, tensor.device.type, _learned(value))
    if isinstance(value, Storage):
        return value.state_dict()
    if isinstance(value, np.ndarray | np.generic):
        return _of_numpy(value)
    return _of_generator(value, model)


def _learned(value: Tensor) -> bool:
    """Whether its gradient is wanted; that of a result belongs to a step that is over."""
    return value.is_leaf and value.requires_grad


def _marked(kind: str, *content: Any) -> tuple[Any, ...]:
    return _MARK + kind, *content


def _of_numpy(value: np.ndarray | np.generic) -> tuple[Any, ...]:
    try:
        tensor = torch.from_numpy(np.array(value))  # a copy, and of a number an array
    except TypeError:
        raise _Refused(f"is a {type(value).__name__} of {value.dtype}") from None
    return _marked(_ARRAY if isinstance(value, np.ndarray) else _SCALAR, tensor)


def _of_generator(value: Any, model: _Model) -> tuple[Any, ...]:
    if isinstance(value, torch.Generator):
        return _marked(_TORCH, value.get_state(), value.device.type)
    if type(value) is random.Random:
        return _marked(_PYTHON, value.getstate())
    if isinstance(value, np.random.Generator):
        return _marked(_NUMPY, _plain(value.bit_generator.state, model))
    raise _Refused(f"is or holds a {type(value).__name__}")


def _back(value: Any, own: Any, model: _Model) -> Any:
    """The value that `_plain` gave this; `own` is what its owner has there now."""
    if type(value) in _PLAIN:
        return value
    if id(value) not in model.made:
        model.made[id(value)] = value, _made_again(value, own, model)
    return model.made[id(value)][1]


def _made_again(value: Any, own: Any, model: _Model) -> Any:
    if isinstance(value, Tensor):
        return _tensor(value, own, model.device, learned=False)
    if isinstance(own, Storage):
        own.load_state_dict(value, model.device)  # a snapshot comes back on the CPU
        return own
    if isinstance(value, dict):
        if value.keys() >= {"capacity", "draws", "fields"}:
            raise _Refused("is a buffer in the snapshot: make it in the constructor")
        there = own if isinstance(own, dict) else {}
        kind = type(value)
        return kind((key, _back(item, there.get(key), model)) for key, item in value.items())
    if isinstance(value, tuple) and value and str(value[0]).startswith(_MARK):
        return _unmarked(value[0].removeprefix(_MARK), value[1:], own, model)
    same = isinstance(own, list | tuple) and len(own) == len(value)
    there = cast(Any, own) if same else [None] * len(value)
    return type(value)(_back(item, o, model) for item, o in zip(value, there, strict=True))


def _tensor(value: Tensor, own: Any, device: torch.device, *, learned: bool) -> Tensor:
    same = isinstance(own, Tensor) and (own.shape, own.dtype) == (value.shape, value.dtype)
    if same and 0 not in own.stride():  # that of an expanded tensor: it cannot be written to
        with torch.no_grad():
            return own.copy_(value)
    return value.to(device, copy=True).requires_grad_(learned)


def _unmarked(kind: str, content: tuple[Any, ...], own: Any, model: _Model) -> Any:
    if kind == _ELSEWHERE:
        tensor, where, learned = content
        device = model.device if where == model.device.type else torch.device(where)
        return _tensor(tensor, own, device, learned=learned)
    if kind in (_ARRAY, _SCALAR):
        array = content[0].numpy().copy()
        return array if kind == _ARRAY else array[()]
    return _generator(kind, content, own, model)


def _generator(kind: str, content: tuple[Any, ...], own: Any, model: _Model) -> Any:
    if kind == _TORCH:
        generator = own if isinstance(own, torch.Generator) else torch.Generator(content[1])
        generator.set_state(content[0].cpu())
        return generator
    if kind == _PYTHON:
        generator = own if isinstance(own, random.Random) else random.Random()
        generator.setstate(content[0])
        return generator
    state = _back(content[0], None, model)
    if not isinstance(own, np.random.Generator):
        own = np.random.Generator(getattr(np.random, state["bit_generator"])())
    own.bit_generator.state = state
    return own
