"""A stack of models computes what its members compute alone."""

import pytest
import torch
from torch import nn

from longtail.replicas import (
    Replicas,
    broadcast,
    build_model,
    dot,
    lead_of,
    linear_chain,
    parameter_groups,
)
from longtail.replicas.linear import LARGE, joined
from longtail.support.random import derive

S, B = 3, 5


class Normed(nn.Module):
    """Not a chain: goes through vmap."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(7, 4)
        self.norm = nn.LayerNorm(4)
        self.head = nn.Linear(4, 2)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.head(self.norm(self.embed(tokens).mean(-2)))


MODELS = {
    "linear": (lambda: nn.Linear(6, 3), (6,)),
    "no bias": (lambda: nn.Linear(6, 3, bias=False), (6,)),
    "mlp": (
        lambda: nn.Sequential(
            nn.Flatten(),
            nn.Linear(6, 8),
            nn.ReLU(),
            nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 3)),
        ),
        (2, 3),
    ),
    "regression": (
        lambda: nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 1), nn.Flatten(-2)),
        (6,),
    ),
    "conv": (
        lambda: nn.Sequential(nn.Conv2d(1, 2, 3), nn.ReLU(), nn.Flatten(), nn.Linear(32, 3)),
        (1, 6, 6),
    ),
}


@pytest.mark.parametrize("policies", [1, 2])
@pytest.mark.parametrize("name", MODELS)
def test_outputs_and_gradients_equal_those_of_each_model_alone(name: str, policies: int) -> None:
    make, shape = MODELS[name]
    models = [make().double() for _ in range(S)]
    stack = Replicas(models, policies)
    with torch.no_grad():  # tell the policies apart
        for policy in range(policies):
            for p in stack.policy_parameters(policy):
                p.mul_(1 + policy)
    x = torch.randn(S, B, *shape, dtype=torch.float64)
    out = stack(x)
    target = torch.randn(S, *out.shape[2:], dtype=torch.float64)
    ((out - target) ** 2).flatten(3 if out.dim() > 3 else 2).mean(-1).sum().backward()
    assert out.shape[:3] == (policies, S, B)
    for policy in range(policies):
        for s in range(S):
            alone = stack.replica(policy, s)
            expected = alone(x[s])
            torch.testing.assert_close(out[policy, s], expected)
            loss = ((expected - target[s]) ** 2).flatten(1 if out.dim() > 3 else 0).mean(-1).sum()
            loss.backward()
            grads = [p.grad for p in alone.parameters()]
            for p, g in zip(stack.policy_parameters(policy), grads, strict=True):
                torch.testing.assert_close(p.grad[s], g)


@pytest.mark.parametrize("policies", [1, 2])
@pytest.mark.parametrize("name", ["linear", "no bias", "mlp", "regression"])
def test_rows_that_all_replicas_share_need_no_copy(name: str, policies: int) -> None:
    make, shape = MODELS[name]
    stack = Replicas([make().double() for _ in range(S)], policies)
    x = torch.randn(B, *shape, dtype=torch.float64)
    shared = x.expand(S, *x.shape)
    torch.testing.assert_close(stack(shared), stack(shared.contiguous()))


def test_a_module_that_is_no_chain_runs_through_vmap() -> None:
    models = [Normed() for _ in range(S)]
    stack = Replicas(models, 2)
    assert linear_chain(models[0]) is None
    tokens = torch.randint(7, (S, B, 4))
    out = stack(tokens)
    for s, model in enumerate(models):
        torch.testing.assert_close(out[1, s], model(tokens[s]))


def test_batch_norm_statistics_are_kept_per_replica() -> None:
    models = [nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3)) for _ in range(S)]
    stack = Replicas(models, 2)
    x = torch.randn(S, B, 4)
    stack(x)
    for s, model in enumerate(models):
        model(x[s])
        for policy in range(2):
            alone = stack.replica(policy, s)
            torch.testing.assert_close(alone[1].running_mean, model[1].running_mean)
            assert alone[1].num_batches_tracked == 1


def test_tied_parameters_stay_tied() -> None:
    def tied() -> nn.Module:
        first, second = nn.Linear(4, 4), nn.Linear(4, 4)
        second.weight = first.weight
        return nn.Sequential(first, nn.ReLU(), second)

    models = [tied() for _ in range(S)]
    stack = Replicas(models, 2)
    assert len(stack.policy_parameters(1)) == 3
    x = torch.randn(S, B, 4)
    torch.testing.assert_close(stack(x)[1, 2], models[2](x[2]))


def test_weight_gradients_come_out_in_the_layout_of_the_weights() -> None:
    # otherwise every backward pass would copy each of them once more
    stack = Replicas([nn.Sequential(nn.Linear(6, 4), nn.ReLU(), nn.Linear(4, 2)) for _ in range(S)])
    stack(torch.randn(S, B, 6)).sum().backward()
    assert all(p.grad.is_contiguous() for p in stack.parameters())


def test_policies_share_the_start_but_not_the_storage() -> None:
    models = [nn.Linear(2, 2) for _ in range(S)]
    stack = Replicas(models, 2)
    with torch.no_grad():
        stack.policy_parameters(0)[0].zero_()
    assert torch.equal(stack.replica(1, 2).weight, models[2].weight)
    assert not torch.equal(stack.replica(0, 2).weight, models[2].weight)


def test_build_model_initialises_by_seed_and_leaves_the_generator_alone() -> None:
    before = torch.get_rng_state()
    stack = build_model(lambda seed: nn.Linear(3, 2), [4, 5], policies=2)
    assert torch.equal(torch.get_rng_state(), before)
    alone = build_model(lambda seed: nn.Linear(3, 2), 5)
    assert isinstance(stack, Replicas)
    assert torch.equal(stack.replica(0, 1).weight, alone.weight)
    torch.manual_seed(derive(5, "model"))
    assert torch.equal(nn.Linear(3, 2).weight, alone.weight)


def test_helpers_reduce_per_replica() -> None:
    plain, stack = nn.Linear(3, 2), Replicas([nn.Linear(3, 2) for _ in range(S)], 2)
    assert (lead_of(plain), lead_of(stack)) == ((), (2, S))
    assert [len(g) for g in parameter_groups(stack)] == [2, 2]
    a, b = parameter_groups(stack)
    value = dot(a, b, (S,))
    expected = [sum((x[s] * y[s]).sum() for x, y in zip(a, b, strict=True)) for s in range(S)]
    torch.testing.assert_close(value, torch.stack(expected))
    torch.testing.assert_close(dot(a, b, ()), value.sum())
    assert broadcast(value, a[0]).shape == (S, 1, 1)
    numbers = [torch.arange(S) + 1.0]  # a parameter of one number, as a temperature is
    torch.testing.assert_close(dot(numbers, numbers, (S,)), (torch.arange(S) + 1.0) ** 2)


def test_mistakes_are_named() -> None:
    with pytest.raises(ValueError, match="empty list"):
        Replicas([])
    with pytest.raises(ValueError, match="policies: 0"):
        Replicas([nn.Linear(2, 2)], 0)
    with pytest.raises(ValueError, match="Model 1 differs"):
        Replicas([nn.Linear(2, 2), nn.Linear(3, 2)])


def test_large_layers_are_not_joined_but_compute_the_same() -> None:
    models = [nn.Sequential(nn.Linear(300, 150), nn.ReLU(), nn.Linear(150, 2)) for _ in range(3)]
    assert models[0][0].weight.numel() >= LARGE
    stack = Replicas(models, policies=2)
    x = torch.randn(3, 5, 300)
    found = stack(x)
    for s, model in enumerate(models):
        for p in range(2):
            torch.testing.assert_close(found[p, s], model(x[s]))
    found.square().sum().backward()
    for s, model in enumerate(models):
        model(x[s]).square().sum().backward()
        for p in range(2):
            for mine, theirs in zip(stack.policy_parameters(p), model.parameters(), strict=True):
                torch.testing.assert_close(mine.grad[s], theirs.grad, rtol=1e-4, atol=1e-5)


class Scaled(nn.Module):
    """Knows how to run a stack of itself."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.randn(4))

    def forward(self, inputs: dict[str, torch.Tensor]) -> torch.Tensor:
        raise AssertionError("the stack has a forward of its own")

    @classmethod
    def forward_stacked(cls, members: list["Scaled"], inputs: dict) -> torch.Tensor:
        scale = torch.stack([member.scale for member in members])  # [P, S, 4]
        return inputs["x"] * scale[:, :, None]


