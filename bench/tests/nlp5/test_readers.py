"""The five tasks' published forms, on small files written here; real ones where they are at hand.

LONGTAIL_NLP5 names a folder with the real slices; without it those tests are passed over.
"""

from __future__ import annotations

import argparse
import io
import json
import os
import random
import tarfile
from pathlib import Path
from typing import Any

import pytest

from longtail_bench.downloads import DownloadError, Remote
from longtail_bench.nlp5 import files as nlp5_files
from longtail_bench.nlp5 import urls as nlp5_sources
from longtail_bench.nlp5.miniature import miniature
from longtail_bench.nlp5.readers import (
    squad as nlp5_squad,
)
from longtail_bench.nlp5.readers import (
    srl as nlp5_srl,
)
from longtail_bench.nlp5.readers import (
    sst as nlp5_sst,
)
from longtail_bench.nlp5.readers import (
    wikisql as nlp5_wikisql,
)
from longtail_bench.nlp5.readers import (
    woz as nlp5_woz,
)
from longtail_bench.nlp5.scores import logical_form, parse_sql, same_query, score

REAL = os.environ.get("LONGTAIL_NLP5", "")
real = pytest.mark.skipif(not REAL, reason="LONGTAIL_NLP5 does not name the real slices")


def write(path: Path, content: Any) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(content if isinstance(content, str) else json.dumps(content), encoding="utf-8")
    return path


def paragraph(**qa: Any) -> dict[str, Any]:
    return {"data": [{"title": "t", "paragraphs": [{"context": "Ada met Ada.", "qas": [qa]}]}]}


def test_squad_finds_the_answer_it_was_told(tmp_path: Path) -> None:
    answers = [{"text": "Ada", "answer_start": 8}, {"text": "Ada", "answer_start": 0}]
    path = write(tmp_path / "train-v1.1.json", paragraph(question=" Whom? ", answers=answers))
    (found,) = nlp5_squad.read(path)
    assert (found.question, found.answers, found.at) == ("Whom?", ("Ada",), 8)


def test_squad_mends_a_wrong_place(tmp_path: Path) -> None:
    answers = [{"text": "met", "answer_start": 5}]
    path = write(tmp_path / "a.json", paragraph(question="What?", answers=answers))
    assert nlp5_squad.read(path)[0].at == 4


def test_squad_as_paragraphs(tmp_path: Path) -> None:
    qas = [{"question": "Who?", "answer": "Ada"}]
    (found,) = nlp5_squad.read(write(tmp_path / "a.json", [{"context": "Ada sat.", "qas": qas}]))
    assert (found.question, found.answers, found.at) == ("Who?", ("Ada",), 0)


def test_squad_names_what_is_damaged(tmp_path: Path) -> None:
    path = write(tmp_path / "a.json", paragraph(answers=[]))
    with pytest.raises(
        ValueError, match=r"a\.json, article 0, paragraph 0, question 0: .*question"
    ):
        nlp5_squad.read(path)
    with pytest.raises(ValueError, match=r"b\.json:2: not JSON"):
        nlp5_squad.read(write(tmp_path / "b.json", '{"data":\n oops}'))
    with pytest.raises(ValueError, match=r"c\.json is not SQuAD"):
        nlp5_squad.read(write(tmp_path / "c.json", {"rows": []}))
    empty = paragraph(question="Who?", answers=[{"text": " ", "answer_start": 0}])
    impossible = paragraph(question="Why?", answers=[], is_impossible=True)  # of SQuAD 2.0
    for content in (empty, impossible):
        with pytest.raises(ValueError, match="question 0: a question without an answer"):
            nlp5_squad.read(write(tmp_path / "d.json", content))
    wrong = paragraph(question="Who?", answers=[])
    wrong["data"][0]["paragraphs"][0]["context"] = 5
    with pytest.raises(ValueError, match="question 0: the context is 5, no text"):
        nlp5_squad.read(write(tmp_path / "e.json", wrong))
    with pytest.raises(ValueError, match=r"f\.json: not JSON that can be read"):
        nlp5_squad.read(write(tmp_path / "f.json", "[" * 100_000))


NUMBERS = {"sel": 0, "agg": 3, "conds": [[1, 0, 3], [2, 1, "a  b"]]}
NAMES = {"sel": "Pos", "agg": "count", "conds": [["No.", "=", "3"], ["Team", ">", "a b"]]}


