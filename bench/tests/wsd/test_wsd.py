"""WSD-CL: words become tasks as in the paper, pairs are put together right, targets are scored."""

import json
import math
from pathlib import Path

import numpy as np
import pytest
import torch

from longtail.cli import main
from longtail.replicas import build_model
from longtail.tasks import multitask, validation_share
from longtail.tasks.examples import Packable
from longtail.training.evaluation import evaluate_validation
from longtail_bench import wsd
from longtail_bench.encoder.fused import packed_rows
from longtail_bench.wsd.baselines import baselines
from longtail_bench.wsd.corpus import TaggedCorpus
from longtail_bench.wsd.evaluation import TOKENS, Evaluation, best_is_gold
from longtail_bench.wsd.miniature import miniature, sentences
from longtail_bench.wsd.pairs import BLANK, PairRows, PairTable
from longtail_bench.wsd.prepared import prepare
from longtail_bench.wsd.tasks import word_tasks
from longtail_bench.wsd.tokens import HashingTokenizer
from longtail_bench.wsd.wordnet import Sense

CORPUS = sentences()
PREPARED = miniature()
TABLE = PairTable(PREPARED)


def expected_pair(target: int, sense: int) -> list[int]:
    """The tokens of a pair, laid out word by word."""
    one = HashingTokenizer()
    words = CORPUS.sentences[CORPUS.sentence[target]]
    place = CORPUS.position[target]
    found = CORPUS.senses[CORPUS.task[target]][sense]
    parts = [" ".join(words[:place]), words[place], " ".join(words[place + 1 :])]
    before, word, after = (ids for ids, _ in one.encode(parts))
    gloss = one.encode([f"{found.lemma.replace('_', ' ')} : {found.gloss}"])[0][0]
    return [1, *before, 3, *word, 3, *after, 2, *gloss, 2]


def test_a_pair_is_the_marked_sentence_and_the_gloss() -> None:
    for target in (0, 17, 200, len(CORPUS.task) - 1):
        first, last = TABLE.targets.first_pair[target : target + 2]
        assert last - first == len(CORPUS.senses[CORPUS.task[target]])
        ids, labels = TABLE[torch.arange(first, last)]
        for sense in range(last - first):
            wanted = expected_pair(target, sense)
            assert ids.padded[sense, : len(wanted)].tolist() == wanted
            assert int(ids.lengths[sense]) == len(wanted)
            assert not ids.padded[sense, len(wanted) :].any()
        assert np.flatnonzero(labels).tolist() == list(CORPUS.gold[target])


def test_the_rows_that_a_task_trains_on_are_its_pairs() -> None:
    """Steps are counted from them; the sizes of tasks are numbers of targets."""
    words = word_tasks(PREPARED, 0)
    rows = [0 if (pairs := words.train(i)) is None else len(pairs) for i in range(len(words))]
    assert words.trained_rows.tolist() == rows
    assert (words.trained_rows > words.train_sizes).any()
    assert multitask(words).trained_rows.tolist() == [sum(rows)] + [0] * (len(words) - 1)


def test_batches_have_one_of_a_few_widths() -> None:
    length = TABLE.targets.length
    narrow, wide = (torch.tensor([int(f(length))]) for f in (np.argmin, np.argmax))
    assert TABLE[narrow][0].padded.shape[-1] < TABLE[wide][0].padded.shape[-1]
    shape, numbers = TABLE.stage(torch.stack((narrow, wide)))
    assert shape.width in TABLE.widths
    assert TABLE.assemble(shape, numbers)[0].padded.shape == (2, 1, shape.width)


def test_a_packed_batch_knows_how_many_tokens_it_has() -> None:
    index = torch.tensor([[0, 5, 9, BLANK], [7, 8, BLANK, BLANK]])
    shape, numbers = TABLE.stage(index, packed=1)
    length = TABLE.targets.length
    most = max(int(length[[0, 5, 9]].sum()) + 1, int(length[[7, 8]].sum()) + 2)
    assert shape == (TABLE.widths[-1], packed_rows(most))
    ids, labels = TABLE.assemble(shape, numbers)
    assert isinstance(ids, Packable)
    assert ids.room == shape.room >= int(ids.lengths.sum(-1).max())
    assert np.array_equal(TABLE.sizes(index), ids.lengths)
    wanted, gold = TABLE[torch.tensor([0, 5, 9])]
    assert torch.equal(ids.padded[0, :3, : wanted.padded.shape[1]], wanted.padded)
    assert torch.equal(labels[0, :3], gold)
    blank = ids.padded[index == BLANK]
    assert (ids.lengths[index == BLANK] == 1).all()
    assert (blank[:, 0] == PREPARED.template.first).all()
    assert not blank[:, 1:].any()
    assert not labels[index == BLANK].any()


