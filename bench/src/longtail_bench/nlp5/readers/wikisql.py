"""WikiSQL (Zhong et al., 2017): a question about a table, answered by a query.

A line of ``train.jsonl`` is ``{"table_id", "question", "sql": {"sel", "agg", "conds"}}``. As
published ``sel`` and the columns of ``conds`` are numbers, to be looked up in the ``header`` of
``train.tables.jsonl`` beside it, and operators are numbers too. A variant in circulation has the
names instead; without its tables a table's columns are those that any question about it names,
which is less than the table has.

    answer:  SELECT COUNT School/Club Team FROM table WHERE No. = 3 AND Years in Toronto > 1999
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

from longtail_bench.nlp5.examples import DAMAGE, Example, flat, json_lines, malformed

QUESTION = "What is the translation from English to SQL?"
AGGREGATES = ("", "MAX", "MIN", "COUNT", "SUM", "AVG")
OPERATORS = ("=", ">", "<", "OP")
KEY_WORDS = ", ".join((*AGGREGATES[1:], *OPERATORS, "SELECT", "WHERE", "AND", "FROM", "table"))


class Query(NamedTuple):
    """A query: aggregate, column, and conditions (column, operator, value) in any order."""

    aggregate: str
    column: str
    conditions: tuple[tuple[str, str, str], ...]

    def __str__(self) -> str:
        head = f"SELECT {self.aggregate} {self.column} FROM table"
        tests = " AND ".join(f"{column} {op} {value}" for column, op, value in self.conditions)
        return flat(f"{head} WHERE {tests}" if tests else head)


def read(path: Path) -> list[Example]:
    """The questions of one file, with its tables where they lie beside it."""
    headers = _headers(path)
    rows = []
    for number, row in json_lines(path):
        place = f"{path}:{number}"
        try:
            table = str(row["table_id"])
            header = headers.get(table)
            query = _query(row["sql"], header)
            rows.append((table, flat(row["question"]), query))
        except DAMAGE as error:
            raise malformed(place, error) from None
    columns = _named(rows)
    columns.update(headers)
    return [_example(question, query, tuple(columns[table])) for table, question, query in rows]


def _example(question: str, query: Query, columns: tuple[str, ...]) -> Example:
    context = f"The table has columns {', '.join(columns)} and key words {KEY_WORDS} -- {question}"
    return Example(context, QUESTION, (str(query),), columns=columns)


def _headers(path: Path) -> dict[str, list[str]]:
    """The columns of each table, from the file of tables beside the questions."""
    beside = path.with_name(f"{path.name.partition('.')[0]}.tables.jsonl")
    found: dict[str, list[str]] = {}
    if beside.exists():
        for number, row in json_lines(beside):
            try:
                found[str(row["id"])] = [flat(str(name)) for name in row["header"]]
            except DAMAGE as error:
                raise malformed(f"{beside}:{number}", error) from None
    return found


def _query(sql: dict[str, Any], header: list[str] | None) -> Query:
    def column(name: Any) -> str:
        if not isinstance(name, int):
            return flat(str(name))
        if header is None:
            raise ValueError(
                f"column {name} is a number and the file of tables (.tables.jsonl) is missing or "
                "lacks this table"
            )
        if not 0 <= name < len(header):
            raise ValueError(f"column {name} of a table with {len(header)} columns")
        return header[name]

    def one_of(known: tuple[str, ...], value: Any) -> str:
        number = isinstance(value, int) and 0 <= value < len(known)
        found = known[value] if number else str(value).upper()
        if found not in known:
            raise ValueError(f"{value!r} is none of {', '.join(known).lstrip(', ')}")
        return found

    conditions = tuple(
        (column(name), one_of(OPERATORS, op), flat(str(value))) for name, op, value in sql["conds"]
    )
    return Query(one_of(AGGREGATES, sql["agg"]), column(sql["sel"]), conditions)


def _named(rows: list[tuple[str, str, Query]]) -> dict[str, list[str]]:
    """The columns that the queries about each table name, in alphabetical order."""
    found: dict[str, dict[str, None]] = {}
    for table, _, query in rows:
        names = found.setdefault(table, {})
        names[query.column] = None
        names.update((name, None) for name, _, _ in query.conditions)
    return {table: sorted(names) for table, names in found.items()}