def wikisql(sql: Any) -> str:
    return json.dumps({"table_id": "1-1", "question": "How  many?", "sql": sql}) + "\n"


def test_wikisql_by_number_and_by_name_say_the_same(tmp_path: Path) -> None:
    table = {"id": "1-1", "header": ["Pos", "No.", "Team"]}
    write(tmp_path / "train.tables.jsonl", json.dumps(table) + "\n")
    by_number = nlp5_wikisql.read(write(tmp_path / "train.jsonl", wikisql(NUMBERS)))
    by_name = nlp5_wikisql.read(write(tmp_path / "dev.jsonl", wikisql(NAMES)))
    assert by_number[0].answers == by_name[0].answers
    assert by_name[0].answers == ("SELECT COUNT Pos FROM table WHERE No. = 3 AND Team > a b",)
    assert by_number[0].columns == ("Pos", "No.", "Team")
    assert by_name[0].columns == ("No.", "Pos", "Team")  # what the questions name
    assert by_number[0].context.startswith("The table has columns Pos, No., Team and key words")
    assert by_number[0].context.endswith("-- How many?")


def test_wikisql_names_what_is_damaged(tmp_path: Path) -> None:
    good = wikisql(NAMES)
    with pytest.raises(ValueError, match=r"a\.jsonl:2: not JSON"):
        nlp5_wikisql.read(write(tmp_path / "a.jsonl", good + '{"table_id": \n'))
    with pytest.raises(
        ValueError, match=r"b\.jsonl:1: column 1 is a number and the file of tables"
    ):
        nlp5_wikisql.read(write(tmp_path / "b.jsonl", wikisql(NUMBERS)))
    with pytest.raises(ValueError, match=r"c\.jsonl:1: 'LAST' is none of MAX, MIN"):
        nlp5_wikisql.read(write(tmp_path / "c.jsonl", wikisql({**NAMES, "agg": "LAST"})))
    for number in (-1, 6):
        with pytest.raises(ValueError, match=rf"d\.jsonl:1: {number} is none of MAX, MIN"):
            nlp5_wikisql.read(write(tmp_path / "d.jsonl", wikisql({**NAMES, "agg": number})))


def test_sst(tmp_path: Path) -> None:
    text = 'label,sentence\n1,"Fine,  and ""good""."\n0,Bad.\n'
    fine, bad = nlp5_sst.read(write(tmp_path / "train_binary_sent.csv", text))
    assert (fine.context, fine.answers) == ('Fine, and "good".', ("positive",))
    assert (bad.context, bad.answers) == ("Bad.", ("negative",))


def test_sst_names_what_is_damaged(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"a\.csv:3: label '7' is none of 0, 1"):
        nlp5_sst.read(write(tmp_path / "a.csv", "label,sentence\n1,Fine.\n7,Odd.\n"))
    with pytest.raises(ValueError, match=r"b\.csv:2: a field too many or too few"):
        nlp5_sst.read(write(tmp_path / "b.csv", "label,sentence\n1,Fine, or not.\n"))
    with pytest.raises(ValueError, match=r"c\.csv:2: no field 'label'"):
        nlp5_sst.read(write(tmp_path / "c.csv", "1,Fine.\n0,Odd.\n"))
    with pytest.raises(ValueError, match=r"d\.csv:3: unexpected end of data"):
        nlp5_sst.read(
            write(tmp_path / "d.csv", 'label,sentence\n1,Fine.\n1,"Never closed.\n0,Lost.\n')
        )


QA = (
    "WIKI1_0\t1\nThe band began recording in May .\n2\tbegan\t2\n"
    "who\t_\t_\tbegan\tsomething\t_\t_\t?\tThe band ### it\n"
    "when\tdid\tsomeone\tbegin\t_\t_\t_\t?\tin May\n\n"
    "WIKI1_1\t0\nNothing .\n\n"
)


def test_qasrl_original(tmp_path: Path) -> None:
    who, when = nlp5_srl.read(write(tmp_path / "wiki1.train.qa", QA))
    assert (who.question, who.answers) == ("who began something?", ("The band", "it"))
    assert (when.question, when.answers, when.at) == ("when did someone begin?", ("in May",), 25)
    assert who.context == "The band began recording in May ."