def test_packed_batches_have_few_rooms_however_long_their_pairs_are() -> None:
    rng = np.random.default_rng(0)
    for longest in (96, 512):
        table = PairTable(PREPARED, longest)
        for rows in (12, 64):
            sizes = rng.integers(1, longest + 1, (4000, rows))
            rooms = {table.room(each, 1) for each in sizes} | {table.room(sizes[:1] * 0 + 1, 1)}
            assert len(rooms) <= 20
            assert all(table.room(each, 1) >= each.sum() for each in sizes)


def test_a_view_fills_up_with_blanks_not_with_its_own_rows() -> None:
    for numbers in (np.array([4, 6]), np.array([[4, 6], [8, 2]])):
        rows = PairRows(TABLE, numbers)
        table, found = rows.locate(torch.tensor([1, 0, rows.blank]))
        assert table is TABLE
        wanted = np.concatenate((numbers[..., ::-1], np.full_like(numbers[..., :1], BLANK)), -1)
        assert found.tolist() == wanted.tolist()
    assert len(TABLE) == TABLE.targets.first_pair[-1]  # the blank is none of the pairs


def test_a_long_sentence_is_cut_around_its_target() -> None:
    table = PairTable(PREPARED, longest=24)
    assert table.targets.cut > 0
    assert table.targets.length.max() <= 24
    ids, _ = table[torch.arange(len(table))]
    marks = ids.padded == PREPARED.template.mark
    assert (marks.sum(1) == 2).all()  # the target is in every window
    _, start, stop = np.array(PREPARED.targets[:, 1:]).T
    inside = marks.int().argmax(1) + 1
    for target in range(0, len(start), 31):
        pair = int(table.targets.first_pair[target])
        sentence = PREPARED.targets[target, 1]
        whole = PREPARED.sentences[PREPARED.sentence_ends[sentence] :]
        token = ids.padded[pair, inside[pair]].item()
        assert token == whole[start[target]]
        assert stop[target] > start[target]


def test_a_target_longer_than_its_window_keeps_its_beginning() -> None:
    """`of-a-b-...` is one word of the corpus and many tokens."""
    one = np.zeros(1, np.int32)
    letters = [chr(ord("a") + i) for i in range(26)]
    sentence = ["It", "has", "-".join(letters), "in", "it"]
    sense = Sense("x", "1:00:00::", 1, 0, "a word")
    corpus = TaggedCorpus(["x"], [[sense]], [sentence], one, one, one + 2, [(0,)])
    prepared = prepare(corpus, HashingTokenizer())
    ids, _ = PairTable(prepared, longest=32)[torch.arange(1)]
    row = ids.padded[0, : int(ids.lengths[0])].tolist()
    assert len(row) == 32
    word, gloss = (found for found, _ in HashingTokenizer().encode([sentence[2], "x : a word"]))
    room = 32 - 5 - len(gloss)
    assert len(word) > room
    mark = prepared.template.mark
    assert row == [1, mark, *word[:room], mark, 2, *gloss, 2]


def test_tasks_are_split_nine_to_one_and_ordered_by_size() -> None:
    words = word_tasks(PREPARED, seed=0)
    total = np.bincount(PREPARED.targets[:, 0])[words.lemma_of_task]
    assert words.train_sizes.tolist() == [math.floor(0.9 * n) for n in total]
    assert (words.train_sizes + words.test_sizes == total).all()
    assert (words.train_sizes[total == 1] == 0).all()
    assert words.train(int(np.flatnonzero(total == 1)[0])) is None
    i = int(words.train_sizes.argmax())
    part = words.train(i)
    assert part is not None
    assert len(part) == words.train_sizes[i] * words.senses[i]  # rows are pairs
    orders = [word_tasks(PREPARED, seed=s).names for s in range(30)]
    places = np.mean([np.argsort(np.argsort(o)) * 0 + [o.index(n) for n in words.names]
                      for o in orders], axis=0)  # fmt: skip
    assert np.corrcoef(places, total)[0, 1] < -0.5  # large tasks tend to come early