def test_a_class_may_run_a_stack_of_itself() -> None:
    models = [Scaled() for _ in range(S)]
    stack = Replicas(models, policies=2)
    x = torch.randn(S, B, 4)
    outputs = stack({"x": x})
    assert outputs.shape == (2, S, B, 4)
    for seed, model in enumerate(models):
        assert torch.equal(outputs[1, seed], x[seed] * model.scale)


def weights_of(stack: Replicas) -> list[nn.Parameter]:
    return [stack.policy_parameters(p)[0] for p in range(stack.lead[0])]


def test_policies_lie_end_to_end_and_so_do_their_gradients() -> None:
    stack = Replicas([nn.Linear(6, 1) for _ in range(S)], policies=3)
    for moved in (stack, stack.double()):
        weights = weights_of(moved)
        whole = joined(weights)
        assert whole.data_ptr() == weights[0].data_ptr()
        assert torch.equal(whole, torch.stack(weights))
    stack(torch.randn(S, B, 6, dtype=torch.float64)).sum().backward()
    grads = [p.grad for p in weights_of(stack)]
    assert joined(grads).data_ptr() == grads[0].data_ptr()


def test_moving_a_stack_to_where_it_is_leaves_its_memory_alone() -> None:
    stack = Replicas([nn.Linear(6, 1) for _ in range(S)], policies=3)
    before = [p.data_ptr() for p in stack.parameters()]
    assert [p.data_ptr() for p in stack.to("cpu").parameters()] == before


def test_policies_that_were_moved_apart_are_joined_by_a_copy() -> None:
    stack = Replicas([nn.Linear(6, 2) for _ in range(S)], policies=3)
    x = torch.randn(S, B, 6)
    expected = stack(x)
    middle = weights_of(stack)[1]
    middle.data = middle.data.clone()
    assert torch.equal(stack(x), expected)
    stack(x).sum().backward()
    assert middle.grad is not None


def test_neighbours_by_chance_are_not_joined_without_a_copy() -> None:
    memory = torch.arange(6.0)
    one = torch.empty(0).set_(memory.untyped_storage(), 0, (3,))
    other = memory[3:].clone()
    assert torch.equal(joined([one, other]), torch.stack([one, other]))
    # the same addresses, but a storage that ends before the second
    short = torch.frombuffer(memory.numpy(), dtype=torch.float32, count=3)
    assert joined([short, memory[3:]]).data_ptr() != short.data_ptr()


def test_a_change_between_forward_and_backward_is_noticed() -> None:
    stack = Replicas([nn.Linear(6, 1) for _ in range(S)], policies=3)
    loss = stack(torch.randn(S, B, 6)).sum()
    with torch.no_grad():
        weights_of(stack)[2].mul_(2)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()