def test_qasrl_original_names_what_is_damaged(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"a\.qa:5: 1 questions missing"):
        nlp5_srl.read(write(tmp_path / "a.qa", "\n".join(QA.split("\n")[:4]) + "\n\n"))
    with pytest.raises(ValueError, match=r"b\.qa:4: a question without an answer"):
        nlp5_srl.read(write(tmp_path / "b.qa", QA.replace("The band ### it", "")))
    with pytest.raises(ValueError, match=r"c\.qa:1: expected a sentence id"):
        nlp5_srl.read(write(tmp_path / "c.qa", "The band began .\n"))
    cut = "\n".join(QA.split("\n")[:4])  # as a transfer that broke off leaves it
    with pytest.raises(ValueError, match=r"d\.qa:4: it ends, and 1 questions missing"):
        nlp5_srl.read(write(tmp_path / "d.qa", cut))
    with pytest.raises(ValueError, match=r"e\.qa:1: it ends, and a sentence missing"):
        nlp5_srl.read(write(tmp_path / "e.qa", QA.split("\n")[0]))
    with pytest.raises(ValueError, match=r"f\.qa ends in the middle of a line"):
        nlp5_srl.read(write(tmp_path / "f.qa", QA.rstrip("\n")[:-2]))  # half an answer
    with pytest.raises(ValueError, match=r"g\.csv ends in the middle of a line"):
        nlp5_sst.read(write(tmp_path / "g.csv", "sentence,label\na fine fi,1"))


def test_qasrl_gold_puts_the_answers_of_a_question_together(tmp_path: Path) -> None:
    write(tmp_path / "sentences/news.dev.full.csv", "qasrl_id,tokens,sentence\ns1,Ada sat .,x\n")
    head = "qasrl_id,verb_idx,question,answer\n"
    text = head + "s1,1,Who sat?,Ada\ns1,1,Who sat?,he~!~Ada\n"
    (found,) = nlp5_srl.read(write(tmp_path / "gold/news.dev.gold.csv", text))
    assert (found.context, found.answers) == ("Ada sat .", ("Ada", "he"))
    with pytest.raises(ValueError, match=r"gold\.csv:2: there is no sentence s2"):
        nlp5_srl.read(write(tmp_path / "gold/news.dev.gold.csv", head + "s2,1,Who?,Ada\n"))
    with pytest.raises(ValueError, match=r"put other\.full\.csv into .*sentences"):
        nlp5_srl.read(write(tmp_path / "gold/other.gold.csv", text))


def turn(transcript: str, acts: list[Any], *state: tuple[str, str, str]) -> dict[str, Any]:
    belief = [{"act": act, "slots": [[slot, value]]} for act, slot, value in state]
    return {"transcript": transcript, "system_acts": acts, "belief_state": belief}


def test_woz_says_what_each_turn_changes(tmp_path: Path) -> None:
    area, thai, greek = (
        ("inform", "area", "east"),
        ("inform", "food", "thai"),
        ("inform", "food", "greek"),
    )
    turns = [
        turn("East.", [], area),
        turn("Thai  food", ["food"], area, thai, ("request", "slot", "phone")),
        turn("No, Greek", [["food", "thai"]], area, greek),
        turn("Bye", [], area, greek),
    ]  # fmt: skip
    found = nlp5_woz.read(write(tmp_path / "woz_train_en.json", [{"dialogue": turns}]))
    assert [e.answers[0] for e in found] == [
        "area: east;",
        "food: thai; phone",
        "food: greek;",
        "None",
    ]
    assert [e.context for e in found] == [
        "East.",
        "food -- Thai food",
        "food: thai -- No, Greek",
        "Bye",
    ]
    assert len({e.group for e in found}) == 1
    del turns[1]["belief_state"]
    with pytest.raises(ValueError, match="dialogue 0, turn 1: no field 'belief_state'"):
        nlp5_woz.read(write(tmp_path / "woz_train_en.json", [{"dialogue": turns}]))


def test_files_stand_in_for_what_is_missing(tmp_path: Path) -> None:
    for name in ("dev.jsonl", "test.jsonl", "dev.tables.jsonl", "lowered_dev.jsonl"):
        write(tmp_path / "wikisql" / name, "")
    found = nlp5_files.files_of(tmp_path, "wikisql")
    assert [[path.name for path in part] for part in found] == [["dev.jsonl"], ["test.jsonl"], []]
    for name in ("train-v1.1.json", "dev-v1.1.json"):
        write(tmp_path / "squad" / name, "")
    found = nlp5_files.files_of(tmp_path, "squad")
    assert found.test == [tmp_path / "squad/dev-v1.1.json"]
    assert found.development == []
    with pytest.raises(ValueError, match=r"no training file; put train_binary_sent\.csv"):
        nlp5_files.files_of(tmp_path, "sst")


