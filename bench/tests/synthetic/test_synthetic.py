"""The synthetic benchmark: its data, its settings, and stacks against single runs."""

import dataclasses

import numpy as np
import pytest
import torch

from longtail_bench import synthetic
from longtail_bench.synthetic import Settings, SyntheticSequence, task_sizes, task_weights
from longtail_bench.synthetic.model import Regressor
from longtail_bench.synthetic.tables import Kept, fits

SMALL = Settings(tasks=6, d=12, l=2, hidden=5, k=2, minimum=4, cap=40)


def settings(**changes) -> Settings:
    return dataclasses.replace(SMALL, **changes)


def test_sizes_follow_the_power_law_from_large_to_small():
    law = Settings(tasks=20_000, exponent=1.5, minimum=10, cap=1_000)
    sizes = task_sizes(law)
    assert (np.diff(sizes) <= 0).all()
    assert sizes.min() >= 10
    assert sizes.max() == 1_000
    # P(size >= s) = (minimum / s)^exponent
    for s in (20, 100, 400):
        expected = (10 / s) ** 1.5
        share = (sizes >= s).mean()
        assert abs(share - expected) < 4 * (expected / len(sizes)) ** 0.5


def test_sizes_depend_on_their_own_seed_alone():
    one, two = SyntheticSequence([SMALL], 0), SyntheticSequence([SMALL], 1)
    assert (one.train_sizes == two.train_sizes).all()
    assert (task_sizes(settings(size_seed=3)) != one.train_sizes).any()


