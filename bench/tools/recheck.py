"""Compute the claims of published tables, and the finding they make, again from their rows.

    python bench/tools/recheck.py results [--check]

A table's `checks` are functions of its rows, so they can be made anew when a check changes, without
a single run. The study file of the same name as a table's folder (or of its parent folder) says
which checks those are; a folder without one is left alone.
"""

from __future__ import annotations

import argparse
import json
import tomllib
from pathlib import Path
from typing import Any

from longtail.report import checks
from longtail.report.verdicts import in_words
from longtail.support.files import write_atomic

STUDIES = Path(__file__).parents[1] / "src" / "longtail_bench" / "studies"
# Folders whose study has another name.
STUDY_OF = {
    "wsd/four_epochs": "wsd",
    "wsd/one_epoch": "wsd_one_epoch",
    "wsd/one_epoch/both_rates": "wsd_one_epoch",
    "wsd/capped": "wsd_capped",
    "wsd/capped_rates": "wsd_capped",
    "wsd/capped/diagnosis": "wsd_diagnosis",
    "wsd/mpnet": "wsd_mpnet",
    "wsd/short": "wsd_short",
    "rivals/synthetic": "rivals_synthetic",
    "rivals/mnist": "rivals_mnist",
    "rivals/fsmol": "rivals_fsmol",
    "rivals/wsd": "rivals_wsd",
    "wsd/short/diagnosis": "wsd_diagnosis",
    "nlp5/one_rate": "nlp5",
    "synthetic_methods/one_rate": "synthetic_methods",
    "nlp5_long_tail/reservoir": "nlp5_long_tail",
}
JOINED = ("wsd",)  # made of others, checks and all


def checks_of(folder: str) -> list[str]:
    """The checks that the study of a results folder names; none where there is no such study."""
    file = STUDIES / f"{STUDY_OF.get(folder, folder)}.toml"
    if folder in JOINED or not file.exists():
        return []
    return list(tomllib.loads(file.read_text("utf-8")).get("report", {}).get("checks", []))


def recheck(table: dict[str, Any], names: list[str]) -> dict[str, Any]:
    """The claims on a table's rows and the finding, as `longtail report` would write them now."""
    claims = checks.run(names, table["rows"])
    found: dict[str, Any] = {"checks": claims}
    if "finding" in table:  # tables of before it was written have none
        found["finding"] = in_words(claims, table["unit"]).text
    return json.loads(json.dumps(found))


def laid_out(table: dict[str, Any], before: str) -> str:
    """The table's text, with a line for each row where it had that before."""
    if '"rows": [\n{"' not in before:
        return json.dumps(table, indent=1) + "\n"
    rows = ",\n".join(map(json.dumps, table["rows"]))
    return json.dumps({**table, "rows": []}).replace("[]", f"[\n{rows}\n]", 1) + "\n"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("results", type=Path, help="folder of published tables")
    parser.add_argument("--check", action="store_true", help="only say what is out of date")
    args = parser.parse_args()
    stale = 0
    for path in sorted(args.results.rglob("table.json")):
        names = checks_of(path.parent.relative_to(args.results).as_posix())
        if not names:
            continue
        text = path.read_text("utf-8")
        table = json.loads(text)
        found = recheck(table, names)
        if found != {key: table[key] for key in found}:
            stale += 1
            if not args.check:
                write_atomic(path, laid_out({**table, **found}, text))
        print(f"{path}: {checks.tally(found['checks'])}")
    return 1 if args.check and stale else 0


if __name__ == "__main__":
    raise SystemExit(main())
