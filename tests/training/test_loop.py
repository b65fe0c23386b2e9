"""The loop against loops written out by hand, stacks against single runs, resume after any step."""

import copy
import functools
import io

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from helpers import small_tasks
from helpers.small_tasks import assert_same, make_model, weights
from longtail import ContinualAdamW
from longtail.methods import METHODS, Finetune
from longtail.metrics import summary
from longtail.replicas import Replicas, build_model
from longtail.support.random import permutation
from longtail.tasks import (
    CLASSIFICATION,
    Evaluator,
    Examples,
    Rows,
    StackedExamples,
    TableSequence,
    multitask,
)
from longtail.tasks.examples import rows_device
from longtail.training import (
    POLICIES,
    Interrupted,
    Policy,
    Position,
    Run,
    TrainSettings,
    train,
)
from longtail.training.evaluation import evaluate_validation

SIZES = (9, 5, 1, 12, 0, 7)  # a task of one example, and a zero-shot one


make_sequence = functools.partial(small_tasks.make_sequence, SIZES)


def make_run(*given, sequence: TableSequence | None = None, **settings) -> Run:
    settings = {"fused": False, **settings}
    return small_tasks.make_run(sequence or make_sequence(), *given, **settings)


def test_equals_a_loop_written_out_by_hand() -> None:
    run = make_run(schedule="linear", warmup=0.3, weight_decay=0.1)
    train(run)
    sequence, model = make_sequence(), build_model(make_model, 3)
    optimizer = ContinualAdamW(model.parameters(), lr=1e-2, weight_decay=0.1)
    for i, n in enumerate(SIZES):
        if not n:
            continue
        steps, done = 2 * -(-n // 4), 0
        for epoch in range(2):
            order = permutation(n, 3, "batches", i, epoch)
            for rows in order.split(4):
                warm = int(0.3 * steps)
                factor = (done + 1) / (warm + 1) if done < warm else (steps - done) / (steps - warm)
                optimizer.param_groups[0]["lr"] = 1e-2 * factor
                optimizer.zero_grad()
                x, y = sequence.train(i)[rows]
                nn.functional.cross_entropy(model(x), y).backward()
                optimizer.step()
                done += 1
        optimizer.end_task()
    assert_same(weights(run.model), weights(model), rtol=1e-6, atol=1e-7)


def test_reset_is_a_fresh_adamw_for_every_task_and_carry_one_for_all() -> None:
    for policy in ("new", "kept"):
        run = make_run(policies=(policy,), weight_decay=0.1)
        train(run)
        sequence, model = make_sequence(), build_model(make_model, 3)
        optimizer = None
        for i, n in enumerate(SIZES):
            if optimizer is None or policy == "new":
                optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, weight_decay=0.1)
            for epoch in range(2):
                for rows in permutation(n, 3, "batches", i, epoch).split(4) if n else ():
                    optimizer.zero_grad()
                    x, y = sequence.train(i)[rows]
                    nn.functional.cross_entropy(model(x), y).backward()
                    optimizer.step()
        assert_same(weights(run.model), weights(model), rtol=1e-5, atol=1e-6)


def test_learning_rate_starts_anew_in_every_task() -> None:
    rates: list[float] = []
    run = make_run(schedule="linear", epochs=3)
    train(run, on_step=lambda run: rates.append(run.optimizer.param_groups[0]["lr"]))
    assert min(rates) > 0
    assert rates.count(1e-2) >= 5  # the first step of each trained task


