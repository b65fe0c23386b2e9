"""What the last step found of parameter groups, so that the next need not look for it.

What is remembered are addresses, never the state's tensors: memory that a user frees, or moves to
the CPU between phases of training, is free.
"""

from collections.abc import Callable, Sequence
from operator import attrgetter, is_
from typing import Any

import torch
from torch import Tensor

from longtail.optim.cuda.launch import current_stream
from longtail.optim.cuda.plan import (
    DTYPES,
    Kind,
    Plan,
    fits,
    same_layout,
    step_floats,
    step_policy,
)
from longtail.optim.past import past_dtype_of
from longtail.optim.state import Row, check_shapes, is_plain

Group = dict[str, Any]
MakePlan = Callable[[Sequence[Row | None], Sequence[Kind | None]], Plan]

_grad = attrgetter("grad")
_dtype = attrgetter("dtype")
_address = Tensor.data_ptr
_strides = Tensor.stride
_size = Tensor.size
_is_contiguous = Tensor.is_contiguous


def _version_by_content(entries: dict[Any, Any]) -> tuple[int, ...]:
    return tuple(x.data_ptr() if isinstance(x, Tensor) else id(x) for x in entries.values())


# A number that changes with every assignment to an entry of the dictionary, in C.
_version: Callable[[dict[Any, Any]], Any] = getattr(
    getattr(getattr(torch._C, "_dynamo", None), "guards", None),
    "dict_version",
    _version_by_content,
)


class Warm:
    """Groups as the last step found them, and the plan made for them."""

    def __init__(
        self, optimizer: Any, groups: list[Group], dicts: list[dict[str, Any]], plan: Plan
    ) -> None:
        self.plan = plan
        self.params: list[Tensor] = list(_params(groups))
        self.addresses = tuple(map(_address, self.params))
        self.layouts = _layouts(self.params)
        # The usual case: every parameter has a state, elements, and those in order.
        self.regular = (
            None not in plan.kinds and all(self.addresses) and all(map(_is_contiguous, self.params))
        )
        grad_dtypes = {kind.grad for kind in plan.kinds if kind is not None}
        self.grad_dtype = grad_dtypes.pop() if len(grad_dtypes) == 1 else None
        self.state = optimizer.state
        self.dicts = dicts
        self.versions = (_version(self.state), *map(_version, dicts))
        self.moments = self._moments()
        self.shape = _shape(groups)
        self._settings: tuple[Any, ...] = ()
        self._betas: Any = None
        self._scalars: tuple[tuple[float, ...], tuple[Any, ...]] = ((), ())

    @classmethod
    def of(cls, optimizer: Any, groups: list[Group], make: MakePlan) -> "Warm | None":
        """What the groups hold now; None if a kernel cannot take all of it as it is."""
        for group in groups:
            for p in group["params"]:
                check_shapes(p, optimizer.state.get(p, {}))
        members: list[Row | None] = []
        kinds: list[Kind | None] = []
        dicts: list[dict[str, Any]] = []
        params = [(p, group) for group in groups for p in group["params"]]
        device = params[0][0].device
        for p, group in params:
            state = optimizer.state.get(p)
            if not state:
                members.append(None)
                kinds.append(None)
                continue
            member = _member(p, state, group)
            if member is None or any(x is not None and x.device != device for x in member):
                return None
            members.append(member)
            kinds.append(Kind.of(member, p.dtype if p.grad is None else p.grad.dtype))
            dicts.append(state)
        if not dicts or any(kind is not None and kind.grad not in DTYPES for kind in kinds):
            return None
        return cls(optimizer, groups, dicts, make(members, kinds))

    def holds(self, optimizer: Any, groups: list[Group]) -> bool:
        """Whether parameters and state are still those tensors, at those addresses.

        Any assignment to an entry of a parameter's state is noticed, and any to a parameter's
        ``.data``; of those to ``.data`` of state tensors, the ones that move the first or the last.
        """
        params = _params(groups)
        return (
            len(params) == len(self.params)
            and all(map(is_, params, self.params))
            and optimizer.state is self.state
            and (_version(self.state), *map(_version, self.dicts)) == self.versions
            and tuple(map(_address, params)) == self.addresses
            and _layouts(params) == self.layouts
            and self._moments() == self.moments
            and _shape(groups) == self.shape
            and current_stream(self.plan.device) == self.plan.stream
        )

    def _moments(self) -> tuple[int, int]:
        return _address(self.dicts[0]["exp_avg"]), _address(self.dicts[-1]["exp_avg"])

    def scalars(self, group: Group, decoupled: bool) -> tuple[tuple[float, ...], tuple[Any, ...]]:
        """The kernel's scalars and flags, made anew only when a setting has changed."""
        lr, betas = group["lr"], group["betas"]
        settings = (
            group["eps"],
            group["weight_decay"],
            group["beta3"],
            group["first_moment"],
            group["second_moment"],
            group["maximize"],
        )
        if type(lr) is float and betas is self._betas and (lr, *settings) == self._settings:
            return self._scalars
        eps, decay, beta3, first, second, maximize = settings
        self._scalars = (
            step_floats(lr, decay, eps, betas, beta3),
            step_policy(first, second, decay, decoupled, maximize),
        )
        if type(lr) is float and not any(isinstance(beta, Tensor) for beta in betas):
            self._settings, self._betas = (lr, *settings), betas
        return self._scalars

    def gradients(self) -> tuple[int, ...] | None:
        """Their addresses, 0 where there is none; None if the plan does not fit them."""
        grads: list[Any] = list(map(_grad, self.params))
        try:
            if self.regular and all(map(_is_contiguous, grads)):
                addresses = tuple(map(_address, grads))
            else:
                addresses = self._addresses(grads)
        except TypeError:  # some are None
            addresses = self._addresses(grads)
        # What kind of tensors they are is looked at for new addresses only: it does not change.
        if addresses is None or addresses == self.plan.gradients or self._right_kinds(grads):
            return addresses
        return None

    def _addresses(self, grads: list[Any]) -> tuple[int, ...] | None:
        for param, grad, kind in zip(self.params, grads, self.plan.kinds, strict=True):
            if grad is not None and (
                kind is None or grad.layout is not torch.strided or not same_layout(param, grad)
            ):
                return None
        return tuple(0 if g is None else _address(g) or 1 for g in grads)

    def _right_kinds(self, grads: list[Any]) -> bool:
        present = [grad for grad in grads if grad is not None]
        if not all(map(is_plain, present)) or any(map(Tensor.is_neg, present)):
            return False
        if self.grad_dtype is not None:
            return set(map(_dtype, present)) <= {self.grad_dtype}
        return all(
            grad is None or kind is None or grad.dtype is kind.grad
            for grad, kind in zip(grads, self.plan.kinds, strict=True)
        )


