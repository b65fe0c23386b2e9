"""How the fused groups of an optimizer are stepped: which kernel takes which parameters.

A `Plan` is made of what an optimizer holds and is used again as long as it `holds`: until a tensor
is elsewhere in memory or lies there in another way, or a setting that it is made of has changed. It
has a `Part` for each kind of parameters that one launch of a kernel can take. Those that no kernel
can take (a DTensor, a complex one, one with gaps in memory) are its rest, for the for-loop.

With small models Python is the slowest part of a step. So what is compared from step to step are
whole lists, made by functions in C.
"""

from collections.abc import Callable, Hashable, Sequence
from itertools import chain
from operator import attrgetter, is_, itemgetter
from types import NoneType
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor
from torch.autograd.graph import increment_version

from longtail.optim import loops
from longtail.optim._torch import alike, dict_version
from longtail.optim.cpu.launch import CpuLaunch
from longtail.optim.past import Draw, draw_of
from longtail.optim.state import (
    Row,
    Settings,
    Tensors,
    complete,
    count_task,
    fold_group,
    is_plain,
    state_dtype,
)

Group = dict[str, Any]

# The settings that decide who steps a group, and from which tables.
_settings = itemgetter(
    *("fused", "foreach", "differentiable"),
    *("first_moment", "second_moment", "past_dtype", "past_seed", "past_copies"),
)
_grad = attrgetter("grad")


class Member(NamedTuple):
    """A parameter of a launch: its tensors, the number of its group, its random bits."""

    row: Row
    group: int
    draw: Draw


class Launch(Protocol):
    """The launches of a kernel over parameters of one kind.

    It knows the addresses of their tensors and keeps none of them alive.
    """

    def __init__(
        self,
        kind: Any,
        members: Sequence[Member],
        groups: Sequence[Group],
        captured: list[Tensor],
    ) -> None:
        """``captured`` is the optimizer's list of what captured CUDA graphs read."""
        ...

    @staticmethod
    def kind_of(row: Row) -> Hashable | None:
        """What parameters have in common that one launch can take; None if none can take it."""
        ...

    def step(
        self,
        gradients: Sequence[Tensor | None],
        groups: Sequence[Group],
        decoupled: bool,
        grad_scale: Tensor | None,
        found_inf: Tensor | None,
    ) -> None:
        """Step the members that have a gradient; all gradients have one dtype."""
        ...

    def end_task(self, groups: Sequence[Group]) -> Sequence[Tensor | bool]:
        """End the members' task; of each group whether one of them had taken a step."""
        ...


def uses_fused(group: Group) -> bool:
    """Whether the group asks for ``fused``, or leaves it open and a GPU's kernel can step it."""
    if group["fused"] is not None or group["foreach"] is not None or group["differentiable"]:
        return bool(group["fused"])
    params = group["params"]
    if not params or not params[0].is_cuda or torch.compiler.is_compiling():
        return False
    from longtail.optim.cuda.launch import DTYPES, triton_works

    device = params[0].device
    for p in params:
        if not (is_plain(p) and p.dtype in DTYPES and p.device == device):
            return False
    return triton_works()


def launch_for(row: Row) -> tuple[type[Launch], Hashable] | None:
    """The launch that can take a parameter and the kind that it is of; None if there is none."""
    if row.exp_avg.is_cpu:
        launch: type[Launch] = CpuLaunch
    elif row.exp_avg.is_cuda:
        from longtail.optim.cuda.launch import CudaLaunch

        launch = CudaLaunch
    else:
        return None
    kind = launch.kind_of(row)
    return None if kind is None else (launch, kind)


