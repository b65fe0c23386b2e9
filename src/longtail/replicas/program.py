"""Many copies of a small model as one program.

Adam is elementwise, so runs that share the model's shape and the number of steps can be stacked:
S copies (one a seed) under P policies (optimizer settings compared on the same seeds, data and
batches). Every parameter gets a leading dimension S and exists once per policy:

    inputs [S, B, ...]  ->  outputs [P, S, B, ...],      targets [S, B] broadcast over P

    loss = objective.loss(outputs, targets).mean(-1).sum()

A sum over replicas keeps their gradients apart, and for a plain model the same line is the ordinary
mean. Chains of Linear and pointwise layers run as batched matrix products; the first layer joins
the policies' weights, [S, P * out, in], so that shared inputs are never copied. A class that knows
how to run a stack of itself says so with a class method,

    forward_stacked(members, inputs [S, B, ...]) -> outputs [P, S, B, ...]

where `members` are P modules whose parameters have the leading S. Other modules run through
`torch.func.vmap`.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap
from torch.utils import _pytree as pytree

from longtail.replicas.linear import lay_out, linear
from longtail.support.random import derive
from longtail.tasks.task_models import TaskModel

# Layers that act on each number alone, hence on any leading dimensions.
POINTWISE = (
    nn.Identity,
    nn.ReLU,
    nn.LeakyReLU,
    nn.ELU,
    nn.GELU,
    nn.SiLU,
    nn.Tanh,
    nn.Sigmoid,
    nn.Softplus,
    nn.Hardtanh,
    nn.Dropout,
)


class Replicas(nn.Module):
    """S models of one shape under P policies, trained as one.

    Args:
        models: one model per seed; their parameters are copied, the models stay as they are.
        policies: how many policies each of them is trained under.

    Example:
        >>> stack = Replicas([nn.Linear(3, 2) for _ in range(5)], policies=2)
        >>> stack(torch.zeros(5, 7, 3)).shape
        torch.Size([2, 5, 7, 2])
    """

    def __init__(self, models: Sequence[nn.Module], policies: int = 1) -> None:
        super().__init__()
        if not models:
            raise ValueError("Replicas needs at least one model: got an empty list")
        if policies < 1:
            raise ValueError(f"Invalid number of policies: {policies}")
        self.lead = (policies, len(models))
        stacked = _stack(models)
        self.members = nn.ModuleList(
            [stacked, *(copy.deepcopy(stacked) for _ in range(policies - 1))]
        )
        lay_out(self.members)  # pyright: ignore[reportArgumentType]
        chains = [linear_chain(member) for member in self.members]
        # Plain tuples, not a submodule: the same layers must not be registered twice.
        self._chains = None if None in chains else list(zip(*chains, strict=True))

    def _apply(self, fn: Callable[..., Any], recurse: bool = True) -> Replicas:
        """What `to`, `double` and the like go through: they move every parameter on its own."""
        super()._apply(fn, recurse)
        lay_out(self.members)  # pyright: ignore[reportArgumentType]
        return self

    def forward(self, inputs: Any) -> Any:
        stacked = getattr(type(self.members[0]), "forward_stacked", None)
        if stacked is not None:
            return stacked(list(self.members), inputs)
        if self._chains is not None and isinstance(inputs, Tensor):
            return self._chained(inputs)
        outputs = [self._vmapped(member, inputs) for member in self.members]
        return pytree.tree_map(lambda *leaves: torch.stack(leaves), *outputs)

    def policy_parameters(self, policy: int) -> list[nn.Parameter]:
        """The parameters of one policy, each [S, ...]: one parameter group of the optimizer."""
        return list(self.members[policy].parameters())

    def replica(self, policy: int, seed: int) -> nn.Module:
        """A plain, independent copy of one member (`seed` is its place in `models`)."""
        return _rebuild(self.members[policy], lambda value: value[seed])

    def _chained(self, h: Tensor) -> Tensor:
        assert self._chains is not None
        # have the policies been told apart yet? h is [S, B, ...], then [P, S, B, ...]
        folded = False
        for layers in self._chains:
            layer = layers[0]
            if isinstance(layer, nn.Linear):
                h = linear(layers, h, folded)  # pyright: ignore[reportArgumentType]
                folded = True
            elif isinstance(layer, nn.Flatten) and layer.start_dim > 0:
                h = h.flatten(layer.start_dim + (2 if folded else 1))
            else:
                h = layer(h)
        return h if folded else h.expand(self.lead[0], *h.shape)

    @staticmethod
    def _vmapped(member: nn.Module, inputs: Any) -> Any:
        state = {**dict(member.named_parameters()), **dict(member.named_buffers())}

        def one(state: dict[str, Tensor], inputs: Any) -> Any:
            return functional_call(member, state, (inputs,))

        return vmap(one, randomness="different")(state, inputs)


def linear_chain(module: nn.Module) -> list[nn.Module] | None:
    """The layers of a module that is a chain of Linear and pointwise layers; None if it is not.

    A chain is a Linear, a pointwise layer, `Flatten`, or a `Sequential` of chains. A module of your
    own takes part if it acts on any leading dimensions and says so: `pointwise = True`.
    """
    if type(module).forward is nn.Sequential.forward:
        parts = [linear_chain(child) for child in module.children()]
        return None if None in parts else [layer for part in parts if part for layer in part]
    if _has_hooks(module):
        return None
    if isinstance(module, nn.Flatten):
        fits = module.end_dim == -1 and (module.start_dim == 1 or module.start_dim < 0)
        return [module] if fits else None
    known = type(module) is nn.Linear or isinstance(module, POINTWISE)
    return [module] if known or getattr(module, "pointwise", False) else None


def _has_hooks(module: nn.Module) -> bool:
    return bool(
        module._forward_hooks
        or module._forward_pre_hooks
        or module._backward_hooks
        or module._backward_pre_hooks
    )


def _stack(models: Sequence[nn.Module]) -> nn.Module:
    """The first model with every parameter and buffer replaced by all models' stacked."""
    states = [{**dict(m.named_parameters()), **dict(m.named_buffers())} for m in models]
    for i, state in enumerate(states):
        shapes = {name: value.shape for name, value in state.items()}
        if shapes != {name: value.shape for name, value in states[0].items()}:
            raise ValueError(
                f"Model {i} differs from model 0 in the names or shapes of its tensors"
            )
    names = {id(value): name for name, value in states[0].items()}
    return _rebuild(
        models[0], lambda value: torch.stack([s[names[id(value)]].detach() for s in states])
    )


