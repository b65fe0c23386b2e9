import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from longtail.metrics import ScoreMatrix, breakdown, curve, summary


def test_by_hand():
    """Three tasks with 1, 2 and 3 test examples; task 0 was best after task 1."""
    m = ScoreMatrix(test_sizes=[1, 2, 3], higher_is_better=True)
    m.record(after=0, scores={0: 0.5})
    m.record(after=1, scores={0: 0.75, 1: 1.0})
    m.record(after=2, scores={0: 0.25, 1: 0.5, 2: 1.0})
    assert summary(m) == {
        "RP": (1 * 0.25 + 2 * 0.5 + 3 * 1.0) / 6,
        "LP": (1 * 0.5 + 2 * 1.0 + 3 * 1.0) / 6,
        "BWT": (1 * (0.25 - 0.5) + 2 * (0.5 - 1.0)) / 3,
        "FGT": (1 * (0.75 - 0.25) + 2 * (1.0 - 0.5)) / 3,
    }
    after, rp = curve(m)
    assert after.tolist() == [0, 1, 2]
    assert rp.tolist() == [0.5, (0.75 + 2 * 1.0) / 3, (0.25 + 1 + 3) / 6]


def test_lower_is_better_takes_the_minimum():
    """An error that went 1 -> 0.5 -> 4: forgetting is negative, as in the paper's table."""
    m = ScoreMatrix(test_sizes=[1, 2, 3], higher_is_better=False)
    m.record(after=0, scores={0: 1.0})
    m.record(after=1, scores={0: 0.5, 1: 2.0})
    m.record(after=2, scores={0: 4.0, 1: 3.0, 2: 1.0})
    found = summary(m)
    assert found["FGT"] == (1 * (0.5 - 4.0) + 2 * (2.0 - 3.0)) / 3
    assert found["BWT"] == (1 * (4.0 - 1.0) + 2 * (3.0 - 2.0)) / 3


def naive(sizes, scores, better):
    """The paper's equations, entry by entry; ``scores[j, i]`` where evaluated."""
    T = len(sizes)
    total, part = sum(sizes), sum(sizes[:-1])
    rp = sum(n * scores[T - 1, i] for i, n in enumerate(sizes)) / total
    lp = sum(n * scores[i, i] for i, n in enumerate(sizes)) / total
    if T == 1:
        return {"RP": rp, "LP": lp, "BWT": 0.0, "FGT": 0.0}
    best = [better(scores[j, i] for j in range(i, T) if (j, i) in scores) for i in range(T)]
    bwt = sum(sizes[i] * (scores[T - 1, i] - scores[i, i]) for i in range(T - 1)) / part
    fgt = sum(sizes[i] * (best[i] - scores[T - 1, i]) for i in range(T - 1)) / part
    return {"RP": rp, "LP": lp, "BWT": bwt, "FGT": fgt}


@st.composite
def matrices(draw):
    T = draw(st.integers(1, 7))
    sizes = draw(st.lists(st.integers(1, 50), min_size=T, max_size=T))
    rows = [j for j in range(T) if j == T - 1 or draw(st.booleans())]
    score = st.floats(-100, 100)
    entries = {(i, i): draw(score) for i in range(T)}
    entries.update({(j, i): draw(score) for j in rows for i in range(j)})
    return sizes, rows, entries, draw(st.booleans()), draw(st.booleans())


@settings(deadline=None)
@given(matrices())
def test_equals_the_naive_sums(case):
    sizes, rows, entries, higher, split = case
    m = ScoreMatrix(test_sizes=sizes, higher_is_better=higher)
    for j in range(len(sizes)):
        seen = {i: entries[j, i] for i in range(j + 1)} if j in rows else {j: entries[j, j]}
        own = {j: seen.pop(j)} if split else {}  # a_jj and the row apart, in either order
        for part in (own, seen) if j % 2 else (seen, own):
            m.record(j, (list(part), list(part.values())))
    found = summary(m)
    for name, expected in naive(sizes, entries, max if higher else min).items():
        assert found[name] == pytest.approx(expected, abs=1e-9), name
    full = sorted({*rows, 0})
    after, rp = curve(m)
    assert after.tolist() == full
    for j, value in zip(full, rp, strict=True):
        expected = np.average([entries[j, i] for i in range(j + 1)], weights=sizes[: j + 1])
        assert value == pytest.approx(expected, abs=1e-9)


def test_missing_entries_are_named():
    m = ScoreMatrix(test_sizes=[1, 1, 1])
    m.record(0, {0: 0.5})
    m.record(2, {0: 0.5, 2: 0.5})
    with pytest.raises(ValueError, match="score of task 1 after task 1 is missing"):
        summary(m)
    m.record(1, {1: 0.5})
    with pytest.raises(ValueError, match="score of task 1 after task 2 is missing"):
        summary(m)
    m.record(2, {1: 0.5})
    assert summary(m)["RP"] == 0.5