class Plan:
    """The launches of all fused groups of an optimizer."""

    def __init__(self, optimizer: Any, numbers: Sequence[int]) -> None:
        """``numbers`` are those of the groups that are fused."""
        self._numbers = numbers
        self.others = [i for i in range(len(optimizer.param_groups)) if i not in numbers]
        groups = self._groups(optimizer)
        members: dict[tuple[type[Launch], Hashable], list[Member]] = {}
        self._rest: list[list[Tensor]] = [[] for _ in groups]
        self._waiting: list[Tensor] = []  # for their first gradient
        for number, group in enumerate(groups):
            complete(optimizer.state, group)
            for place, param in enumerate(group["params"]):
                state = optimizer.state.get(param)
                if not state:
                    self._waiting.append(param)
                    continue
                row = Row.of(param, state, group)
                launch = launch_for(row)
                if launch is None:
                    self._rest[number].append(param)
                else:
                    member = Member(row, number, draw_of(group, place))
                    members.setdefault(launch, []).append(member)
        self._has_rest = any(self._rest)
        captured = optimizer.__dict__.setdefault("_captured", [])
        self._parts = [
            _Part([x.row.param for x in alike], launch(kind, alike, groups, captured))
            for (launch, kind), alike in members.items()
        ]
        self._seen = _look(optimizer, groups)
        self._plain = [p for group in groups for p in group["params"] if is_plain(p)]
        self._alike = alike(self._plain)

    def holds(self, optimizer: Any) -> bool:
        """Whether it was made of what the optimizer holds now."""
        if self._numbers[-1] >= len(optimizer.param_groups):  # somebody has removed groups
            return False
        if self._waiting and any(p.grad is not None for p in self._waiting):
            return False
        # Of a parameter that is the same object, `p.data = p.data.t()` may change the layout.
        seen = _look(optimizer, self._groups(optimizer))
        return self._seen == seen and self._alike(*self._plain)

    def step(self, optimizer: Any) -> None:
        """One step of the fused groups; nothing but their settings may differ from `holds`."""
        groups = self._groups(optimizer)
        decoupled = optimizer._decoupled_weight_decay
        scale = getattr(optimizer, "grad_scale", None)
        found_inf = getattr(optimizer, "found_inf", None)
        # All gradients are looked at before the first weight moves: one may have to be refused.
        gradients = [part.gradients(optimizer) for part in self._parts]
        for part, grads in zip(self._parts, gradients, strict=True):
            part.launch.step(grads, groups, decoupled, scale, found_inf)
            # Autograd must notice that parameters it may have saved are no longer the same.
            stepped = part.params
            if NoneType in map(type, grads):
                stepped = [p for p, g in zip(stepped, grads, strict=True) if g is not None]
            increment_version(stepped)
        if self._has_rest and (found_inf is None or not bool(found_inf)):
            self._step_rest(optimizer, groups, scale)

    def end_task(self, optimizer: Any) -> None:
        """The boundary of the fused groups."""
        groups = self._groups(optimizer)
        took = [part.launch.end_task(groups) for part in self._parts]
        for number, group in enumerate(groups):
            of_group = [part[number] for part in took]
            if self._rest[number]:
                settings = Settings.of(group, optimizer._decoupled_weight_decay)
                rest = {p: optimizer.state[p] for p in self._rest[number]}
                of_group += fold_group(rest, group, settings)
            count_task(group, of_group)

    def _groups(self, optimizer: Any) -> list[Group]:
        groups = optimizer.param_groups
        return [groups[i] for i in self._numbers] if self.others else groups

    def _step_rest(self, optimizer: Any, groups: list[Group], grad_scale: Tensor | None) -> None:
        for group, params in zip(groups, self._rest, strict=True):
            tensors = Tensors.none()
            optimizer._init_group({**group, "params": params}, *tensors)
            settings = Settings.of(group, optimizer._decoupled_weight_decay)
            if grad_scale is not None:
                # In the state's dtype: 65536, where GradScaler starts, is infinite in float16.
                for i, (p, grad) in enumerate(zip(tensors.params, tensors.grads, strict=True)):
                    tensors.grads[i] = grad.to(state_dtype(p)) / grad_scale.to(grad.device)
            if not tensors.steps or tensors.steps[0].is_cpu:
                loops.step(tensors, settings, foreach=False)
                continue
            # Nothing waits for the device, and float64 loses no digits to counts in float32.
            exact = tensors._replace(
                steps=[x.double() for x in tensors.steps],
                past_steps=[x.double() for x in tensors.past_steps],
            )
            loops.step(exact, settings._replace(capturable=True), foreach=False)
            for count, stepped in zip(tensors.steps, exact.steps, strict=True):
                count.copy_(stepped)


class _Part:
    """Parameters of one kind and their launch."""

    def __init__(self, params: list[Any], launch: Launch) -> None:
        self.params, self.launch = params, launch
        # Whether gradients are like the last ones that the kernel took as they were.
        self._alike: Callable[..., bool] = lambda *_: False

    def gradients(self, optimizer: Any) -> list[Any]:
        """As the kernel can take them, copied where they have to be."""
        grads: list[Any] = list(map(_grad, self.params))
        if self._alike(*grads):
            return grads
        present = [g for g in grads if g is not None]
        if any(g.is_sparse for g in present):
            raise RuntimeError(f"{type(optimizer).__name__} does not support sparse gradients")
        dtype = self.params[0].dtype
        if any(g.dtype is not dtype for g in present):  # none of their digits is to be lost
            dtype = state_dtype(self.params[0])
        usable = [_like(g, p, dtype) for g, p in zip(grads, self.params, strict=True)]
        if len(present) == len(grads) and all(map(is_, usable, grads)):
            self._alike = alike(grads)
        return usable


def _like(grad: Tensor | None, param: Tensor, dtype: torch.dtype) -> Tensor | None:
    """The gradient in a dtype and in the parameter's memory layout."""
    if grad is None:
        return None
    laid_out = grad.shape == param.shape and grad.stride() == param.stride()
    usable = type(grad) is Tensor and grad.dtype is dtype and grad.device == param.device
    if usable and laid_out and not grad.is_neg():
        return grad
    return torch.empty_like(param, dtype=dtype, requires_grad=False).copy_(grad)


def _look(optimizer: Any, groups: Sequence[Group]) -> tuple[Any, ...]:
    """What the tables of a plan are made of, but for the layout of parameters.

    The layout of a state tensor is taken to be what it was while it is that tensor, at its address.
    """
    params = [p for group in groups for p in group["params"]]
    states = optimizer.state.values()
    tensors = [*params, *chain.from_iterable(map(dict.values, states))]
    try:
        addresses = list(map(Tensor.data_ptr, tensors))
    except (TypeError, RuntimeError):  # something in the state is a number or a DTensor
        addresses = [x.data_ptr() for x in tensors if is_plain(x)]
    return (
        addresses,
        list(map(dict_version, states)),
        [*map(id, params), *map(id, optimizer.state)],
        [(len(group["params"]), *_settings(group)) for group in optimizer.param_groups],
    )
