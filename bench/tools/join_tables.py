"""Join unselected tables of one study into one, and select from it: a table without its runs.

    python bench/tools/join_tables.py STUDY.toml OUT TABLE.json [TABLE.json ...] [--lean]
    python bench/tools/join_tables.py STUDY.toml OUT TABLE.json TABLE.json [...] --selected

The runs of a study may be trained in several sessions, on machines whose folders are gone later.
What stays of a session is the table that `longtail report RUNS --no-select` has written: a row for
every value of the study's [select] key, and rows of their own for the seeds that choose. This
program writes the rows of all such tables to OUT/all_rates/table.* and what is selected from them
to OUT/table.*, both as `longtail report` would, had it found all runs in one folder. A row of a
later table replaces the row of an earlier one that has the same labels. With `--lean` a row that
only chooses keeps its scores, and neither those of each seed nor its curves; the other rows lose
how RP grew in each seed. Of a large grid these are most of the file.

With `--selected` the tables are selected ones, as `longtail report` writes them, and so is the one
that is made: rows of a later table replace those of an earlier one, or are added to them, and what
is claimed is computed anew. So a published table gets rows of a later session, such as those for
which rates were tried that lie beyond the end of its grid.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

from longtail.names import METRICS, __version__
from longtail.report.checks import Row, tally
from longtail.report.frame import Kinds, asked_unit
from longtail.report.labelling import BESIDE, CHOOSES
from longtail.report.labels import measured, row_name
from longtail.report.reading import ScoreKind
from longtail.report.select import (
    RP,
    VALIDATION,
    Choice,
    Tried,
    as_json,
    family_name,
    labels_of,
    notes_on,
    place,
    told_nothing,
    unselected_plan,
)
from longtail.report.statistics import GROWTH, pairs
from longtail.report.table import Table, from_rows, labels_of_row
from longtail.report.text import write_all
from longtail.report.verdicts import Compared, claims_of, finding, pair_of, paired_tests
from longtail.study.command import rows_of
from longtail.study.expand import expand
from longtail.study.file import Study, read_study
from longtail.support.files import parse_json, refusing, write_atomic
from longtail.support.machine import commit

ALL = "all_rates"  # the folder of the unselected table, beside the selected one


class Report(NamedTuple):
    """A table, and what else stands in its table.json."""

    table: Table
    extra: dict[str, Any]


class Joined(NamedTuple):
    """What the program writes, and a sentence for every row that another one replaced."""

    selected: Report
    unselected: Report
    replaced: list[str]


def join(file: Path, paths: Sequence[Path], *, lean: bool = False) -> Joined:
    """The table of all rows in the tables at `paths`, and the one that the study selects of it.

    Args:
        file: the study's file.
        paths: of unselected tables, each a table.json.
        lean: leave out of rows that choose what a choice does not need, and of the others how RP
            grew seed by seed, which a claim on growth would need.

    Raises:
        ValueError: names the file, the row or the value that is wrong.
    """
    study = _read_study(file)
    plan = _plan(study)
    tables = {path: read(path, study.name) for path in paths}
    kinds = _agreed(tables, study)
    rows, replaced = _all_rows(tables, study, _order(study))
    if lean:
        rows = [_scores(row) if row.get(CHOOSES) else _without_growth(row) for row in rows]
    origin = provenance(study, [table["provenance"] for table in tables.values()])
    every = unselected_plan(plan)
    title = f"{study.report.get('title', study.name)}, all rates"
    every = {**every, "report": {**every["report"], "title": title}}
    chosen, choice, notes = _select(plan, rows, higher_is_better=kinds.lead.higher_is_better)
    best = {**plan, "selected": notes}
    selected = _report(best, from_rows(chosen, best, kinds), origin)
    selected.extra["selection"] = as_json(choice, 1.0)  # rows are in their unit already
    return Joined(selected, _report(every, from_rows(rows, every, kinds), origin), replaced)


def join_selected(file: Path, paths: Sequence[Path]) -> tuple[Report, list[str]]:
    """The table of all rows in the selected tables at `paths`; a sentence for each replaced one.

    Args:
        file: the study's file.
        paths: of selected tables, each a table.json.

    Raises:
        ValueError: names the file, the row or the value that is wrong.
    """
    study = _read_study(file, chooses=False)
    plan = _plan(study)
    keys = labels_of(plan)
    tables = {path: read(path, study.name, selected=True) for path in paths}
    kinds = _agreed(tables, study)
    order: dict[str, int] = {}
    for run in plan["runs"]:
        order.setdefault(_key(json.loads(place(run["labels"], keys)[0])), len(order))
    rows, replaced = _all_rows(tables, study, order)
    chosen: dict[str, tuple[str, Tried]] = {}
    parts: list[dict[str, Any]] = []
    for path, table in tables.items():
        parts += [table[key] for key in ("provenance", "added_provenance") if key in table]
        for row in table["rows"]:  # what chose another row of this name says nothing of this one
            chosen.pop(_key(labels_of_row(row)), None)
        for labels, found in _selection(table, path):
            chosen[_key(labels)] = json.dumps(labels), found
    choice = Choice(keys, study.select.get("seeds", []), dict(chosen.values()))
    if choice.best:
        plan["selected"] = notes_on(choice)
    report = _report(plan, from_rows(rows, plan, kinds), provenance(study, parts))
    if choice.best:
        report.extra["selection"] = as_json(choice, 1.0)
    return report, replaced


def read(path: Path, study: str, *, selected: bool = False) -> dict[str, Any]:
    """The content of a table.json.

    Args:
        path: of the file.
        study: the name of the study that it must be a table of.
        selected: whether it may be one that a selection was made for, with a row for its best
            value alone.

    Raises:
        ValueError: names the file and what is wrong with it.
    """
    try:
        table = parse_json(path, dict)
    except OSError as error:
        raise ValueError(f"{path} cannot be read: {error.strerror}") from None
    except ValueError as error:
        raise ValueError(f"{path} cannot be read: {error}") from None
    kinds = {"unit": str, "higher_is_better": bool, "rows": list, "provenance": dict}
    for key, kind in kinds.items():
        if not isinstance(table.get(key), kind):
            raise ValueError(f"{path} is no table of a report: it has {key} = {table.get(key)!r}")
    name = table["provenance"].get("study", study)
    if name != study:
        raise ValueError(f"{path} is a table of the study {name!r}, not of {study!r}")
    for row in table["rows"]:
        _check_row(row, path, selected=selected)
    return table


def _check_row(row: Any, path: Path, *, selected: bool) -> None:
    if not isinstance(row, dict) or not {"seeds", *METRICS} <= row.keys():
        raise ValueError(f"{path}: this is no row of a report: {json.dumps(row)[:100]}")
    if not selected and ("selected" in row or "validation" not in row):
        raise ValueError(
            f"{path} is not an unselected table, see its row {name_of(row)}: "
            "`longtail report RUNS --no-select` makes one"
        )
    for key, value in row.items():
        if measured(key) and isinstance(value, str | bool):
            raise ValueError(f"{path}: {key} of {name_of(row)} is {value!r}, not a number")


class Family(NamedTuple):
    """The rows that differ in the value of the [select] keys alone, by that value."""

    reported: dict[str, Row]
    choosing: dict[str, Row]

    def tried(self, *, higher_is_better: bool) -> Tried:
        """What its rows that choose have scored: on validation, or RP where one has none."""
        lines = [line for line in self.choosing.values() if not line.get("diverged")]
        held_out = bool(lines) and all(line.get("validation") is not None for line in lines)
        score = VALIDATION if held_out else RP
        means = {
            value: None if line.get("diverged") else line.get(score)
            for value, line in self.choosing.items()
        }
        return Tried(score, means, higher_is_better)


def families(rows: Iterable[Row], keys: list[str]) -> dict[str, Family]:
    """The rows by what they are called without the [select] keys, as `place` names it.

    Tables may have their labels in another order: a family goes by the first name it has.
    """
    found: dict[str, Family] = {}
    names: dict[str, str] = {}
    for row in rows:
        labels = labels_of_row(row)
        chooses = labels.pop(CHOOSES, False)
        own, value = place(labels, keys)
        name = names.setdefault(json.dumps(json.loads(own), sort_keys=True), own)
        family = found.setdefault(name, Family({}, {}))
        (family.choosing if chooses else family.reported)[value] = row
    return found


def name_of(row: Row) -> str:
    """A row in the words of a reader."""
    return row_name(labels_of_row(row))


def from_json(
    entries: list[dict[str, Any]], higher_is_better: bool
) -> Iterator[tuple[dict[str, Any], Tried]]:
    """What `as_json` wrote, in its unit: the labels of each family, and what chose there."""
    for entry in entries:
        labels = {k: v for k, v in entry.items() if k not in ("score", "chosen", "at_end", "tried")}
        means = {
            json.dumps({k: v for k, v in each.items() if k != "mean"}): each["mean"]
            for each in entry["tried"]
        }
        yield labels, Tried(entry["score"], means, higher_is_better)


def _selection(table: dict[str, Any], path: Path) -> list[tuple[dict[str, Any], Tried]]:
    """What chose the rows of a table, where it says so."""
    try:
        return list(from_json(table.get("selection", []), table["higher_is_better"]))
    except (AttributeError, KeyError, TypeError):
        raise ValueError(f"{path}: its selection is none that a report writes") from None


def _read_study(file: Path, *, chooses: bool = True) -> Study:
    """The study; where it `chooses`, its rows are chosen by seeds that do nothing else."""
    try:
        study = read_study(file)
    except OSError as error:
        raise ValueError(f"{file} cannot be read: {error.strerror}") from None
    if chooses and not study.select.get("seeds"):
        raise ValueError(f"{file}: its [select] names no seeds, so no row of a table chooses")
    return study


def _plan(study: Study) -> dict[str, Any]:
    """What a report needs of the plan.json of a study."""
    runs = [{"labels": run.labels} for run in expand(study)]
    return {"name": study.name, "report": study.report, "select": study.select, "runs": runs}


def _agreed(tables: dict[Path, dict[str, Any]], study: Study) -> Kinds:
    """The unit and the direction of the scores, which all tables and the study must share."""
    first = next(iter(tables.values()))
    wanted = {"unit": asked_unit(study.report) or first["unit"]}
    wanted["higher_is_better"] = first["higher_is_better"]
    for path, table in tables.items():
        for key, value in wanted.items():
            if table[key] != value:
                raise ValueError(f"{path} has {key} = {table[key]!r}, where {value!r} is wanted")
    others: dict[str, ScoreKind] = {}
    for table in tables.values():
        for name, kind in table.get("other_scores", {}).items():
            others[name] = ScoreKind(**kind)
    return Kinds(ScoreKind(**wanted), others)


def _all_rows(
    tables: dict[Path, dict[str, Any]], study: Study, order: dict[str, int]
) -> tuple[list[Row], list[str]]:
    """The rows of all tables in the study's order, and a sentence for each that was replaced."""
    found: dict[str, tuple[Path, Row]] = {}
    replaced = []
    for path, table in tables.items():
        for row in table["rows"]:
            key = _key(labels_of_row(row))
            if key not in order:
                raise ValueError(f"{path}: the study {study.name} has no row {name_of(row)}")
            if key in found:
                before, old = found[key]
                text = f"{name_of(row)}: the row of {path} ({_seeds(row)}) replaces "
                replaced.append(text + f"that of {before} ({_seeds(old)})")
            found[key] = path, row
    if not found:
        raise ValueError(f"no rows in {', '.join(map(str, tables))}")
    return [found[key][1] for key in sorted(found, key=lambda key: order[key])], replaced