def _rebuild(module: nn.Module, change: Callable[[Tensor], Tensor]) -> nn.Module:
    """A deep copy in which `change` has been applied to every parameter and buffer."""
    memo: dict[int, Any] = {}
    # deepcopy looks objects up in its memo first: tied parameters stay tied.
    for value in module.parameters():
        memo[id(value)] = nn.Parameter(
            change(value).detach().clone(), requires_grad=value.requires_grad
        )
    for value in module.buffers():
        memo[id(value)] = change(value).detach().clone()
    return copy.deepcopy(module, memo)


def build_model(
    make_model: Callable[[int], nn.Module], seed: int | Sequence[int], policies: int = 1
) -> nn.Module:
    """The model of a run: plain for an integer seed, `Replicas` for a list of seeds.

    Each is initialised as the run with that seed alone would do it, and torch's global generator is
    left as it was.
    """

    def build(one: int) -> nn.Module:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(derive(one, "model"))
            return make_model(one)

    if isinstance(seed, int):
        return build(seed) if policies == 1 else Replicas([build(seed)], policies)
    return Replicas([build(one) for one in seed], policies)


def lead_of(model: nn.Module) -> tuple[int, ...]:
    """Leading dimensions of a model's outputs: (P, S) for `Replicas`, () for a plain module."""
    return model.lead if isinstance(model, Replicas) else ()


def members_of(model: nn.Module) -> list[nn.Module]:
    """One module per policy, or the plain module itself."""
    return list(model.members) if isinstance(model, Replicas) else [model]


def parameter_groups(model: nn.Module) -> list[list[nn.Parameter]]:
    """The trainable parameters, one list per policy (one in all for a plain module)."""
    return [[p for p in m.parameters() if p.requires_grad] for m in members_of(model)]


def task_parameters(model: nn.Module) -> list[nn.Parameter]:
    """Of all policies, those that belong to one task at a time (`TaskModel`)."""
    members = [m for m in members_of(model) if isinstance(m, TaskModel)]
    return [p for member in members for p in member.task_parameters()]


def dot(a: Sequence[Tensor], b: Sequence[Tensor], lead: tuple[int, ...]) -> Tensor:
    """Inner product of two lists of tensors, one number per replica: a tensor of shape `lead`."""
    if not lead:
        terms = [torch.dot(x.flatten(), y.flatten()) for x, y in zip(a, b, strict=True)]
        return torch.stack(terms).sum()
    # a model's single number is [S] here, which `flatten(1)` refuses
    terms = [(x * y).reshape(len(x), -1).sum(1) for x, y in zip(a, b, strict=True)]
    return torch.stack(terms).sum(0)


def broadcast(value: Tensor, like: Tensor) -> Tensor:
    """`value` [*lead] with trailing ones, so that it multiplies `like` [*lead, ...]."""
    return value.reshape(value.shape + (1,) * (like.dim() - value.dim()))
