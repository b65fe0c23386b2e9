"""The rivals' tables as one, with what each costs: `results/rivals/table.json`, and a figure.

    cd bench
    python tools/rivals_joined.py results/rivals --perf results/perf/rival_step_cpu.json
    python tools/rivals_joined.py results/rivals --best 6      the rows to run on WSD-CL

Reads the tables of the studies `rivals_*` that there are in `results/rivals/<benchmark>`, and the
time a step takes against AdamW, which `perf/rival_step.py` has measured. A row without a time has
none. The figure draws RP against memory and against time, and the rows that no other row of the
same kind, with a buffer of data or without, beats in both.
"""

from __future__ import annotations

import argparse
import json
from collections import defaultdict
from pathlib import Path
from typing import Any

import altair as alt
import vl_convert

from longtail.report.figures import COLOURS
from longtail.support.files import write_atomic, write_json
from longtail_bench.claims.rivals import (
    CONSTANT,
    TWO,
    extra_bytes,
    is_ours,
    name_of,
    stores_examples,
    table,
)

BENCHMARKS = ("synthetic", "mnist", "fsmol", "wsd")
KEPT = ("method", "policy", "seeds", "tasks", "diverged", "selected")
METRICS = ("RP", "LP", "FGT")
RANKED = ("synthetic", "mnist", "fsmol")  # that have nearly all rows
# Where every row's rate is constant within a task, so that none says so in its name.
CONSTANT_RATES = ("mnist", "fsmol")


def joined(results: Path, perf: Path | None = None) -> dict[str, Any]:
    """One table of those below `results`."""
    times, measured = _times(perf)
    rows: list[dict[str, Any]] = []
    provenance: dict[str, Any] = {}
    for benchmark in BENCHMARKS:
        folders = (results / benchmark, results / f"rivals_{benchmark}")  # published, or a study's
        file = next((f for folder in folders if (f := folder / "table.json").is_file()), None)
        if file is None:
            continue
        found = json.loads(file.read_text("utf-8"))
        about = {"benchmark": benchmark, "unit": found["unit"]}
        about["higher_is_better"] = found["higher_is_better"]
        rows += [{**about, **_row(row, times)} for row in found["rows"]]
        provenance[benchmark] = found["provenance"]
    if not rows:
        raise ValueError(f"no table of {', '.join(BENCHMARKS)} in {results}")
    if measured:
        provenance["time"] = measured
    title = "Rivals of Continual Adam at equal memory"
    found = {"title": title, "rows": rows, "ranking": ranking(rows), "checks": table(rows)}
    return {**found, "provenance": provenance}


def _row(row: dict[str, Any], times: dict[tuple[str, str], float]) -> dict[str, Any]:
    kept = {key: row[key] for key in KEPT if key in row}
    for metric in METRICS:
        kept |= {k: row[k] for k in (metric, f"{metric}_se", f"{metric}_by_seed") if k in row}
    kept["bytes"] = extra_bytes(row)
    kept["examples"] = stores_examples(row)
    # a step takes as long at a rate that is constant as at one that decays
    kept["time"] = times.get((row["method"], str(row["policy"]).replace(CONSTANT, "")))
    return kept


def _times(perf: Path | None) -> tuple[dict[tuple[str, str], float], dict[str, Any] | None]:
    if perf is None:
        return {}, None
    found = json.loads(perf.read_text("utf-8"))
    times = {(row["method"], row["policy"]): row["time"] for row in found["rows"]}
    return times, found["provenance"]