@pytest.mark.parametrize(
    ("after", "scores", "message"),
    [
        (3, {0: 1.0}, "after: 3, there are 2"),
        (-1, {0: 1.0}, "after: -1"),
        (1, {2: 1.0}, "task: 2, there are 2"),
        (1, {-1: 1.0}, "task: -1"),
        (1, ([0, 1], [1.0]), "scores"),
        (1, ([0, 1], [[1.0, 2.0]]), "replicas"),
    ],
)
def test_mistakes_are_named(after, scores, message):
    m = ScoreMatrix(test_sizes=[1, 1])
    m.record(0, {0: 1.0})
    with pytest.raises(ValueError, match=message):
        m.record(after, scores)


def test_invalid_sizes():
    for sizes in ([], [0, 0], [3, -1]):
        with pytest.raises(ValueError, match="test_sizes"):
            ScoreMatrix(test_sizes=sizes)


def test_nan_is_seen_where_it_matters():
    m = ScoreMatrix(test_sizes=[1, 1, 1])
    m.record(0, {0: 0.5})
    m.record(1, {0: math.nan, 1: 0.5})
    m.record(2, {0: 0.5, 1: 0.5, 2: 0.5})
    found = summary(m)
    assert math.isnan(found["FGT"])  # the best score of task 0 is not known
    assert (found["RP"], found["LP"], found["BWT"]) == (0.5, 0.5, 0.0)
    m.record(2, {1: math.nan})
    assert math.isnan(summary(m)["RP"])


def test_one_task_has_nothing_to_forget():
    m = ScoreMatrix(test_sizes=[7])
    m.record(0, {0: 0.5})
    assert summary(m) == {"RP": 0.5, "LP": 0.5, "BWT": 0.0, "FGT": 0.0}


def test_tasks_without_tests_have_no_weight():
    m = ScoreMatrix(test_sizes=[2, 0, 2])
    m.record(0, {0: 1.0})
    m.record(2, {0: 0.5, 1: math.nan, 2: 1.0})
    assert summary(m) == {"RP": 0.75, "LP": 1.0, "BWT": -0.5, "FGT": 0.5}


def test_scores_before_a_task_is_learned_do_not_count_as_forgetting():
    m = ScoreMatrix(test_sizes=[1, 1])
    m.record(0, {0: 0.5, 1: 0.9})
    m.record(1, {0: 0.5, 1: 0.4})
    assert summary(m)["FGT"] == 0.0
    assert m.best[1] == 0.4


@pytest.mark.parametrize("lead", [(), (3,), (2, 3)])
def test_replicas_are_matrices_side_by_side(lead):
    T, rng = 6, np.random.default_rng(0)
    sizes = rng.integers(1, 9, T)
    scores = rng.normal(size=(T, *lead, T))
    stack = ScoreMatrix(sizes)
    for j in range(T):
        stack.record(j, (np.arange(j + 1), torch.tensor(scores[j, ..., : j + 1])))
    results = [
        summary(stack),
        curve(stack)[1],
        breakdown(stack, sizes)["tail"],
    ]
    for place in np.ndindex(*lead):
        m = ScoreMatrix(sizes)
        for j in range(T):
            m.record(j, dict(enumerate(scores[j][place][: j + 1])))
        for name, value in summary(m).items():
            assert np.asarray(results[0][name])[place] == pytest.approx(value)
            assert np.asarray(results[2][name])[place] == pytest.approx(
                breakdown(m, sizes)["tail"][name]
            )
        assert results[1][place] == pytest.approx(curve(m)[1])
    assert bool(stack.rows) == (not lead)


def test_state_goes_through_a_snapshot(tmp_path):
    rng = np.random.default_rng(1)

    def fill(m, tasks):
        for j in tasks:
            m.record(j, {j: rng.random()})
            if j % 2:
                m.record(j, (np.arange(j), rng.random(j)))

    m = ScoreMatrix([3, 1, 2, 5, 4, 4])
    fill(m, range(4))
    torch.save(m.state_dict(), tmp_path / "m.pt")
    other = ScoreMatrix([3, 1, 2, 5, 4, 4])
    other.load_state_dict(torch.load(tmp_path / "m.pt", weights_only=True))
    state = rng.bit_generator.state
    fill(m, [4, 5])
    rng.bit_generator.state = state
    fill(other, [4, 5])
    assert summary(m) == summary(other)
    assert [a.tolist() for a in curve(m)] == [a.tolist() for a in curve(other)]
    assert all(np.array_equal(m.rows[j][1], other.rows[j][1]) for j in m.rows)
    empty = ScoreMatrix([1, 2])
    empty.load_state_dict(ScoreMatrix([1, 2]).state_dict())
    empty.record(0, {0: 1.0})
    with pytest.raises(ValueError, match="6 tasks were saved, here are 2"):
        empty.load_state_dict(m.state_dict())