def test_fewer_tasks_are_the_first_and_a_cap_keeps_tasks_and_tests() -> None:
    whole = word_tasks(PREPARED, seed=3)
    few, capped = word_tasks(PREPARED, seed=3, tasks=9), word_tasks(PREPARED, seed=3, cap=4)
    assert few.names == whole.names[:9]
    assert capped.names == whole.names
    assert capped.train_sizes.tolist() == np.minimum(whole.train_sizes, 4).tolist()
    every = range(len(whole))
    assert (capped.targets("test", every) == whole.targets("test", every)).all()
    small = word_tasks(PREPARED, seed=3, test_cap=1)
    assert small.test_sizes.max() == 1
    assert set(small.targets("test", every)) <= set(whole.targets("test", every))
    kept = capped.targets("train", every)
    assert set(kept) <= set(whole.targets("train", every))


def test_validation_holds_out_targets_with_all_their_pairs() -> None:
    words = word_tasks(PREPARED, seed=0)
    seeds = torch.tensor([4, 9])
    shared = validation_share(words, seeds, 0.2)
    i = int(words.train_sizes.argmax())
    held, trained = shared.validation(i), shared.train(i)
    assert held is not None
    assert trained is not None
    assert len(held) == math.floor(0.2 * words.train_sizes[i]) * words.senses[i]
    assert len(held) + len(trained) == words.train_sizes[i] * words.senses[i]
    for replica in range(2):
        assert not set(held.numbers[replica]) & set(trained.numbers[replica])
    assert (held.numbers[0] != held.numbers[1]).any()
    assert trained[torch.zeros(2, 5, dtype=torch.int64)][1].shape == (2, 5)


def test_the_best_candidate_of_each_segment_decides() -> None:
    scores = torch.tensor([0.1, 0.9, 3.0, 3.0, 2.0, math.nan, math.nan])
    gold = torch.tensor([False, True, False, True, False, True, False])
    found = best_is_gold(scores, gold, torch.tensor([2, 3, 2]))
    assert found[:2].tolist() == [1.0, 0.0]  # of equals the first is taken
    assert found[2].isnan()


class Oracle(torch.nn.Module):
    """Scores a pair by a table, looked up by its tokens."""

    def __init__(self, sign: float) -> None:
        super().__init__()
        ids, labels = TABLE[torch.arange(len(TABLE))]
        rows = zip(ids.padded.tolist(), ids.lengths.tolist(), labels.tolist(), strict=True)
        self.known = {tuple(row[:n]): sign * label for row, n, label in rows}

    def forward(self, inputs):
        rows = zip(inputs.padded.tolist(), inputs.lengths.tolist(), strict=True)
        return torch.tensor([self.known[tuple(row[:n])] for row, n in rows])


def test_evaluation_scores_targets_not_pairs() -> None:
    words = word_tasks(PREPARED, seed=0)
    every = range(len(words))
    right = Evaluation()(Oracle(1.0), words, every)
    assert right.shape == (len(words),)
    assert (right == 1).all()
    wrong = Evaluation()(Oracle(-1.0), words, every).numpy()
    assert (wrong[words.senses == 1] == 1).all()  # one candidate cannot be missed
    assert (wrong[words.senses > 1] == 0).all()
    one = [Evaluation()(Oracle(-1.0), words, range(i, i + 1)).item() for i in (0, 5, 40)]
    assert one == wrong[[0, 5, 40]].tolist()


def test_the_union_of_all_tasks_is_scored_once() -> None:
    """20,399 tasks follow the one that trains, and nothing changes in them."""
    words = word_tasks(PREPARED, seed=0)
    union, wrong, evaluation = multitask(words), Oracle(-1.0), Evaluation()
    first = evaluation(wrong, union, range(1))
    wanted = Evaluation()(wrong, words, range(len(words)))
    wrong.forward = None  # pyright: ignore[reportAttributeAccessIssue]
    assert torch.equal(first, wanted[:1])
    assert torch.equal(evaluation(wrong, union, range(3, 4)), wanted[3:4])
    assert torch.equal(evaluation(wrong, union, range(20)), wanted[:20])
    right = Oracle(1.0)
    assert (evaluation(right, union, range(5, 6)) == 1).all()  # another model, as after a resume
    right.known = Oracle(-1.0).known
    assert torch.equal(evaluation(right, union, range(1)), wanted[:1])  # it has learned again


def test_the_union_is_validated_where_its_first_task_holds_nothing_out() -> None:
    words = validation_share(word_tasks(PREPARED, seed=0), 0)
    held = words.segments("validation")
    assert held is not None
    assert held.sizes[0] == 0 < held.sizes.sum()
    assert evaluate_validation(Oracle(1.0), multitask(words), Evaluation()).mean == 1
    assert evaluate_validation(Oracle(-1.0), multitask(words), Evaluation()).mean == 0


