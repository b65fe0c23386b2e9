"""The published tables of WSD-CL as one: `bench/results/wsd/table.json`.

    python bench/tools/wsd_published.py bench/results/wsd

The exact sequence is run with Finetune alone, the other methods and a larger encoder on shorter
ones, so the paper's table lies in the tables of several studies. Here are their rows, each with the
settings it was run with, their checks, and where each study's numbers come from.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from longtail.runs.config import flatten
from longtail.study.expand import Planned, expand
from longtail.study.file import read_study
from longtail.support.files import write_json

# What rows are called, the study they are of, where its table lies, and what its title leaves out:
# what is nearest to the paper's first.
TABLES = (
    ("wsd", "wsd", "four_epochs", ""),
    ("wsd_one_epoch", "wsd_one_epoch", "one_epoch/both_rates", ""),
    ("wsd_capped", "wsd_capped", "capped", ""),
    ("wsd_capped_rates", "wsd_capped", "capped_rates", ", at chosen rates"),
    ("wsd_mpnet", "wsd_mpnet", "mpnet", ""),
)
SETTINGS = ("data.backbone", "data.cap", "train.epochs", "train.lr", "methods.buffer")


STUDIES = Path(__file__).parents[1] / "src" / "longtail_bench" / "studies"


def joined(results: Path, studies: Path = STUDIES) -> dict[str, Any]:
    """One table of those below `results`."""
    rows: list[dict[str, Any]] = []
    checks: list[dict[str, Any]] = []
    provenance: dict[str, Any] = {}
    tables = {
        name: json.loads((results / folder / "table.json").read_text("utf-8"))
        for name, _, folder, _ in TABLES
    }
    for name, study, _, more in TABLES:
        table = tables[name]
        planned = expand(read_study(studies / f"{study}.toml"))
        rows += [{"study": name, **settings(row, planned), **row} for row in table["rows"]]
        title = table["title"] + more
        checks += [{**c, "claim": f"{title}: {c['claim']}"} for c in table["checks"]]
        provenance[name] = table["provenance"]
    first = tables["wsd"]
    about = {key: first[key] for key in ("title", "unit", "higher_is_better")}
    return {**about, "rows": rows, "checks": checks, "provenance": provenance}


def settings(row: dict[str, Any], planned: list[Planned]) -> dict[str, Any]:
    """What the run of a row had of `SETTINGS`."""
    for run in planned:
        flat = flatten(run.config.as_dict())
        if (run.config.method, run.labels["policy"]) != (row["method"], row["policy"]):
            continue
        found = {key.partition(".")[2]: flat[key] for key in SETTINGS if key in flat}
        known = {**row, **row.get("selected", {})}
        if all(known.get(key, value) == value for key, value in found.items()):
            return found
    raise ValueError(f"no run of the study is {row['method']} with {row['policy']}")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("results", type=Path, help="folder of the tables")
    folder = parser.parse_args().results
    write_json(folder / "table.json", joined(folder))


if __name__ == "__main__":
    main()