def ranking(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The mean rank of each row over the benchmarks: 0 is best on all of them, 1 is last.

    Among rows that cost two buffers of the weights' size at most; those with a buffer of data among
    themselves, as they would win everywhere. Rows that each of the benchmarks in `RANKED` has are
    ranked, one at a constant rate with the plain row of those where all rates are constant;
    multi-task training takes no part.
    """
    found: list[dict[str, Any]] = []
    part = [row for row in rows if row["method"] != "multitask" and row["bytes"] <= TWO]
    for stored in (False, True):
        ranks: dict[tuple[str, str], list[float]] = defaultdict(list)
        kind = [row for row in part if row["examples"] == stored and row["RP"] is not None]
        kind = [row for row in kind if row["benchmark"] in RANKED]
        shown = {*(row["benchmark"] for row in kind)}
        constant = {(r["method"], r["policy"]) for r in kind if CONSTANT in r["policy"]}
        for benchmark in sorted(shown):
            own = [row for row in kind if row["benchmark"] == benchmark]
            sign = -1 if own[0]["higher_is_better"] else 1
            own.sort(key=lambda row: sign * row["RP"])
            place = {(row["method"], row["policy"]): rank for rank, row in enumerate(own)}
            if benchmark in CONSTANT_RATES:
                for method, policy in constant:
                    if (plain := (method, policy.replace(CONSTANT, ""))) in place:
                        place[method, policy] = place[plain]
            for key, rank in place.items():
                ranks[key].append(rank / max(1, len(own) - 1))
        costs = {(row["method"], row["policy"]): row["bytes"] for row in kind}
        whole = {key: sum(r) / len(r) for key, r in ranks.items() if len(r) == len(shown)}
        for method, policy in sorted(whole, key=lambda key: whole[key]):
            row = {"method": method, "policy": policy, "examples": stored}
            rank = whole[method, policy]
            found.append({**row, "bytes": costs[method, policy], "mean_rank": rank})
    return found


def best(rows: list[dict[str, Any]], count: int) -> list[str]:
    """The rows that are best by their mean rank, half of them without a buffer of data."""
    ranked = ranking(rows)
    plain = [row for row in ranked if not row["examples"]][: count - count // 2]
    replay = [row for row in ranked if row["examples"]][: count // 2]
    return [
        f"{row['method']}, {row['policy']}: mean rank {row['mean_rank']:.2f}"
        for row in (*plain, *replay)
    ]


def frontier(rows: list[dict[str, Any]], cost: str) -> list[dict[str, Any]]:
    """The rows that no other one beats in RP at no larger cost, cheapest first."""
    sign = 1.0 if rows and rows[0]["higher_is_better"] else -1.0
    found: list[dict[str, Any]] = []
    for row in sorted(rows, key=lambda row: (row[cost], -sign * row["RP"])):
        if not found or sign * row["RP"] > sign * found[-1]["RP"]:
            found.append(row)
    return found


def draw(rows: list[dict[str, Any]], folder: Path) -> list[Path]:
    """RP against bytes a parameter and against time a step, a line of panels a benchmark."""
    shown = [name for name in BENCHMARKS if any(row["benchmark"] == name for row in rows)]
    lines = []
    for benchmark in shown:
        part = [r for r in rows if r["benchmark"] == benchmark and r["RP"] is not None]
        error = "" if part and part[0]["higher_is_better"] else ", an error"
        panels = [
            _panel(part, "bytes", "bytes a parameter beyond AdamW", f"{benchmark}: RP{error}"),
            _panel(part, "time", "time a step, AdamW = 1", ""),
        ]
        lines.append(alt.hconcat(*panels))
    spec = {**alt.vconcat(*lines).to_dict(), "background": "white"}
    svg = vl_convert.vegalite_to_svg(spec)
    contents = {"svg": svg.encode(), "png": vl_convert.svg_to_png(svg, scale=2.0)}
    folder.mkdir(parents=True, exist_ok=True)
    paths = []
    for ending, content in contents.items():
        paths.append(folder / f"rivals.{ending}")
        write_atomic(paths[-1], content)
    return paths


def _panel(rows: list[dict[str, Any]], cost: str, x_title: str, y_title: str) -> Any:
    """The rows as points, those with a buffer of data in another colour, and their frontiers."""
    points, edges = [], []
    for stored, kind in ((False, "without data"), (True, "replay")):
        part = [row for row in rows if row["examples"] == stored and row["method"] != "multitask"]
        part = [row for row in part if row[cost] is not None]
        edge = frontier(part, cost)
        for row in part:
            ours = "with MC" if is_ours(row) else "others"
            at = {"x": row[cost], "RP": row["RP"], "kind": kind, "of": ours}
            points.append({**at, "name": name_of(row)})
            if row in edge:
                edges.append({**points[-1], "label": name_of(row)})
    error = bool(rows) and not rows[0]["higher_is_better"]
    y = alt.Y("RP:Q", title=y_title, scale=alt.Scale(type="log" if error else "linear", zero=False))
    times = cost == "time" and bool(points)
    axis = alt.Axis(values=[1, 2, 4, 8, 16]) if times else alt.Axis()
    x_scale = alt.Scale(type="log", base=2) if times else alt.Scale(zero=False)
    x = alt.X("x:Q", title=x_title, scale=x_scale, axis=axis)
    colours = alt.Scale(domain=["without data", "replay"], range=COLOURS[:2])
    colour = alt.Color("kind:N", scale=colours, title=None)
    shapes = alt.Scale(domain=["with MC", "others"], range=["diamond", "circle"])
    base = alt.Chart(alt.Data(values=edges)).encode(x=x, y=y, color=colour)
    marks = alt.Chart(alt.Data(values=points)).mark_point(filled=True, size=45)
    layers = [
        base.mark_line(interpolate="step-after"),
        marks.encode(
            x=x, y=y, color=colour, shape=alt.Shape("of:N", scale=shapes, title=None),
            tooltip=["name:N", "x:Q", "RP:Q"],
        ),
        base.mark_text(align="left", dx=5, dy=-5, fontSize=8).encode(text="label:N"),
    ]  # fmt: skip
    top = next((row for row in rows if row["method"] == "multitask"), None)
    if top is not None:
        rule = alt.Chart(alt.Data(values=[{"RP": top["RP"]}]))
        layers.append(rule.mark_rule(strokeDash=[2, 2], color=COLOURS[8]).encode(y=y))
    return alt.layer(*layers).properties(width=430, height=280)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("results", type=Path, help="folder of the benchmarks' tables")
    parser.add_argument("--perf", type=Path, help="what perf/rival_step.py wrote")
    parser.add_argument("--best", type=int, metavar="N", help="name the best rows, write nothing")
    args = parser.parse_args()
    found = joined(args.results, args.perf)
    if args.best:
        print("\n".join(best(found["rows"], args.best)))
        return
    write_json(args.results / "table.json", found)
    draw(found["rows"], args.results / "figures")


if __name__ == "__main__":
    main()