def _layouts(params: list[Tensor]) -> tuple[list[Any], ...]:
    """Strides, shapes and dtypes: `p.data = p.data.t()` changes them, but no address."""
    return list(map(_strides, params)), list(map(_size, params)), list(map(_dtype, params))


def _params(groups: list[Group]) -> list[Tensor]:
    if len(groups) == 1:
        return groups[0]["params"]
    return [p for group in groups for p in group["params"]]


def _shape(groups: list[Group]) -> list[tuple[int, str, str]]:
    """Which parameters are whose, which need an average of first moments, how v_c is kept."""
    return [(len(group["params"]), group["first_moment"], group["past_dtype"]) for group in groups]


def _member(param: Tensor, state: dict[str, Any], group: Group) -> Row | None:
    """What the kernels need, if all of it is there and can be taken as it is."""
    first_moment = group["first_moment"]
    past = state.get("past_exp_avg") if first_moment == "task" else None
    names = ("exp_avg", "exp_avg_sq", "past_exp_avg_sq", "step", "past_steps")
    tensors = [state.get(name) for name in names]
    if not all(isinstance(x, Tensor) for x in (param, *tensors)) or (
        first_moment == "task" and past is None
    ):
        return None
    member = Row(param, *tensors[:3], past, *tensors[3:])  # type: ignore[arg-type]
    plain = is_plain(param) and param.is_cuda and param.dtype in DTYPES
    own = past_dtype_of(group["past_dtype"], member.exp_avg.dtype)
    as_set = member.past_exp_avg_sq is not None and member.past_exp_avg_sq.dtype is own
    return member if plain and as_set and fits(member) else None
