"""The sequence, the heads and the scores; what every method and policy may and may not move."""

import copy
import math

import numpy as np
import pytest
import torch

from longtail import methods
from longtail.metrics import summary
from longtail.replicas import Replicas, build_model
from longtail.runs.build import build_run, build_stack
from longtail.runs.config import resolve
from longtail.support.random import permutation, uniform
from longtail.tasks import Evaluator, size_statistics
from longtail.training import train
from longtail.training.evaluation import evaluate_validation
from longtail_bench import fsmol
from longtail_bench.fsmol.evaluation import Evaluation, logits_of, scores
from longtail_bench.fsmol.miniature import miniature
from longtail_bench.fsmol.model import BitLinear, MoleculeNet, unpacked
from longtail_bench.fsmol.tasks import assay_tasks, split

SMALL = {"data.miniature": True, "data.hidden": [8, 4], "train.evaluate_every": 0}
POLICIES = ("continual", "new", "kept")


def config(tasks: int = 6, seed: int = 0, **flags):
    return resolve("fsmol", flags={**SMALL, "data.tasks": tasks, "seed": seed, **flags})


def test_the_miniature_has_a_long_tail_and_can_be_learned():
    sequence = fsmol.build(fsmol.Settings(miniature=True), 0).sequence
    found = size_statistics(sequence)
    assert found["tasks"] == 120
    assert found["largest"] > 7 * found["median"]
    run = build_run(
        resolve("fsmol", flags={"data.miniature": True, "method": "multitask", "train.epochs": 3})
    )
    train(run)
    assert summary(run.matrix)["RP"] > 0.7
    assert summary(run.matrices["roc_auc"])["RP"] > 0.75


def test_the_split_is_stratified_and_keeps_a_molecule_on_one_side():
    prepared = miniature()
    molecule = prepared.molecule.copy()
    molecule[5], molecule[11] = molecule[3], molecule[3]  # assay 0 lists a molecule three times
    prepared = copy.copy(prepared)
    object.__setattr__(prepared, "molecule", molecule)
    chance = uniform(len(molecule), 1, "split").numpy()
    is_test = split(prepared, chance, 0.2)
    for i in range(len(prepared.sizes)):
        rows = slice(*prepared.offsets[i : i + 2])
        y, chosen, who = prepared.label[rows], is_test[rows], molecule[rows]
        assert not set(who[chosen]) & set(who[~chosen])
        for label in (0, 1):
            assert abs(chosen[y == label].sum() - 0.2 * (y == label).sum()) <= 3


def test_order_cap_and_counts():
    prepared = miniature()
    drawn = assay_tasks(prepared, 0)
    assert sorted(drawn.names) == sorted(prepared.names)
    assert drawn.names != assay_tasks(prepared, 1).names
    tenth = len(drawn) // 10
    assert drawn.train_sizes[:tenth].mean() > 1.5 * drawn.train_sizes[-tenth:].mean()
    capped = assay_tasks(prepared, 0, cap=20, tasks=30)
    assert capped.train_sizes.tolist() == [20] * 30
    assert capped.test_sizes.tolist() == drawn.test_sizes[:30].tolist()
    for kind in (False, True):
        sequence = assay_tasks(prepared, 0, counts=kind)
        (bits, task), y = sequence.test(7)[torch.arange(5)]
        x = unpacked(bits)
        assert x.shape == (5, 2048)
        assert bool((x > 1).any()) is kind
        assert task.tolist() == [7] * 5  # the head is that of the place in the sequence
        assert set(y.tolist()) <= {0.0, 1.0}


def heads_of(run) -> torch.Tensor:
    """All heads as they answer, [T, H + 1] of each policy and replica."""
    model = run.model
    members = list(model.members) if isinstance(model, Replicas) else [model]
    found = []
    for member in members:
        table = member.heads.clone()
        place = member.current[..., None, None].expand(*table.shape[:-2], 1, table.shape[-1])
        found.append(table.scatter(-2, place, member.head.detach().unsqueeze(-2)))
    return torch.stack(found)


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("method", methods.names())
def test_no_method_moves_another_tasks_head(method, policy):
    flags = {"method": method, "policy": policy, "train.weight_decay": 0.1}
    if method in ("reservoir", "derpp", "agem"):
        flags["methods.buffer"] = 50
    if method in ("ewc", "ewcpp"):
        flags["methods.strength"] = 100.0
    run = build_run(config(**flags))
    before = heads_of(run)
    moved = []

    def look(run):
        nonlocal before
        now = heads_of(run)
        changed = (now != before).any(-1).flatten().nonzero().flatten().tolist()
        current = int(run.model.current)
        assert changed in ([], [current])
        moved.extend(changed)
        before = now

    train(run, on_step=look)
    assert sorted(set(moved)) == list(range(6))  # and each task has moved its own


