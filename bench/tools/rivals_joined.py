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
import io
import json
from collections import defaultdict
from pathlib import Path
from typing import Any

from longtail.report.style import COLOURS
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
    import matplotlib
    from matplotlib.backends.backend_svg import FigureCanvasSVG
    from matplotlib.figure import Figure

    shown = [name for name in BENCHMARKS if any(row["benchmark"] == name for row in rows)]
    folder.mkdir(parents=True, exist_ok=True)
    paths = []
    with matplotlib.rc_context({"svg.hashsalt": "longtail", "font.size": 8, "axes.grid": True}):
        figure = Figure(figsize=(13, 3.4 * len(shown)), layout="constrained")
        FigureCanvasSVG(figure)
        axes = figure.subplots(len(shown), 2, squeeze=False)
        for line, benchmark in zip(axes, shown, strict=True):
            part = [r for r in rows if r["benchmark"] == benchmark and r["RP"] is not None]
            _panel(line[0], part, "bytes", "bytes a parameter beyond AdamW")
            _panel(line[1], part, "time", "time a step, AdamW = 1")
            error = "" if part and part[0]["higher_is_better"] else ", an error"
            line[0].set_ylabel(f"{benchmark}: RP{error}")
        for ending in ("svg", "png"):
            out = io.BytesIO()
            metadata: Any = {"Date": None} if ending == "svg" else None
            figure.savefig(out, format=ending, dpi=140, metadata=metadata)
            paths.append(folder / f"rivals.{ending}")
            write_atomic(paths[-1], out.getvalue())
    return paths


def _panel(ax: Any, rows: list[dict[str, Any]], cost: str, label: str) -> None:
    """The rows as points, those with a buffer of data in another colour, and their frontiers."""
    ax.set_xlabel(label)
    named: list[Any] = []
    top = next((row for row in rows if row["method"] == "multitask"), None)
    if top is not None:
        ax.axhline(top["RP"], color=COLOURS[8], linestyle=":", label="multi-task training")
    for stored, colour, kind in ((False, COLOURS[0], "without data"), (True, COLOURS[1], "replay")):
        part = [row for row in rows if row["examples"] == stored and row["method"] != "multitask"]
        part = [row for row in part if row[cost] is not None]
        ours = [row for row in part if is_ours(row)]
        for points, marker in ((part, "o"), (ours, "*")):
            size = 60 if marker == "*" else 16
            xs, ys = ([row[key] for row in points] for key in (cost, "RP"))
            ax.scatter(xs, ys, s=size, color=colour, marker=marker)
        edge = frontier(part, cost)
        line = ([row[key] for row in edge] for key in (cost, "RP"))
        ax.plot(*line, color=colour, drawstyle="steps-post", label=f"{kind} (stars: with MC)")
        for row in edge:  # a number at the point, its name at the side
            number = len(named) + 1
            ax.annotate(str(number), (row[cost], row["RP"]), fontsize=7, color=colour,
                        xytext=(-3, 5), textcoords="offset points", ha="right")  # fmt: skip
            named.append(ax.plot([], [], " ", label=f"{number}  {name_of(row)}")[0])
    if cost == "time" and any(row[cost] is not None for row in rows):
        ax.set_xscale("log")
        ax.set_xticks([1, 2, 4, 8, 16], labels=["1", "2", "4", "8", "16"])
        ax.minorticks_off()
    if rows and not rows[0]["higher_is_better"]:
        ax.set_yscale("log")
    if ax.get_legend_handles_labels()[0]:
        lines = [line for line in ax.get_lines() if line not in named]
        ax.legend(handles=[*lines, *named], fontsize=6, loc="upper left", bbox_to_anchor=(1.0, 1.0),
                  handlelength=1.4, frameon=False)  # fmt: skip


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
