"""Each score against cases computed by hand."""

from __future__ import annotations

import pytest

from longtail_bench.nlp5.examples import Example
from longtail_bench.nlp5.readers.wikisql import Query
from longtail_bench.nlp5.scores import (
    best_f1,
    exact,
    f1,
    joint_goals,
    logical_form,
    normalise,
    parse_sql,
    parse_state,
    score,
)


def example(*answers: str, group: str = "", columns: tuple[str, ...] = ()) -> Example:
    return Example("", "", answers, group=group, columns=columns)


def test_normalise_is_squads() -> None:
    assert normalise("The  Cat's a-hat, an Apple!") == "cats ahat apple"
    assert normalise("theatre and a n") == "theatre and n"  # articles are whole words


@pytest.mark.parametrize(
    ("prediction", "answer", "expected"),
    [
        ("the Panthers", "Panthers", 1.0),
        ("in 1990", "1990", 2 / 3),  # 1 shared of 2 and 1 words: 2 * 1 / 3
        ("red red blue", "red blue blue", 2 / 3),  # shared with repetition: red, blue
        ("north", "south", 0.0),
        ("", "south", 0.0),
        ("the", "a", 1.0),  # nothing is left of either
    ],
)
def test_f1(prediction: str, answer: str, expected: float) -> None:
    assert f1(prediction, answer) == pytest.approx(expected)


def test_the_best_answer_counts() -> None:
    assert best_f1("in 1990", example("the year 1990", "in 1990 , May")) == pytest.approx(0.8)


def test_exact() -> None:
    assert exact(" positive ", example("positive")) == 1.0
    assert exact("positive.", example("positive")) == 0.0


COLUMNS = ("No.", "No. in series", "School/Club Team", "Date and Time", "OP")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("SELECT No. FROM table", Query("", "no.", ())),
        ("select  count No.  from TABLE", Query("COUNT", "no.", ())),
        (
            "SELECT No. FROM table WHERE No. in series = 3 AND School/Club Team > x and y",
            Query("", "no.", (("no. in series", "=", "3"), ("school/club team", ">", "x and y"))),
        ),
        (
            "SELECT OP FROM table WHERE Date and Time OP 3 = 4 AND OP < select",
            Query("", "op", (("date and time", "OP", "3 = 4"), ("op", "<", "select"))),
        ),
    ],
)
def test_sql_is_parsed(text: str, expected: Query) -> None:
    assert parse_sql(text, COLUMNS) == expected


@pytest.mark.parametrize(
    "text",
    [
        "",
        "No. FROM table",
        "SELECT Number FROM table",  # no such column
        "SELECT FIRST No. FROM table",  # no such aggregate
        "SELECT No. FROM table WHERE",
        "SELECT No. FROM table WHERE No. 3",  # no operator
        "SELECT No. FROM table WHERE No. = ",
        "SELECT No. FROM table WHERE x = 3 AND No. = 4",  # begins with no column
        "SELECT No. FROM other WHERE No. = 3",
    ],
)
def test_what_is_no_query_scores_zero_and_is_counted(text: str) -> None:
    gold = example("SELECT No. FROM table", columns=COLUMNS)
    assert parse_sql(text, COLUMNS) is None
    assert score("wikisql", [text], [gold]) == ([0.0], [True])


def test_logical_form_ignores_order_and_case_only() -> None:
    gold = example("SELECT No. FROM table WHERE No. = 3 AND OP > Rome", columns=COLUMNS)
    assert logical_form("select no. from table where op > ROME and no. = 3", gold) == 1.0
    assert logical_form("SELECT No. FROM table WHERE No. = 3", gold) == 0.0
    assert logical_form("SELECT MAX No. FROM table WHERE No. = 3 AND OP > Rome", gold) == 0.0
    assert logical_form("SELECT No. FROM table WHERE No. = 3 AND OP < Rome", gold) == 0.0
    assert logical_form("SELECT No. FROM table WHERE No. = 3 AND OP > Roma", gold) == 0.0


def test_states() -> None:
    assert parse_state("food: thai,  price range: Cheap; phone, address") == (
        {"food": "thai", "price range": "cheap"},
        {"phone", "address"},
    )
    assert parse_state("; phone") == ({}, {"phone"})
    assert parse_state("None") == ({}, set())
    assert parse_state("nonsense, food:") == ({}, set())


def test_joint_goals_add_up_over_a_dialogue() -> None:
    answers = ["food: thai;", "area: east; phone", "None", "food: greek;"]
    gold = [example(a, group="1") for a in answers] + [example("food: thai;", group="2")]
    #        right          wrong area     still wrong  mended by nothing  new dialogue
    said = ["food: thai;", "area: west;", "; phone", "food: greek;", "food: thai;"]
    assert joint_goals(said, gold) == [1.0, 0.0, 0.0, 0.0, 1.0]
    # requests do not count, an order does not matter, and a goal corrected later is right again
    said = ["food: thai; phone", "area: west;", "area: east;", "food: greek;", ""]
    assert joint_goals(said, gold) == [1.0, 0.0, 1.0, 1.0, 0.0]