@pytest.mark.parametrize("policy", POLICIES)
def test_a_head_is_learned_by_plain_adam_from_a_fresh_state(policy):
    """With the trunk held still, every policy gives each head the same steps: those of Adam."""
    run = build_run(config(tasks=4, policy=policy, **{"train.lr": 0.01}))
    twin = copy.deepcopy(run.model)
    frozen = [p.detach().clone() for p in run.model.trunk.parameters()]

    def hold(run):
        for p, value in zip(run.model.trunk.parameters(), frozen, strict=True):
            p.data.copy_(value)

    train(run, on_step=hold)
    expected = twin.heads.clone()
    for i in range(4):
        head = torch.nn.Parameter(expected[i].clone())
        optimizer = torch.optim.AdamW([head], lr=0.01, weight_decay=0.0)
        examples = run.sequence.train(i)
        size, n = run.settings.batch_size, len(examples)
        order = torch.arange(n) if n <= size else permutation(n, 0, "batches", i, 0)
        for start in range(0, n, size):
            (bits, _), y = examples[order[start : start + size]]
            h = twin.trunk(bits).detach()
            h = h / (h.square().mean(-1, keepdim=True) + torch.finfo(h.dtype).eps).sqrt()
            z = h @ head[:-1] + head[-1]
            optimizer.zero_grad()
            torch.nn.functional.binary_cross_entropy_with_logits(z, y).backward()
            optimizer.step()
        expected[i] = head.detach()
    assert torch.allclose(heads_of(run)[0], expected, atol=1e-5)


def test_a_stack_is_its_single_runs():
    for method in ("derpp", "ewc", "multitask"):
        # with eps of 1e-8 Adam makes whole steps of what rounding leaves of a gradient of zero
        flags = {"method": method, "train.eps": 1e-4}
        flags |= {"methods.buffer": 40} if method == "derpp" else {}
        configs = [
            config(seed=seed, policy=policy, **flags)
            for seed in (0, 3)
            for policy in ("continual", "new")
        ]
        stack = build_stack(configs)
        train(stack.run)
        found = summary(stack.run.matrices["roc_auc"])["RP"]
        for one, (row, seed) in zip(configs, stack.places, strict=True):
            run = build_run(one)
            train(run)
            alone = summary(run.matrices["roc_auc"])["RP"]
            assert found[row, seed] == pytest.approx(alone, abs=2e-3)
            weights = stack.run.model.replica(row, seed).state_dict()
            for name, value in run.model.state_dict().items():
                assert torch.allclose(weights[name], value, atol=1e-4), name


def test_multitask_training_learns_every_head_at_once():
    run = build_run(config(method="multitask"))
    before = run.model.head.detach().clone()
    train(run)
    assert before.shape == (6, 5)
    assert (run.model.head != before).any(-1).all()


def auc_by_pairs(z: np.ndarray, y: np.ndarray) -> float:
    above = [float(a > b) + 0.5 * float(a == b) for a in z[y == 1] for b in z[y == 0]]
    return float(np.mean(above)) if above else math.nan


def test_scores_of_all_tasks_in_one_pass_are_those_by_pairs():
    generator = torch.Generator().manual_seed(0)
    task = torch.tensor([2, 0, 1, 0, 2, 2, 0, 1, 0, 0, 2, 3, 3, 0])
    y = torch.tensor([1, 0, 1, 1, 0, 1, 1, 0, 0, 1, 0, 1, 1, 1]).float()
    z = torch.randint(-2, 3, (2, 3, 14), generator=generator).float()  # with many ties
    found = scores(z, y, task, 4)
    for p in range(2):
        for s in range(3):
            for i in range(3):
                rows = task == i
                expected = auc_by_pairs(z[p, s, rows].numpy(), y[rows].numpy())
                assert float(found["roc_auc"][p, s, i]) == pytest.approx(expected)
                right = ((z[p, s] > 0) == (y > 0.5))[rows].double().mean()
                assert float(found["accuracy"][p, s, i]) == pytest.approx(float(right))
    assert found["roc_auc"][..., 3].isnan().all()  # no inactive molecule
    z[0, 0, 1] = math.nan
    assert scores(z, y, task, 4)["roc_auc"][0, 0, 0].isnan()