@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize("name", METHODS)
def test_each_replica_equals_the_single_run_with_its_seed(name: str, fused: bool) -> None:
    seeds, names = [3, 4, 9], ("continual", "new")
    options = {"buffer": 7} if METHODS[name].draws else {}
    common = {"options": options, "evaluate_every": 2, "clip": 0.5, "fused": fused}
    stack = make_run(name, seeds, names, **common)
    train(stack)
    for s, seed in enumerate(seeds):
        for p, policy in enumerate(names):
            alone = make_run(name, seed, (policy,), **common)
            train(alone)
            replica = stack.model.replica(p, s)
            assert_same(weights(replica), weights(alone.model), rtol=1e-3, atol=1e-5)
            np.testing.assert_allclose(stack.matrix.own[p, s], alone.matrix.own, atol=1e-6)
            for key, value in summary(alone.matrix).items():
                np.testing.assert_allclose(summary(stack.matrix)[key][p, s], value, atol=1e-6)


def test_learning_rates_and_data_of_its_own_per_replica() -> None:
    sequences = [make_sequence(seed) for seed in (0, 1)]
    table = StackedExamples(
        torch.stack([s.table.inputs for s in sequences]),
        torch.stack([s.table.targets for s in sequences]),
    )
    first = sequences[0]
    stacked = TableSequence(table, first._train, first._test, CLASSIFICATION, first.names)
    policies = (Policy("continual"), Policy("continual", lr_scale=10.0))
    stack = make_run(seed=[3, 4], policies=policies, sequence=stacked)
    train(stack)
    for s, seed in enumerate((3, 4)):
        for p, lr in enumerate((1e-2, 1e-1)):
            alone = make_run(seed=seed, lr=lr, sequence=sequences[s])
            train(alone)
            replica = stack.model.replica(p, s)
            assert_same(weights(replica), weights(alone.model), rtol=1e-3, atol=1e-5)


def saved(run: Run) -> io.BytesIO:
    file = io.BytesIO()
    torch.save(run.state_dict(), file)
    file.seek(0)
    return file


@pytest.mark.parametrize("stacked", [False, True])
@pytest.mark.parametrize("name", METHODS)
def test_resuming_after_any_step_continues_bit_for_bit(name: str, stacked: bool) -> None:
    seed, policies = ([3, 4], ("continual", "new")) if stacked else (3, ("continual",))
    options = {"buffer": 7} if METHODS[name].draws else {}

    def build() -> Run:
        return make_run(
            name,
            seed,
            policies,
            options=options,
            sequence=make_sequence(validation=True),
            evaluate_every=2,
            schedule="linear",
            model=Replicas([dropout() for _ in range(2)], 2) if stacked else dropout(),
        )

    def dropout() -> nn.Module:
        torch.manual_seed(5)
        return nn.Sequential(nn.Linear(6, 8), nn.Dropout(0.2), nn.ReLU(), nn.Linear(8, 3))

    torch.manual_seed(0)
    whole, files = build(), []
    torch.manual_seed(0)
    train(whole, on_step=lambda run: files.append(saved(run)))
    for file in files[::5]:
        run = build()
        torch.manual_seed(99)
        run.load_state_dict(torch.load(file, weights_only=True))
        train(run)
        assert_same(weights(run.model), weights(whole.model))
        for key, value in summary(whole.matrix).items():
            np.testing.assert_array_equal(summary(run.matrix)[key], value)


def test_interrupted_after_a_step_stops_there_with_everything_in_place() -> None:
    seen: list[Position] = []

    def on_step(run: Run) -> None:
        seen.append(copy.copy(run.position))
        if len(seen) == 4:
            raise Interrupted

    run = make_run()
    with pytest.raises(Interrupted):
        train(run, on_step=on_step)
    assert run.position == Position(task=0, epoch=1, step=1)
    whole = make_run()
    train(whole)
    train(run)
    assert_same(weights(run.model), weights(whole.model))


