"""A product of two tensors that is made when somebody looks at it."""

import copy

import torch
from torch import nn

from longtail.replicas import Replicas
from longtail_bench.synthetic.factored import Factored
from longtail_bench.synthetic.model import Regressor

S, B, R, D = 3, 7, 2, 5


def product(dtype: torch.dtype = torch.float64) -> tuple[Factored, torch.Tensor]:
    left, right = torch.randn(S, B, R, dtype=dtype), torch.randn(S, R, D, dtype=dtype)
    return Factored(left, right), left @ right


def test_it_is_an_ordinary_tensor_for_whoever_looks() -> None:
    x, plain = product()
    assert isinstance(x, torch.Tensor)
    assert (x.shape, x.dtype, x.stride(), x.numel()) == (
        plain.shape,
        plain.dtype,
        plain.stride(),
        plain.numel(),
    )
    for look in (
        lambda t: t[1, :3],
        lambda t: t.flatten(0, 1).index_select(0, torch.tensor([4, 2])),
        lambda t: torch.cat([t, plain], 1),
        lambda t: t.detach().square().sum(),
        lambda t: nn.functional.linear(t, torch.ones(2, D, dtype=torch.float64)),
        lambda t: plain.new_zeros(S, B, D).copy_(t),
    ):
        assert type(look(x)) is torch.Tensor
        torch.testing.assert_close(look(x), look(plain))


def test_nothing_is_made_before_somebody_looks() -> None:
    x, _ = product()
    assert x.shape[1] == B
    assert x._made is None
    assert x.sum() is not None
    assert x._made is not None
    assert "3, 7, 2" in repr(x)


def test_a_stack_of_regressions_multiplies_the_factors() -> None:
    x, plain = product()
    stack = Replicas([Regressor(D).double() for _ in range(S)], policies=2)
    with torch.no_grad():
        stack.policy_parameters(1)[0].mul_(3)
    other = copy.deepcopy(stack)
    found = stack(x)
    expected = other(plain)
    assert x._made is None
    torch.testing.assert_close(found, expected)
    for outputs in (found, expected):
        outputs.square().sum().backward()
    for p, q in zip(stack.parameters(), other.parameters(), strict=True):
        torch.testing.assert_close(p.grad, q.grad)


def test_other_stacks_see_the_product() -> None:
    x, plain = product(torch.float32)
    for make in (
        lambda: nn.Linear(D, 1),
        lambda: nn.Sequential(nn.Linear(D, 4), nn.ReLU(), nn.Linear(4, 2)),
        lambda: nn.Sequential(nn.LayerNorm(D), nn.Linear(D, 2)),
    ):
        for policies in (1, 2):
            stack = Replicas([make() for _ in range(S)], policies)
            torch.testing.assert_close(stack(x), stack(plain))