def test_the_gold_standard_stands_in_for_the_questions_of_2015(tmp_path: Path) -> None:
    for kind in ("dev", "test"):
        write(tmp_path / f"qasrl/gold/wikinews.{kind}.gold.csv", "")
    found = nlp5_files.files_of(tmp_path, "qasrl")
    assert [path.name for path in found.train] == ["wikinews.dev.gold.csv"]
    assert [path.name for path in found.test] == ["wikinews.test.gold.csv"]
    for kind in ("train", "dev", "test"):
        write(tmp_path / f"qasrl/wiki1.{kind}.qa", "")
    found = nlp5_files.files_of(tmp_path, "qasrl")
    assert [path.name for part in found for path in part] == [
        "wiki1.train.qa",
        "wiki1.test.qa",
        "wiki1.dev.qa",
    ]


def test_xquad_is_tested_on(tmp_path: Path) -> None:
    for name in ("train-v1.1.json", "dev-v1.1.json", "xquad.en.json"):
        write(tmp_path / "squad" / name, "")
    found = nlp5_files.files_of(tmp_path, "squad")
    assert [path.name for path in found.train] == ["train-v1.1.json"]
    assert [path.name for path in found.test] == ["xquad.en.json"]


def five_tasks(folder: Path) -> None:
    answers = [{"text": "Ada", "answer_start": 0}]
    for kind in ("train", "dev", "test"):
        squad = paragraph(question="Who?", answers=answers)
        write(folder / f"squad/{kind}-v1.1.json", squad)
        write(folder / f"wikisql/{kind}.jsonl", wikisql(NAMES))
        write(folder / f"sst/{kind}_binary_sent.csv", "label,sentence\n1,Fine.\n")
        write(folder / f"qasrl/wiki1.{kind}.qa", QA)
    for kind in ("train", "validate", "test"):
        state = ("inform", "area", "east")
        write(folder / f"woz/woz_{kind}_en.json", [{"dialogue": [turn("East.", [], state)]}])


def test_a_check_reads_development_files_and_compares_checksums(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    five_tasks(tmp_path)
    args = argparse.Namespace(dir=str(tmp_path), check=True, quiet=False, json=False)
    assert nlp5_files.data_command(args) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[2] == (
        "sst: 1 questions for training, 1 for testing, 1 for development, not used (a part, or "
        "another form; not the published train_binary_sent.csv, dev_binary_sent.csv, "
        "test_binary_sent.csv)"
    )
    assert "checksums" not in lines[1]  # WikiSQL's are of the archive, which is not there
    write(tmp_path / "sst/dev_binary_sent.csv", "label,sentence\n7,Odd.\n")
    with pytest.raises(ValueError, match=r"dev_binary_sent\.csv:2: label '7'"):
        nlp5_files.data_command(args)


@pytest.mark.parametrize("kept", [0.1, 0.9])
def test_a_truncated_archive_is_named_and_nothing_is_unpacked(tmp_path: Path, kept: float) -> None:
    path = tmp_path / "data.tar.bz2"
    noise = random.Random(0).randbytes(1_000_000)
    with tarfile.open(path, "w:bz2") as archive:
        for name in ("train.jsonl", "test.jsonl"):
            member = tarfile.TarInfo(f"data/{name}")
            member.size = len(noise)
            archive.addfile(member, io.BytesIO(noise))
    content = path.read_bytes()
    path.write_bytes(content[: int(kept * len(content))])
    with pytest.raises(ValueError, match=r"data\.tar\.bz2 cannot be unpacked .*: delete it"):
        nlp5_sources.unpack(path)
    assert os.listdir(tmp_path) == [path.name]
    path.write_bytes(content)
    nlp5_sources.unpack(path)
    assert (tmp_path / "test.jsonl").read_bytes() == noise
    assert sorted(os.listdir(tmp_path)) == [path.name, "test.jsonl", "train.jsonl"]


def test_an_archive_is_unpacked_whole_or_not_at_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = tmp_path / "wikisql"
    root.mkdir()
    with tarfile.open(root / "data.tar.bz2", "w:bz2") as archive:
        for name in ("train.jsonl", "dev.jsonl", "test.jsonl"):
            member = tarfile.TarInfo(f"data/{name}")
            member.size = len(wikisql(NAMES))
            archive.addfile(member, io.BytesIO(wikisql(NAMES).encode()))
    written = nlp5_sources.replacing

    def full(path: Path) -> Any:
        if path.name.startswith("test"):
            raise OSError(28, "No space left on device", str(path))
        return written(path)

    monkeypatch.setattr(nlp5_sources, "replacing", full)
    with pytest.raises(OSError, match="No space left"):
        nlp5_sources.unpack(root / "data.tar.bz2")
    assert os.listdir(root) == ["data.tar.bz2"]
    with pytest.raises(ValueError, match="`longtail data nlp5` unpacks the data"):
        nlp5_files.files_of(tmp_path, "wikisql")


@pytest.mark.parametrize("task", ["sst", "qasrl", "woz"])
@pytest.mark.parametrize("stop", [0, 1, 2])
def test_what_a_broken_download_leaves_is_not_tested_on_its_development_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, task: str, stop: int
) -> None:
    fetched: list[Path] = []

    def fetch(remote: Remote, folder: Path, progress: object) -> Path:
        if len(fetched) == stop:
            raise DownloadError("cut off")
        fetched.append(write(folder / remote.name, ""))
        return fetched[-1]

    monkeypatch.setattr(nlp5_sources, "fetch", fetch)
    with pytest.raises(ValueError, match=r"cut off\. By hand"):
        nlp5_sources.fetch_task(task, tmp_path / task, quiet=True)
    if stop < 2:
        with pytest.raises(ValueError, match=r"has no (training|test) file"):
            nlp5_files.files_of(tmp_path, task)
    else:
        assert "test" in nlp5_files.files_of(tmp_path, task).test[0].name