def _scores(row: Row) -> Row:
    """A row with its labels, counts and scores alone."""
    kept = (*labels_of_row(row), "seeds", "tasks", "diverged", *METRICS, "validation")
    return {key: value for key, value in row.items() if key.removesuffix("_se") in kept}


def _without_growth(row: Row) -> Row:
    """A row without what each seed has of the growth of RP."""
    lost = {f"RP_{part}_by_seed" for part in GROWTH}
    return {key: value for key, value in row.items() if key not in lost}


def _order(study: Study) -> dict[str, int]:
    """The place of every row that `longtail report --no-select` can have for the study."""
    beside = study.report.get("average") == BESIDE
    order: dict[str, int] = {}
    for run in expand(replace(study, seeds=sorted(study.seeds))):  # as a plan has its runs
        chooses = {CHOOSES: True} if run.config.seed in study.select["seeds"] else {}
        for labels in rows_of(run, beside=beside):
            order.setdefault(_key({**labels, **chooses}), len(order))
    return order


def _select(
    plan: dict[str, Any], rows: list[Row], *, higher_is_better: bool
) -> tuple[list[Row], Choice, list[str]]:
    """The rows at the best values, what chose them, and notes on it.

    They stay in the order of the unselected rows, which need not be that of the families: the best
    value of an average may come before that of the weights.
    """
    keys = labels_of(plan)
    own = families(rows, keys)
    tried = {name: family.tried(higher_is_better=higher_is_better) for name, family in own.items()}
    choice = Choice(keys, plan["select"]["seeds"], tried)
    kept: dict[int, Row] = {}
    lost, notes = [], []
    for name, family in own.items():
        if not family.choosing:
            raise ValueError(f"{family_name(name)} has rows to report, but none that chooses")
        value = tried[name].best
        if value is None:  # as in a report: there are rows, and nothing tells which is to be shown
            kept |= {id(row): _reported(row, {}, plan) for row in family.reported.values()}
            notes.append(f"{told_nothing(name, choice, tried=True)}.")
        elif row := family.reported.get(value):
            kept[id(row)] = _reported(row, json.loads(value), plan)
        else:
            lost.append(family_name(name))
    if lost:
        notes.insert(0, f"Left out, as no seed is reported at the chosen value: {'; '.join(lost)}.")
    if choice.best:
        notes = [*notes_on(choice), *notes]
    return [kept[id(row)] for row in rows if id(row) in kept], choice, notes


