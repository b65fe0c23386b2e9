"""The benchmark of five NLP tasks: rows, subsets, the long-tail cut, evaluation, whole runs."""

from __future__ import annotations

import gc
import logging
import weakref
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from longtail.runs import session
from longtail.runs.build import build_run
from longtail.runs.config import resolve
from longtail.tasks import Segments
from longtail.tasks.examples import read
from longtail.training import Run, train
from longtail_bench.decoder.tokens import Bytes
from longtail_bench.nlp5 import Settings, build, evaluation
from longtail_bench.nlp5.cut import QuestionRows, long_tail, subset, units_of
from longtail_bench.nlp5.examples import Example
from longtail_bench.nlp5.table import AnswerTable
from longtail_bench.nlp5.text import tokenise, window


def text(ids: Sequence[int]) -> str:
    return Bytes().decode([list(ids)])[0]


def test_rows_are_context_question_answer_end() -> None:
    texts = tokenise([Example("Ada sat.", "Who sat?", ("Ada", "she"))], Bytes(), 100)
    assert text(texts.prompts[0]) == "Ada sat.\nWho sat?\n"
    assert texts.answers == [[*b"Ada", Bytes.end]]
    assert texts.truncated == 0


def test_long_contexts_are_cut_around_the_answer_and_counted() -> None:
    context = "x" * 50 + "ANSWER" + "y" * 50
    long = Example(context, "q", ("ANSWER",), 50)
    short = Example("ANSWER", "q", ("ANSWER",), 0)
    elsewhere = Example(context, "q", ("none",))
    texts = tokenise([long, short, elsewhere], Bytes(), 30)
    assert texts.truncated == 2
    assert text(texts.prompts[0]) == "x" * 7 + "ANSWER" + "y" * 7 + "\nq\n"
    assert text(texts.prompts[1]) == "ANSWER\nq\n"
    assert text(texts.prompts[2]) == "x" * 22 + "\nq\n"
    for prompt, answer in zip(texts.prompts, texts.answers, strict=True):
        assert len(prompt) + len(answer) <= 30


@pytest.mark.parametrize(
    ("start", "expected"), [(0, [0, 1, 2, 3]), (9, [6, 7, 8, 9]), (5, [3, 4, 5, 6])]
)
def test_a_window_stays_inside(start: int, expected: list[int]) -> None:
    assert window(list(range(10)), start, 1, 4) == expected


def test_an_answer_longer_than_a_row_is_refused() -> None:
    with pytest.raises(ValueError, match="max_tokens: 5, an answer has 7 tokens: 'ANSWER'"):
        tokenise([Example("", "q", ("ANSWER",))], Bytes(), 5)