def test_one_task_scores_as_it_does_among_all():
    sequence = assay_tasks(miniature(), 0, tasks=9)
    models = [MoleculeNet(9, (8, 4)) for _ in range(2)]
    for model in (models[0], Replicas(models, policies=2)):
        together = Evaluation()(model, sequence, range(9))
        for i in (0, 4, 8):
            alone = Evaluation()(model, sequence, range(i, i + 1))
            for name, value in together.items():
                assert torch.allclose(alone[name], value[..., i : i + 1], atol=1e-6)


@pytest.mark.parametrize("joint", [False, True])
def test_replicas_answer_as_their_models_do(joint):
    sequence = assay_tasks(miniature(), 0, tasks=9)
    stack = build_model(lambda _: MoleculeNet(9, (8, 4), joint), [0, 1, 2], policies=2)
    numbers = iter(range(99))
    for member in stack.members:  # every policy, seed and task its own head
        member.begin_task(4)
        tables = [member.head, *([] if joint else [member.heads])]
        for table in tables:
            table.data.normal_(generator=torch.Generator().manual_seed(next(numbers)))
    for tasks in (range(9), range(4, 5)):  # molecules of all tasks, and of the present one alone
        examples = sequence.tests(9)[0] if len(tasks) > 1 else sequence.test(4)
        logits, _ = logits_of(stack, examples)
        for policy in range(2):
            for seed in range(3):
                alone, _ = logits_of(stack.replica(policy, seed), examples)
                assert torch.allclose(logits[policy, seed], alone, atol=1e-4)
    assert not torch.allclose(logits[0], logits[1], atol=0.1)


@pytest.mark.parametrize("counts", [False, True])
def test_rows_of_bits_that_no_molecule_has_are_left_out(counts):
    table = assay_tasks(miniature(), 0, tasks=4, counts=counts).table
    fingerprints = table.fingerprints[:7]
    layer = build_model(lambda _: BitLinear(2048, 5), 0)
    plain = unpacked(fingerprints) @ layer.weight + layer.bias
    expected = torch.autograd.grad(plain.square().sum(), list(layer.parameters()))
    found = layer(fingerprints)
    grads = torch.autograd.grad(found.square().sum(), list(layer.parameters()))
    for mine, dense in zip((found, *grads), (plain, *expected), strict=True):
        assert torch.allclose(mine, dense, rtol=1e-4, atol=1e-5)
    absent = ~unpacked(fingerprints).any(0)
    assert absent.sum() > 1500
    assert not grads[0][absent].any()


def test_a_stack_validates_all_tasks_in_one_pass():
    configs = [config(seed=seed, **{"train.validation": 0.1}) for seed in (0, 3)]
    stack = build_stack(configs).run
    train(stack)
    tasks = [i for i in range(len(stack.sequence)) if stack.sequence.validation(i)]
    found = Evaluation().validations(stack.model, stack.sequence, tasks)
    one_by_one = Evaluator().validations(stack.model, stack.sequence, tasks)
    assert tasks
    assert np.array_equal(found, np.stack(one_by_one))
    run = build_run(configs[0])
    found = Evaluation().validations(run.model, run.sequence, tasks)
    assert np.array_equal(found, Evaluator().validations(run.model, run.sequence, tasks))


def test_multitask_training_is_validated_on_the_molecules_of_all_tasks():
    settings = {"train.validation": 0.1}
    stack = build_stack([config(seed=s, method="multitask", **settings) for s in (0, 3)]).run
    train(stack)
    found = evaluate_validation(stack.model, stack.sequence, Evaluation()).mean
    alone = []
    for seed in (0, 3):
        run = build_run(config(seed=seed, method="multitask", **settings))
        train(run)
        alone.append(evaluate_validation(run.model, run.sequence, Evaluation()).mean)
    assert np.allclose(np.ravel(found), np.ravel(alone))