def test_a_task_without_questions_is_refused(tmp_path: Path) -> None:
    turn = {"transcript": "Bye", "system_acts": [], "belief_state": []}
    write(tmp_path / "woz/woz_train_en.json", [{"dialogue": [turn]}])
    write(tmp_path / "woz/woz_test_en.json", [])
    with pytest.raises(ValueError, match=r"woz_test_en\.json: no question in it"):
        nlp5_files.read_task(tmp_path, "woz")


def test_the_miniature_scores_its_own_answers() -> None:
    for task in nlp5_files.TASKS:
        train, test = miniature(task)
        assert train
        assert test
        assert miniature(task) == (train, test)
        values, unparsed = score(task, [e.answers[0] for e in test], test)
        assert values == [1.0] * len(test)
        assert not any(unparsed)


@real
def test_real_slices_are_complete(capsys: pytest.CaptureFixture[str]) -> None:
    args = argparse.Namespace(dir=REAL, check=True, quiet=False, json=True)
    assert nlp5_files.data_command(args) == 0
    assert json.loads(capsys.readouterr().out)["tasks"] == {
        "squad": {"train": 4000, "test": 1690, "development": 500},
        "wikisql": {"train": 8467, "test": 15927},
        "sst": {"train": 6920, "test": 1821, "development": 872},
        "qasrl": {"train": 7183, "test": 7097},
        "woz": {"train": 2536, "test": 1646, "development": 830},
    }


@real
def test_real_files_have_the_published_checksums() -> None:
    for task in ("sst", "woz"):
        for remote in nlp5_sources.REMOTES[task]:
            assert nlp5_sources.agrees(nlp5_files._root(Path(REAL)) / task / remote.name, remote)


@real
def test_real_answers_score_one() -> None:
    for task in nlp5_files.TASKS:
        _, test = nlp5_files.read_task(Path(REAL), task)
        values, unparsed = score(task, [e.answers[0] for e in test], test)
        assert (min(values), any(unparsed)) == (1.0, False), task


@real
def test_real_queries_parse_to_what_was_published() -> None:
    path = nlp5_files.files_of(Path(REAL), "wikisql").train[0]
    examples = nlp5_wikisql.read(path)
    rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    differ = 0
    for example, row in zip(examples, rows, strict=True):
        parsed = parse_sql(example.answers[0], example.columns)
        query = nlp5_wikisql._query(row["sql"], None)
        lowered = [tuple(part.lower() for part in test) for test in query.conditions]
        published = nlp5_wikisql.Query(
            query.aggregate,
            query.column.lower(),
            tuple((column, op.upper(), value) for column, op, value in lowered),
        )
        differ += parsed is None or not same_query(parsed, published)
    assert differ <= 2  # values that themselves read like a condition
    assert logical_form("SELECT x FROM table", examples[0]) is None