def turns(dialogues: int, each: int) -> list[Example]:
    return [Example(str(i), "", ("",), group=str(i // each)) for i in range(dialogues * each)]


def test_a_subset_keeps_dialogues_whole() -> None:
    found = subset(turns(10, 3), 8, "woz test")
    assert [e.group for e in found[::3]] == [e.group for e in found[2::3]]
    assert len(found) == 6
    assert len(subset(turns(10, 3), 2, "")) == 3  # at least one
    assert subset(turns(2, 2), 0, "") == turns(2, 2)
    alone = [Example(str(i), "", ("",)) for i in range(40)]
    one, other = (subset(alone, 9, name) for name in ("sst train", "sst test"))
    assert len(one) == 9
    assert one != other
    assert one == sorted(one, key=lambda e: int(e.context))


def test_a_share_is_held_out_by_whole_dialogues() -> None:
    groups = [""] * 40 + [str(i // 3) for i in range(30)] + ["x"] * 6
    tasks = [list(range(40)), list(range(40, 70)), list(range(70, 76))]
    held, rest = QuestionRows.of(tasks, groups).split(5, 0.29)
    plain, others = Segments.from_lists(tasks).split(5, 0.29)
    assert plain.sizes.tolist() == [11, 8, 1]
    assert held.sizes.tolist() == [11, 6, 0]  # two dialogues of three turns; one of six is too long
    assert (held.sizes + rest.sizes).tolist() == [40, 30, 6]
    for ours, theirs in ((held, plain), (rest, others)):  # questions of their own: no difference
        assert ours.all_rows()[: ours.sizes[0]].equal(theirs.all_rows()[: theirs.sizes[0]])
    found = held.all_rows()[11:].tolist()
    assert found == sorted(found)
    assert [len(unit) for unit in units_of(found, groups)] == [3, 3]
    assert not {*held.all_rows().tolist()} & {*rest.all_rows().tolist()}
    again = QuestionRows.of(tasks, groups).split(6, 0.29)[0]
    assert again.all_rows()[11:].tolist() != found


def test_dialogues_stay_whole_where_tasks_are_chosen_or_moved_first() -> None:
    groups = [str(i // 3) for i in range(60)]
    rows = QuestionRows.of([list(range(30)), list(range(30, 60))], groups)
    wanted = rows.split(3, 0.4)[0].all_rows().tolist()
    assert [len(unit) for unit in units_of(wanted, groups)] == [3] * 8
    for found in (rows.select(np.array([0, 1])), rows.to("cpu")):
        assert found.split(3, 0.4)[0].all_rows().tolist() == wanted
    held = rows.select(np.array([1])).split(3, 0.4)[0].all_rows().tolist()
    assert min(held) >= 30
    assert [len(unit) for unit in units_of(held, groups)] == [3] * 4
    again = rows.split(3, 0.4)[1].split(3, 0.5)[0].all_rows().tolist()
    assert {len(unit) for unit in units_of(again, groups)} == {3}
    with pytest.raises(ValueError, match="different numbers of questions"):
        rows.split(torch.tensor([1, 2]), 0.4)


@pytest.mark.parametrize("method", ["finetune", "multitask"])
def test_held_out_turns_are_scored_with_those_before_them(method: str, monkeypatch: Any) -> None:
    """The first turn of each dialogue names a goal, and of later ones alone many name none."""
    run = miniature_run(method, **{"train.validation": 0.3})
    evaluate: Any = run.evaluate
    task = 0 if method == "multitask" else list(run.sequence.names).index("woz")
    held = run.sequence.validation(task)
    assert held is not None
    rows = read(held)[1].tolist()
    assert [evaluate.kinds[row] for row in rows].count("woz") == 18  # of 64
    right = [evaluate.examples[row].answers[0] for row in rows]
    monkeypatch.setattr(evaluate, "answers", lambda model, rows: [""] * len(rows))
    assert evaluate.validation(run.model, run.sequence, task) == 0
    monkeypatch.setattr(evaluate, "answers", lambda model, rows: right)
    assert evaluate.validation(run.model, run.sequence, task) == 1


def test_the_long_tail_uses_every_row_once() -> None:
    groups = [""] * 300 + [str(i // 4) for i in range(300)]
    train = [list(range(200)), list(range(300, 500))]
    test = [list(range(200, 300)), list(range(500, 600))]
    names, cut, tests = long_tail(41, ["sst", "woz"], train, test, groups, seed=3)
    assert (len(names), len(cut), len(tests)) == (41, 41, 41)
    assert sorted(row for part in cut for row in part) == sorted(train[0] + train[1])
    assert sorted(row for part in tests for row in part) == sorted(test[0] + test[1])
    for part in tests:
        assert part
        assert all(len(unit) in (1, 4) for unit in units_of(part, groups))
    sizes = np.array([len(part) for part in cut])
    assert sizes.max() >= 5 * np.median(sizes)  # a few large ones, many small ones
    assert long_tail(41, ["sst", "woz"], train, test, groups, 4)[0] != names


def test_large_tasks_are_drawn_early() -> None:
    places = []
    for seed in range(20):
        rows = [list(range(300))], [list(range(300, 400))]
        _, cut, _ = long_tail(40, ["sst"], *rows, [""] * 400, seed)
        places.append(int(np.argmax([len(part) for part in cut])))
    assert np.mean(places) < 8  # in any order it would be 20


def test_too_long_a_tail_is_refused() -> None:
    with pytest.raises(ValueError, match="long_tail: 9, sst has 4 train questions"):
        long_tail(9, ["sst"], [[0, 1, 2, 3]], [[4]], [""] * 5, 0)
    with pytest.raises(ValueError, match="long_tail: 3 tasks cannot be cut out of 5"):
        build(Settings(miniature=True, long_tail=3), 0)


def test_build_puts_the_tasks_in_order() -> None:
    made = build(Settings(miniature=True, order=("woz", "sst"), sizes=(10, 20), test_per_task=6), 0)
    assert made.sequence.names == ["woz", "sst"]
    assert made.sequence.train_sizes.tolist() == [10, 20]
    assert made.sequence.test_sizes.tolist() == [6, 6]
    examples = made.sequence.train(1)
    assert examples is not None
    inputs, rows = examples[torch.tensor([3])]
    ids, answer = inputs["ids"], inputs["answer"]
    row = ids.padded[0, : ids.lengths[0]].tolist()
    size = int(answer.lengths[0])
    assert row[-size:] == answer.padded[0, :size].tolist()
    assert not answer.padded[0, size:].any()
    assert made.evaluate is not None
    example = made.evaluate.examples[int(rows[0])]  # pyright: ignore[reportFunctionMemberAccess]
    assert text(row) == f"{example.context}\n{example.question}\n{example.answers[0]}"


def test_batches_come_in_a_few_widths() -> None:
    table = AnswerTable([[1] * 30, [2] * 90, [3] * 600], [[4], [5] * 9, [6] * 3])
    shapes = [table.stage(torch.tensor(rows))[0] for rows in ([0], [0, 1], [2])]
    assert shapes == [(32, 4), (128, 16), (1024, 4)]
    inputs, numbers = table.narrow(1, 3)[torch.tensor([1, 0])]
    assert numbers.tolist() == [2, 1]
    assert inputs["ids"].lengths.tolist() == [603, 99]
    assert inputs["ids"].padded[1].sum() == 90 * 2 + 9 * 5
    assert inputs["answer"].padded[0].tolist() == [6, 6, 6, *[0] * 13]


def test_missing_files_are_named(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"squad has no training file; put train-v1\.1\.json"):
        build(Settings(folder=str(tmp_path), model="no-such-model"), 0)


def test_truncation_is_reported(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        build(Settings(miniature=True, order=("squad",), max_tokens=45), 0)
    assert "squad: 64 of 64 train contexts are longer than 45 tokens" in caplog.text


class Oracle:
    """A generator that knows the answers of some tasks and says nonsense in others."""

    def __init__(self, evaluate: Any, knows: set[str]) -> None:
        self.by_prompt = {
            tuple(p): e.answers[0] if k in knows else "nonsense"
            for p, e, k in zip(evaluate.prompts, evaluate.examples, evaluate.kinds, strict=True)
        }

    def __call__(self, model: Any, prompts: Any, limit: int) -> list[list[int]]:
        return [list(self.by_prompt[tuple(prompt)].encode()) for prompt in prompts]


def test_evaluation_scores_each_task_by_its_own_measure() -> None:
    made = build(Settings(miniature=True), 0)
    evaluate: Any = made.evaluate
    model = made.make_model(0)
    evaluate._generator = Oracle(evaluate, {"squad", "woz", "sst"})
    found = evaluate(model, made.sequence, range(5))
    assert found["score"].tolist() == [1.0, 0.0, 1.0, 0.0, 1.0]
    assert found["unparsable"].tolist() == [0.0, 1.0, 0.0, 0.0, 0.0]
    assert evaluate(model, made.sequence, range(4, 5))["score"].tolist() == [1.0]
    cut = build(Settings(miniature=True, long_tail=20), 0)
    evaluate = cut.evaluate
    evaluate._generator = Oracle(evaluate, {"squad"})
    scores = evaluate(model, cut.sequence, range(20))["score"]
    expected = [float(name.startswith("squad")) for name in cut.sequence.names]
    assert scores.tolist() == expected


def miniature_run(method: str, **flags: Any) -> Run:
    small = {"data.miniature": True, "data.order": ["sst", "woz"], "data.test_per_task": 4}
    flags = {**small, "method": method, **flags}
    return build_run(resolve("nlp5", flags=flags))


METHODS = ["finetune", "ewc", "ewcpp", "reservoir", "derpp", "agem", "multitask"]


@pytest.mark.parametrize("method", METHODS)
def test_every_method_learns_the_miniature(method: str) -> None:
    run = miniature_run(method, **{"data.per_task": 8, "train.batch_size": 4})
    train(run)
    for name in ("score", "unparsable"):
        assert np.isfinite(run.matrices[name].last).all()


@pytest.mark.parametrize("method", ["ewc", "derpp"])
def test_nothing_keeps_a_finished_run(
    method: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Several runs of a language model in one process would fill a GPU."""
    watched: list[weakref.ref[Any]] = []

    def build_and_watch(*args: Any) -> Run:
        run = build_run(*args)
        parts = (run, run.model, run.method, run.optimizer, run.evaluate, *run.parameters)
        watched.extend(map(weakref.ref, parts))
        return run

    monkeypatch.setattr(session, "build_run", build_and_watch)
    # as on a GPU, where generation has a copy of the weights in half precision
    monkeypatch.setattr(evaluation, "on_device", lambda model: torch.device("cuda"))
    flags = {"data.miniature": True, "data.order": ["sst"], "data.test_per_task": 4}
    flags |= {"method": method, "data.per_task": 8}
    options = session.RunOptions(device="cpu", quiet=True)
    session.train_run(resolve("nlp5", flags=flags), tmp_path / "run", options)
    gc.collect()
    assert watched
    assert [alive for ref in watched if (alive := ref()) is not None] == []


def test_training_lowers_the_loss_of_answers() -> None:
    options = {"data.order": ["sst"], "data.per_task": 16, "train.batch_size": 16}
    run = miniature_run(
        "finetune", **options, **{"train.lr": 1e-2, "train.epochs": 30, "policy": "new"}
    )
    examples = run.sequence.train(0)
    assert examples is not None

    def loss() -> float:
        inputs, targets = examples[torch.arange(16)]
        with torch.no_grad():
            return run.sequence.objective.loss(run.model(inputs), targets).mean().item()

    before = loss()
    train(run)
    assert loss() < before / 2
