"""WSD-CL before any tokeniser: its tasks and candidates, and the facts that make it the paper's."""

from pathlib import Path

import numpy as np
import pytest

from bench_helpers.wsd_files import FACTS, TAG_FILE, TAGS, write_files
from longtail_bench.wsd.corpus import (
    PAPER_FACTS,
    departure,
    differing,
    facts,
    read_corpus,
)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    write_files(tmp_path, monkeypatch)
    return tmp_path


def test_facts_differ_beyond_the_decimals_the_paper_gives() -> None:
    assert differing({**PAPER_FACTS, "mean_senses": 2.838129, "mean_train_targets": 9.26}) == []
    found = {**PAPER_FACTS, "mean_senses": 2.83, "tasks": 20398}
    assert differing(found) == ["tasks", "mean_senses"]


def test_words_are_tasks_and_all_their_senses_candidates(folder: Path) -> None:
    corpus = read_corpus(folder / "semcor3.0", folder / "wordnet")
    assert corpus.lemmas == ["cat", "mouse"]
    assert [len(senses) for senses in corpus.senses] == [1, 3]
    assert corpus.gold == [(0,), (0, 1), (1,), (0,)]
    found = facts(corpus.lemmas, corpus.task, np.array([1, 3]))
    assert {name: found[name] for name in FACTS} == FACTS
    assert (found["largest_task"], found["largest_task_train"]) == ("mouse", 2)


def test_a_sense_that_wordnet_lacks_is_named_with_file_and_line(folder: Path) -> None:
    path = folder / TAG_FILE
    path.write_text(TAGS.replace("wnsn=1 lexsn=1:05:00::>Cats", "wnsn=7 lexsn=1:99:00::>Cats"))
    with pytest.raises(ValueError, match=r"brown1/tagfiles/br-a01, line 5: sense 7 .* of 'cat'"):
        read_corpus(folder / "semcor3.0", folder / "wordnet")


def test_another_data_set_than_the_papers_is_said(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    places = folder / "semcor3.0", folder / "wordnet"
    assert departure(read_corpus(*places)) == ""
    assert capsys.readouterr().err == ""
    (folder / TAG_FILE).write_text(TAGS.replace("wnsn=4 lex", "wnsn=0 lex"))
    corpus = read_corpus(*places, warn=False)
    assert capsys.readouterr().err == ""
    assert read_corpus(*places).files == 1
    said = capsys.readouterr().err
    assert said.startswith(f"longtail: {places[0]} is not the paper's data set: ")
    assert "targets is 3, expected 4; it has 1 of SemCor's 352 tag files" in said
    assert departure(corpus) in said
    assert said.count("\n") == 1