def test_breakdown_by_size():
    T = 21
    train = np.array([0, *range(1, T)])  # task 0 is zero-shot, the last is the largest
    m = ScoreMatrix(np.full(T, 2), trained=train > 0)
    for j in range(T - 1):
        m.record(j, {j: 1.0})
    m.record(T - 1, {i: i / 100 for i in range(T)})
    found = breakdown(m, train)
    assert {name: group["tasks"] for name, group in found.items()} == {
        "head": 2, "body": 8, "tail": 10, "zero_shot": 1
    }  # fmt: skip
    assert found["head"]["RP"] == pytest.approx(0.195)
    assert found["head"]["train_examples"] == 39
    assert found["head"]["BWT"] == pytest.approx(0.19 - 1)  # the last task is not in BWT
    assert found["tail"]["RP"] == pytest.approx(0.055)
    assert found["zero_shot"]["RP"] == 0.0
    weights = [group["test_examples"] for group in found.values()]
    assert np.average([g["RP"] for g in found.values()], weights=weights) == pytest.approx(
        summary(m)["RP"]
    )
    assert set(breakdown(ScoreMatrixOf([1.0]), [5])) == {"head"}
    with pytest.raises(ValueError, match="train_sizes: 3 entries for 21"):
        breakdown(m, [1, 2, 3])


def ScoreMatrixOf(final: list[float]) -> ScoreMatrix:
    m = ScoreMatrix(np.ones(len(final)))
    for j in range(len(final)):
        m.record(j, {j: final[j]})
    m.record(len(final) - 1, dict(enumerate(final)))
    return m


def test_a_score_that_is_entered_again_takes_the_place_of_the_first() -> None:
    """As in a loop that scores a task alone and then all tasks so far."""
    m = ScoreMatrix([10, 10, 10])
    m.record(0, {0: 0.9})
    m.record(0, {0: 0.1})
    m.record(1, {1: 0.5})
    m.record(1, {0: 0.8, 1: 0.6})
    m.record(1, {0: 0.2})
    m.record(2, ([0, 1, 2], [0.1, 0.5, 0.7]))
    once = ScoreMatrix([10, 10, 10])
    once.record(0, {0: 0.1})
    once.record(1, {0: 0.2, 1: 0.6})
    once.record(2, {0: 0.1, 1: 0.5, 2: 0.7})
    assert summary(m) == summary(once)
    assert summary(m)["FGT"] == pytest.approx(0.1)


def test_replicas_refuse_a_second_score_since_the_first_may_have_been_the_best() -> None:
    m = ScoreMatrix([10, 10])
    m.record(0, ([0], np.array([[0.9], [0.8]])))
    m.record(1, ([0, 1], np.array([[0.5, 0.6], [0.5, 0.6]])))
    before = summary(m)
    with pytest.raises(ValueError, match="task 0 has scores from after task 1 already"):
        m.record(1, ([0], np.array([[0.9], [0.9]])))
    assert all((summary(m)[name] == before[name]).all() for name in before)


@pytest.mark.parametrize(
    ("after", "scores", "message"),
    [
        (0, {1.9: 0.7}, "Invalid tasks"),
        (0, {"0": 0.7}, "Invalid tasks"),
        (1, ([0, 0], [0.1, 0.2]), "one of them stands there twice"),
        (0.5, {0: 0.1}, "Invalid after: 0.5"),
        (1.0, ([1], [0.1]), "Invalid after: 1.0"),
        (0, [0.1, 0.2, 0.3], "neither a dict nor"),
    ],
)
def test_what_is_no_index_of_a_task_is_refused_and_leaves_nothing(after, scores, message) -> None:
    m = ScoreMatrix([10, 10])
    with pytest.raises(ValueError, match=message):
        m.record(after, scores)
    assert np.isnan(m.last).all()
    assert not m.rows


def test_sizes_and_choices_are_not_rounded() -> None:
    for sizes in ([1.5, 2.5], ["a", "b"], [float("nan"), 1.0]):
        with pytest.raises(ValueError, match="Invalid test_sizes"):
            ScoreMatrix(sizes)
    m = ScoreMatrix([10.0, 10.0])
    m.record(0, {0: 0.5})
    for chosen in ([1], np.array([0, 1]), np.array([True])):
        with pytest.raises(ValueError, match="Invalid chosen"):
            summary(m, chosen)