def test_test_sets_are_proportional_to_the_task():
    sequence = SyntheticSequence([settings(test_fraction=0.25)], 0)
    assert (sequence.test_sizes == np.maximum(1, sequence.train_sizes // 4)).all()
    assert [len(task.test) for task in sequence] == sequence.test_sizes.tolist()


def test_functions_differ_as_the_setting_says():
    seeds = torch.tensor([3, 4])
    same, perturb, shift = (
        task_weights(settings(setting=kind), seeds) for kind in synthetic.SETTINGS
    )
    assert (same == same[:, :1]).all()
    assert (perturb[:, 0] == same[:, 0]).all()
    assert ((perturb[:, 1:] != perturb[:, :1]).sum(-1) == 2).all()
    assert ((shift[:, 1:] != shift[:, :-1]).sum(-1) == 2).all()
    assert (shift[:, 1] == perturb[:, 1]).all()  # shared draws
    assert (same[0] != same[1]).all()


def test_targets_are_linear_in_the_inputs_up_to_the_noise():
    quiet = settings(noise=0.0, setting="shift")
    w = task_weights(quiet, torch.tensor([7]))[0]
    for t, task in enumerate(SyntheticSequence([quiet], 7)):
        x, y = task.train[:]
        torch.testing.assert_close(y, x @ w[t])
    big = settings(noise=0.3, cap=4_000, minimum=4_000, tasks=1)
    x, y = SyntheticSequence([big], 7).train(0)[:]
    residual = y - x @ task_weights(big, torch.tensor([7]))[0, 0]
    assert residual.std().item() == pytest.approx(0.3, rel=0.05)


def test_a_task_reads_the_same_again_and_its_parts_differ():
    sequence = SyntheticSequence([SMALL], 5)
    x, _ = sequence.train(3)[:]
    again, _ = sequence.train(3)[:]
    assert (x == again).all()
    test, _ = sequence.test(3)[:]
    assert not torch.isclose(test[0], x).all(-1).any()


def test_inputs_look_like_those_of_a_network_with_default_initialisation():
    wide = Settings(tasks=1, d=2_000, l=3, hidden=32, minimum=500, cap=500)
    x, _ = SyntheticSequence([wide], 0).train(0)[:]
    torch.manual_seed(0)
    network = torch.nn.Sequential(
        torch.nn.Linear(3, 32), torch.nn.ReLU(), torch.nn.Linear(32, 2_000)
    )
    expected = network(torch.randn(500, 3, generator=torch.Generator().manual_seed(0)))
    assert x.square().mean().item() == pytest.approx(expected.square().mean().item(), rel=0.35)
    # an affine function of `hidden` rectified units
    assert torch.linalg.matrix_rank(x - x.mean(0)) <= 32


def test_a_stack_holds_what_single_runs_hold():
    kinds = [settings(setting=kind) for kind in ("shift", "same", "shift")]
    stack = synthetic.build_stack(kinds, [4, 9]).sequence
    assert stack.replicas == 2
    index = torch.tensor([[1, 0, 2], [0, 3, 1]])
    for t in range(3):
        x, y = stack.train(t)[index]
        assert x.shape == (2, 3, 12)
        assert y.shape == (3, 2, 3)
        for p, kind in enumerate(kinds):
            for s, seed in enumerate((4, 9)):
                one = synthetic.build(kind, seed).sequence.train(t)
                single_x, single_y = one[index[s]]
                torch.testing.assert_close(x[s], single_x)
                torch.testing.assert_close(y[p, s], single_y)


def test_a_stack_of_one_setting_needs_no_policy_dimension():
    stack = synthetic.build_stack([SMALL, SMALL], [1, 2, 3]).sequence
    x, y = stack.train(0)[torch.tensor([0, 1])]
    assert (x.shape, y.shape) == ((3, 2, 12), (3, 2))


def test_all_tests_are_one_table():
    sequence = synthetic.build_stack([SMALL, settings(setting="shift")], [1, 2]).sequence
    table, task = sequence.tests(4)
    assert len(table) == len(task) == sequence.test_sizes[:4].sum()
    rows = task == 2
    x, y = table[torch.nonzero(rows).squeeze(1)]
    own_x, own_y = sequence.test(2)[:]
    assert (x == own_x).all()
    assert (y == own_y).all()


def test_any_range_of_the_tests_is_the_same_rows():
    sequence = synthetic.build_stack([SMALL, settings(setting="shift")], [1, 2]).sequence
    table, _ = sequence.tests(6)
    x, y = table[:]
    for start in range(len(table)):
        for stop in range(start, len(table) + 1):
            some_x, some_y = table[start:stop]
            assert some_x.shape == (2, stop - start, 12)
            torch.testing.assert_close(some_x, x[:, start:stop])
            assert torch.equal(some_y, y[..., start:stop])


def test_an_epoch_reads_its_rows_in_order():
    train = synthetic.build_stack([SMALL, settings(setting="shift")], [1, 2]).sequence.train(0)
    for seed in range(2):  # the second epoch reuses the memory of the first
        generator = torch.Generator().manual_seed(seed)
        order = torch.stack([torch.randperm(len(train), generator=generator) for _ in range(2)])
        arranged = train.arranged(order)
        x, y = arranged[torch.arange(2, 7)]
        expected_x, expected_y = train[order[:, 2:7]]
        torch.testing.assert_close(x, expected_x)
        assert torch.equal(y, expected_y)


def test_a_task_of_one_batch_is_made_once():
    train = synthetic.build_stack([SMALL, SMALL], [1, 2]).sequence.train(0)
    everything = torch.arange(len(train)).expand(2, -1)
    x, _ = train[everything]
    assert train[everything.clone()[:1].expand(2, -1)][0] is x
    assert torch.equal(train[everything.contiguous()][0], x)  # a copy: seeds may differ
    changed = torch.arange(len(train))
    assert train[changed][0] is x
    changed.copy_(changed.flip(0))  # the same tensor, which asks for something else now
    assert torch.equal(train[changed][0], x.flip(1))
    backwards = everything.flip(1)
    torch.testing.assert_close(train[backwards[:1].expand(2, -1)][0], x.flip(1))


def test_tasks_made_together_are_those_made_one_by_one():
    kinds = [settings(setting=kind, tasks=23) for kind in synthetic.SETTINGS]
    alone, together = (SyntheticSequence(kinds, [5, 2]) for _ in range(2))
    blocks = together.blocks(numbers=300, most=6)
    together._blocks = blocks  # as a GPU's sequence has them
    sizes = [len(block) for block in blocks]
    assert sum(sizes) == 23
    assert max(sizes) == 6
    assert min(sizes) == 1
    for part in ("train", "test"):
        for t in (0, 7, 8, 22, 3):
            mine, theirs = together.make(t, part), alone.make(t, part)
            assert torch.equal(mine.A, theirs.A)
            assert len(mine) == len(theirs)
            torch.testing.assert_close(mine.hidden, theirs.hidden)
            torch.testing.assert_close(mine.targets, theirs.targets)


def test_test_examples_that_are_kept_are_those_of_the_chain():
    sequence = SyntheticSequence([SMALL, settings(setting="shift")], [5, 2])
    chain, _ = sequence.tests(6)
    kept = Kept(chain.parts[0], len(chain))
    for upto in (2, 5, 3, 6):
        found, expected = kept.upto(chain.parts[:upto])[:], sequence.tests(upto)[0][:]
        for mine, theirs in zip(found, expected, strict=True):
            torch.testing.assert_close(mine, theirs)
    assert not fits(chain.parts[0], len(chain))  # on a CPU they are made when they are read


def test_captured_steps_read_every_task_at_one_place():
    from longtail.runs.build import build_stack
    from longtail.runs.config import resolve
    from longtail.training import train
    from longtail.training.cuda_graphs import GraphStep

    small = {"data.tasks": 3, "data.d": 6, "data.minimum": 4, "data.cap": 30, "train.epochs": 1}
    small |= {"train.batch_size": 8, "train.evaluate_every": 1}
    configs = [
        resolve("synthetic", flags={**small, "data.setting": setting, "seed": seed})
        for setting in ("same", "shift")
        for seed in (3, 4)
    ]
    plain, staged = (build_stack(configs).run for _ in range(2))
    place = synthetic.Place(int(staged.sequence.train_sizes[0]))
    staged.sequence._place = place  # as a GPU's sequence has it
    staged.take_step = GraphStep(staged, capture=False)
    for run in (plain, staged):
        train(run)
    assert place.task is not None
    for mine, theirs in zip(staged.parameters, plain.parameters, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-3, atol=1e-4)


def test_fewer_seeds_share_a_stack_where_all_training_examples_are_kept():
    full = Settings()
    some, most = (synthetic.most_seeds(full, m, 2**31) for m in ("multitask", "finetune"))
    assert some >= 10  # half of the demo's
    assert some * task_sizes(full).sum() * full.d * 4 <= 0.6 * 2**31
    assert most > 100


def test_union_is_every_training_example():
    sequence = SyntheticSequence([SMALL], 2)
    x, y = sequence.union()[:]
    assert len(y) == sequence.train_sizes.sum()
    first = sequence.train_sizes[0]
    assert (x[first : first + sequence.train_sizes[1]] == sequence.train(1)[:][0]).all()


def test_settings_of_a_stack_differ_in_setting_only():
    with pytest.raises(ValueError, match="differ in more than"):
        synthetic.build_stack([SMALL, settings(noise=0.2)], [0])


def test_the_model_gives_one_number_per_example():
    model = Regressor(12)
    assert model(torch.zeros(5, 12)).shape == (5,)
    assert sum(p.numel() for p in model.parameters()) == 12


def test_methods_that_replay_do_not_share_a_stack_across_settings():
    from longtail.runs.config import resolve, stack_key

    def key(method: str, setting: str) -> str:
        return stack_key(
            resolve("synthetic", flags={"method": method, "data.setting": setting, "seed": 1})
        )

    assert key("finetune", "same") == key("finetune", "shift")
    for method in ("reservoir", "derpp", "agem"):
        assert key(method, "same") != key(method, "shift")