def test_best_epoch_on_the_validation_share_is_kept_and_moments_are_not() -> None:
    kept: dict[int, list] = {}

    class Spy(Finetune):
        def end_task(self, train: Examples | None) -> None:
            kept[len(kept)] = weights(self.model)

    sequence = make_sequence(validation=True)
    model = build_model(make_model, 3)
    settings = TrainSettings(batch_size=4, epochs=6, lr=0.1, fused=False)
    run = Run(sequence, model, Spy(model, CLASSIFICATION), [POLICIES["kept"]], settings, 3)
    epochs: list[tuple[float, list[Tensor], Tensor]] = []
    choices = []

    def on_step(run: Run) -> None:
        position = run.position
        if position.step == 0:  # a task has ended
            if epochs:
                scores = [score for score, _, _ in epochs]
                best = scores.index(max(scores))
                choices.append(best)
                assert_same(kept[len(kept) - 1], epochs[best][1])
                first = next(run.model.parameters())
                assert torch.equal(run.optimizer.state[first]["exp_avg"], epochs[-1][2])
            epochs.clear()
        elif position.step == -(-SIZES[position.task] // 4):
            x, y = sequence.validation(position.task)[torch.arange(5)]
            score = (run.model(x).argmax(-1) == y).float().mean().item()
            first = next(run.model.parameters())
            moment = run.optimizer.state[first]["exp_avg"].clone()
            epochs.append((score, weights(run.model), moment))

    train(run, on_step=on_step)
    assert len(choices) == 5
    assert any(choice < 5 for choice in choices)


def test_scores_are_recorded_for_each_task_and_for_all_when_due() -> None:
    seen: list[tuple[int, range]] = []
    run = make_run(evaluate_every=4, evaluate_at=(2,))
    train(run, on_evaluation=lambda run, after, tasks, scores: seen.append((after, tasks)))
    assert seen == [
        (0, range(1)),
        (1, range(2)),
        (2, range(2, 3)),
        (3, range(4)),
        (4, range(4, 5)),
        (5, range(6)),
    ]
    assert set(summary(run.matrix)) == {"RP", "LP", "BWT", "FGT"}
    assert not run.matrix.trained[4]


def test_own_evaluation_and_none_at_all() -> None:
    run = make_run(evaluate=lambda model, sequence, tasks: np.full(len(tasks), 0.25))
    train(run)
    assert summary(run.matrix)["RP"] == pytest.approx(0.25)
    run = make_run(evaluate=False)
    train(run)
    assert not run.matrix.rows


def test_scores_that_are_still_on_their_way_are_recorded_in_order_when_somebody_looks() -> None:
    seen: list[int] = []

    def listen(run: Run, after: int, tasks: range, scores: dict) -> None:
        seen.append(after)
        assert isinstance(scores["accuracy"], np.ndarray)
        assert run.matrix.last[after] == after / 10

    def on_step(run: Run) -> None:
        steps.append((run.position.task, len(seen)))
        if run.position == Position(3):
            assert run.matrix.own[:3].tolist() == [0.0, 0.1, 0.2]

    steps: list[tuple[int, int]] = []
    run = make_run(evaluate=lambda model, sequence, tasks: torch.tensor(tasks).double() / 10)
    train(run, on_evaluation=listen, on_step=on_step)
    assert seen == list(range(6))
    told = dict(reversed(steps))  # how many were told at the first step of each task
    assert (told[2], told[3], told[5]) == (1, 1, 3)


def test_a_benchmark_may_choose_the_best_epoch_by_its_own_score() -> None:
    class Own(Evaluator):
        def __init__(self) -> None:
            self.asked: list[int] = []

        def __call__(self, model: nn.Module, sequence, tasks: range):
            return np.zeros(len(tasks))

        def validation(self, model: nn.Module, sequence, task: int) -> Tensor:
            self.asked.append(task)
            return torch.tensor([0.2, 0.9, 0.4][(len(self.asked) - 1) % 3])

    model, kept = build_model(make_model, 3), []
    sequence = make_sequence(validation=True)
    settings = TrainSettings(batch_size=100, epochs=3, lr=0.1, fused=False)
    own, method = Own(), Finetune(model, CLASSIFICATION)
    run = Run(sequence, model, method, [POLICIES["new"]], settings, 3, own)

    def on_step(run: Run) -> None:
        if run.position.epoch == 1:
            kept.append(weights(run.model))
        elif run.position.step == 0 and SIZES[run.position.task - 1]:
            assert_same(weights(run.model), kept[-1])

    train(run, on_step=on_step)
    assert own.asked == [task for task, size in enumerate(SIZES) if size for _ in range(3)]
    score = evaluate_validation(run.model, sequence, own)
    assert score is not None
    assert score.mean == pytest.approx(np.mean([0.2, 0.9, 0.4, 0.2, 0.9, 0.4]))


class OnTheHost:
    """A table that wants its row numbers on the CPU."""

    host_index = True

    def __init__(self, table) -> None:
        self.table = table
        self.devices: set[str] = set()

    def __len__(self) -> int:
        return len(self.table)

    def __getitem__(self, index):
        if isinstance(index, Tensor):
            self.devices.add(index.device.type)
        return self.table[index]

    def narrow(self, start: int, stop: int) -> Rows:
        return Rows(self, torch.arange(start, stop))

    def to(self, device) -> "OnTheHost":
        moved = OnTheHost(self.table.to(device))
        moved.devices = self.devices
        return moved


def test_row_numbers_stay_on_the_host_for_a_table_that_wants_them_there() -> None:
    sequence = make_sequence()
    table = OnTheHost(sequence.table)
    parts = [sequence.segments(kind) for kind in ("train", "test")]
    moved = TableSequence(table, parts[0].select(range(6)), parts[1], CLASSIFICATION).to("meta")
    assert moved.segments("train").rows.device.type == "cpu"
    assert rows_device(moved.train(0), "meta") == "cpu"
    assert rows_device(sequence.train(0), "meta") == "meta"


def test_accumulation_equals_a_batch_that_is_as_large() -> None:
    for name in ("finetune", "ewc", "ewcpp"):
        large, small = make_run(name, batch_size=6), make_run(name, batch_size=2, accumulate=3)
        train(large)
        train(small)
        assert_same(weights(large.model), weights(small.model), rtol=1e-4, atol=1e-6)


def test_accumulation_stores_the_outputs_of_every_batch() -> None:
    run = make_run("derpp", batch_size=2, accumulate=3, options={"buffer": 100})
    train(run)
    assert run.method.buffer.count == 2 * sum(SIZES)


def test_clipping_limits_the_norm_of_each_replica() -> None:
    norms: list[Tensor] = []

    class Spy(Finetune):
        def observe(self, batch) -> None:
            grads = [p.grad.flatten(1) for p in self.model.policy_parameters(0)]
            norms.append(torch.cat(grads, 1).norm(dim=1))

    model = build_model(make_model, [3, 4], 1)
    with torch.no_grad():  # one replica with small gradients
        for p in model.parameters():
            p[1] *= 1e-4
    settings = TrainSettings(batch_size=4, clip=0.1, lr=1e-6, fused=False)
    seeds = torch.tensor([3, 4])
    run = Run(
        make_sequence(),
        model,
        Spy(model, CLASSIFICATION, seed=seeds),
        [POLICIES["new"]],
        settings,
        seeds,
    )
    train(run)
    found = torch.stack(norms)
    assert found.max() < 0.1 + 1e-5
    assert (found[:, 0] > 0.0999).any()


def test_bf16_leaves_weights_in_float32() -> None:
    run = make_run(autocast="bf16")
    train(run)
    assert all(w.isfinite().all() for w in weights(run.model))
    assert weights(run.model)[0].dtype == torch.float32


def test_fp16_skips_after_backward_where_the_step_is_skipped() -> None:
    run = make_run("ewcpp", autocast="fp16")
    run.scaler._init_scale = 2.0**60  # overflows at first, then backs off
    train(run)
    assert run.scaler.get_scale() < 2.0**60
    assert all(f.isfinite().all() for f in run.method.running_F)
    assert all(w.isfinite().all() for w in weights(run.model))


def test_agem_forgets_the_reference_of_a_skipped_step() -> None:
    run = make_run("agem", autocast="fp16", options={"buffer": 4})
    left, before = [], []

    def on_step(run: Run) -> None:
        if run.position == Position(task=1):  # the buffer holds something from here on
            before.append(run.scaler.get_scale())
            run.scaler.update(2.0**60)  # the next step overflows
        left.append(run.method.reference)

    train(run, on_step=on_step)
    assert run.scaler.get_scale() > before[0]  # it still backs off: steps were skipped
    assert left == [None] * len(left)


@pytest.mark.slow
def test_compiled_models_train_to_the_same_weights() -> None:
    plain, compiled = make_run(), make_run(compile=True)
    train(plain)
    train(compiled)
    assert_same(weights(plain.model), weights(compiled.model), rtol=1e-4, atol=1e-6)


def test_cost_per_step_makes_no_state_that_grows() -> None:
    sizes = []

    def on_step(run: Run) -> None:
        if run.position.step == 0:
            state = run.state_dict()
            parts = ("model", "optimizer", "method")
            sizes.append(sum(len(saved_part(state[k])) for k in parts))

    def saved_part(state) -> bytes:
        file = io.BytesIO()
        torch.save(state, file)
        return file.getvalue()

    for name in METHODS:
        sizes.clear()
        options = {"buffer": 4} if METHODS[name].draws else {}
        train(make_run(name, options=options), on_step=on_step)
        assert sizes[-1] <= sizes[1] * 1.02


def test_mistakes_are_named() -> None:
    with pytest.raises(ValueError, match="cannot share an optimizer"):
        make_run(seed=[1, 2], policies=("continual", "kept"))
    with pytest.raises(ValueError, match="2 policies for a model that has room for 1"):
        make_run(model=make_model(), policies=("continual", "new"))
    with pytest.raises(ValueError, match="None replicas and the run 2 seeds"):
        make_run(model=make_model(), seed=[1, 2])
    for setting, value in (("epochs", 0), ("warmup", 1.0), ("clip", 0.0), ("lr", -1.0)):
        with pytest.raises(ValueError, match=f"Invalid {setting}: {value}"):
            TrainSettings(**{setting: value})


@pytest.mark.parametrize("name", ["lr", "eps", "weight_decay", "warmup", "validation", "clip"])
def test_settings_that_are_not_a_number_are_refused(name: str) -> None:
    with pytest.raises(ValueError, match=f"Invalid {name}: nan"):
        TrainSettings(**{name: float("nan")})


def rates_of(run: Run) -> list[float]:
    """The learning rate of every step of a run."""
    rates: list[float] = []

    def look(run: Run) -> None:
        if run.position.step:
            rates.append(run.optimizer.param_groups[0]["lr"])

    train(run, on_step=look)
    return rates


def test_a_schedule_over_the_sequence_does_not_start_anew() -> None:
    rates = rates_of(make_run(schedule="linear", span="sequence", warmup=0.25))
    total = sum(2 * -(-n // 4) for n in SIZES)
    warm = int(0.25 * total)
    assert len(rates) == total
    up = [1e-2 * (i + 1) / (warm + 1) for i in range(warm)]
    down = [1e-2 * (total - i) / (total - warm) for i in range(warm, total)]
    np.testing.assert_allclose(rates, [*up, *down])


def test_the_whole_of_multitask_training_is_its_one_task() -> None:
    """It takes fewer steps than the tasks would take in turn, and its rate still ends near zero."""
    settings = {"sequence": multitask(make_sequence()), "schedule": "linear", "warmup": 0.0}
    rates = rates_of(make_run(span="sequence", **settings))
    assert len(rates) == 2 * -(-sum(SIZES) // 4)
    assert rates == rates_of(make_run(span="task", **settings))