def _reported(row: Row, chosen: dict[str, Any], plan: dict[str, Any]) -> Row:
    """The row as a report writes it that has chosen these values, which then name it no more."""
    report = plan["report"]
    labels = labels_of_row(row)
    counts = {key: row[key] for key in ("seeds", "tasks") if key in row}
    rest = {key: value for key, value in row.items() if key not in (*labels, *counts)}
    if "validation" not in (*report.get("metrics", ()), *report.get("further", ())):
        rest = {key: value for key, value in rest.items() if key.partition("_")[0] != "validation"}
    named = {key: value for key, value in labels.items() if key not in chosen}
    return {**named, **counts, **({"selected": chosen} if chosen else {}), **rest}


def _report(plan: dict[str, Any], table: Table, origin: dict[str, Any]) -> Report:
    """The table with what a report computes from its rows, but for those that only choose."""
    shown = replace(table, rows=[row for row in table.rows if not row.get(CHOOSES)])
    claims, _ = claims_of(plan, shown, frozenset(plan["report"].get("checks", ())))
    extra = {
        "finding": finding(shown, claims).text,
        "checks": claims,
        "statistics": statistics(shown, pair_of(plan)),
        "provenance": origin,
    }
    return Report(table, extra)


def statistics(table: Table, pair: tuple[str, str]) -> list[Row]:
    """The paired tests of a report, from the scores by seed that rows of several seeds have."""
    labels = list(map(labels_of_row, table.rows))
    compared = []
    for a, b in pairs(labels, *pair):
        scores: dict[str, tuple[list[float], list[float]]] = {}
        for metric in METRICS:
            ours, theirs = (table.rows[i].get(f"{metric}_by_seed", {}) for i in (a, b))
            shared = [seed for seed in ours if seed in theirs]
            scores[metric] = [ours[seed] for seed in shared], [theirs[seed] for seed in shared]
        compared.append(Compared(labels[a], table.kinds.lead.higher_is_better, scores))
    return paired_tests(compared, pair)