def test_the_union_of_what_is_held_out_is_pairs_not_targets() -> None:
    words = validation_share(word_tasks(PREPARED, seed=0), 0, 0.2)
    held = multitask(words).validation(0)
    parts = [words.validation(i) for i in range(len(words))]
    assert isinstance(held, PairRows)
    assert held.numbers.tolist() == [n for part in parts if part for n in part.numbers.tolist()]
    nothing = validation_share(word_tasks(PREPARED, seed=0), 0, 1e-3)
    assert multitask(nothing).validation(0) is None


def test_a_stack_scores_as_its_members_do() -> None:
    settings = wsd.Settings(miniature=True, tasks=6)
    benchmark = wsd.build(settings, 0)
    words = validation_share(benchmark.sequence, torch.tensor([1, 2]), 0.3)
    stack = build_model(benchmark.make_model, [1, 2], 1)
    scores = benchmark.evaluate(stack, words, range(6))
    held = benchmark.evaluate.validation(stack, multitask(words), 0)
    assert scores.shape == (1, 2, 6)
    for place, seed in enumerate((1, 2)):
        alone = build_model(benchmark.make_model, seed)
        own = validation_share(benchmark.sequence, seed, 0.3)
        assert torch.equal(benchmark.evaluate(alone, own, range(6)), scores[0, place])
        assert torch.equal(benchmark.evaluate.validation(alone, multitask(own), 0), held[0, place])


def test_validation_takes_batches_of_few_tokens(monkeypatch) -> None:
    """A large word's pairs at once, of all replicas, take tens of gigabytes."""
    benchmark = wsd.build(wsd.Settings(miniature=True, tasks=6), 0)
    words = validation_share(benchmark.sequence, torch.tensor([1, 2]), 0.3)
    stack = build_model(benchmark.make_model, [1, 2], 1)
    whole = benchmark.evaluate.validation(stack, multitask(words), 0)
    monkeypatch.setitem(TOKENS, "cpu", 256)
    seen = []
    stack.register_forward_pre_hook(lambda _, given: seen.append(given[0].padded.numel()))
    assert torch.equal(benchmark.evaluate.validation(stack, multitask(words), 0), whole)
    assert max(seen) <= 256
    assert len(seen) > 3


def test_baselines_by_hand() -> None:
    words = word_tasks(PREPARED, seed=0)
    found = baselines(words)
    test = words.targets("test", range(len(words)))
    chance = [len(CORPUS.gold[t]) / len(CORPUS.senses[CORPUS.task[t]]) for t in test]
    assert found["chance"]["RP"] == pytest.approx(np.mean(chance))
    first = []
    for t in test:
        senses = CORPUS.senses[CORPUS.task[t]]
        best = max(range(len(senses)), key=lambda k: (senses[k].count, -senses[k].number))
        first.append(best in CORPUS.gold[t])
    assert found["wordnet_first_sense"]["RP"] == pytest.approx(np.mean(first), abs=0.03)
    common = []
    for i in range(len(words)):
        gold = [g for t in words.targets("train", range(i, i + 1)) for g in CORPUS.gold[t]]
        counts = np.bincount(gold, minlength=words.senses[i])
        best = np.flatnonzero(counts == counts.max())
        for t in words.targets("test", range(i, i + 1)):
            common.append(np.isin(best, CORPUS.gold[t]).mean())
    assert found["most_frequent_sense"]["RP"] == pytest.approx(np.mean(common))
    assert found["most_frequent_sense"]["polysemous"] < found["most_frequent_sense"]["RP"]


def test_frozen_embeddings_do_not_train() -> None:
    make = wsd.build(wsd.Settings(miniature=True, freeze_embeddings=True), 0).make_model
    frozen = [n for n, p in make(0).named_parameters() if not p.requires_grad]
    assert sorted(n.rpartition(".")[2] for n in frozen) == [
        "position_table",
        "type_table",
        "word_table",
    ]


@pytest.mark.parametrize("method", ["finetune", "reservoir", "ewc", "multitask"])
def test_a_run_of_the_miniature_writes_its_scores(method: str, tmp_path: Path) -> None:
    out = str(tmp_path / "run")
    small = ["--tasks", "5", "--cap", "4", "--epochs", "2", "--lr", "1e-3", "--validation", "0.3"]
    command = ["run", "wsd", "--miniature", "--method", method, *small, "--out", out, "--quiet"]
    assert main(command) == 0
    found = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert 0 <= found["RP"] <= 1
    assert set(found["baselines"]) == {"chance", "most_frequent_sense", "wordnet_first_sense"}
    assert found["polysemous"]["RP"] <= found["RP"]
    assert found["late"]["points"] >= 1