def provenance(study: Study, parts: Iterable[dict[str, Any]]) -> dict[str, Any]:
    """Where each part of the joined table comes from; parts that were joined are taken apart."""
    found: dict[str, Any] = {"joined_by": "bench/tools/join_tables.py"}
    found["report_by"] = f"longtail {__version__}"
    if described := commit():
        found["report_commit"] = described
    flat: list[dict[str, Any]] = []
    for part in parts:
        flat += [one for one in part.get("parts", [part]) if one not in flat]
    return {**found, "study": study.name, "parts": flat}


def _key(labels: dict[str, Any]) -> str:
    return json.dumps(labels, sort_keys=True, default=str)


def _seeds(row: Row) -> str:
    return f"{row['seeds']} seed{'s' * (row['seeds'] != 1)}"


def write(reports: dict[str, Report], out: Path) -> list[Path]:
    """Writes tables to folders below `out` once all of their files are made; returns the paths."""
    written = []
    with TemporaryDirectory() as made:
        for name, report in reports.items():
            folder = Path(made) / name
            folder.mkdir(exist_ok=True)
            write_all(*report, folder)
        with refusing(out, "cannot be made a folder", flag=""):
            for name in reports:
                (out / name).mkdir(parents=True, exist_ok=True)
        for path in sorted(Path(made).rglob("table.*")):
            written.append(out / path.relative_to(made))
            write_atomic(written[-1], path.read_bytes())
    return written


def main(argv: list[str] | None = None) -> int:
    """Exit code 0, or 2 where the input is not as it should be."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("study", type=Path, help="the study's file")
    parser.add_argument("out", type=Path, help="folder to write to")
    parser.add_argument("tables", type=Path, nargs="+", help="unselected tables, table.json")
    parser.add_argument(
        "--lean", action="store_true", help="without curves and seeds of rows that choose"
    )
    parser.add_argument(
        "--selected", action="store_true", help="the tables are selected ones, as is what is made"
    )
    args = parser.parse_args(argv)
    try:
        if args.selected:
            selected, replaced = join_selected(args.study, args.tables)
            written = write({"": selected}, args.out)
            said = f"{len(selected.table.rows)} rows"
        else:
            selected, every, replaced = join(args.study, args.tables, lean=args.lean)
            written = write({"": selected, ALL: every}, args.out)
            said = f"{len(selected.table.rows)} rows selected of {len(every.table.rows)}"
    except (ValueError, OSError) as error:
        print(f"join_tables: {error}", file=sys.stderr)
        return 2
    for sentence in replaced:
        print(sentence, file=sys.stderr)
    print(said)
    print(f"{tally(selected.extra['checks'])}; {len(written)} files in {args.out}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
