"""The tables of the rivals as one, with what each costs: `results/rivals/table.json`, and a figure.

    python studies/tools/rivals_joined.py results/rivals --perf results/perf/rival_step_h200.json
    python studies/tools/rivals_joined.py results/rivals --best 6      the rows to run on WSD-CL

Reads the tables of `studies/rivals_*.toml` that there are in `results/rivals/<benchmark>`, and the
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

from longtail.report.claims.rivals import extra_bytes, name_of, stores_examples, table
from longtail.report.style import COLOURS
from longtail.support.files import write_atomic, write_json

BENCHMARKS = ("synthetic", "mnist", "fsmol", "wsd")
KEPT = ("method", "policy", "seeds", "tasks", "diverged", "selected")
METRICS = ("RP", "LP", "FGT")


def joined(results: Path, perf: Path | None = None) -> dict[str, Any]:
    """One table of those below `results`."""
    times, measured = _times(perf)
    rows: list[dict[str, Any]] = []
    provenance: dict[str, Any] = {}
    for benchmark in BENCHMARKS:
        file = results / benchmark / "table.json"
        if not file.is_file():
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
    return {"title": title, "rows": rows, "checks": table(rows), "provenance": provenance}


def _row(row: dict[str, Any], times: dict[tuple[str, str], float]) -> dict[str, Any]:
    kept = {key: row[key] for key in KEPT if key in row}
    for metric in METRICS:
        kept |= {k: row[k] for k in (metric, f"{metric}_se", f"{metric}_by_seed") if k in row}
    kept["bytes"] = extra_bytes(row)
    kept["examples"] = stores_examples(row)
    kept["time"] = times.get((row["method"], row["policy"]))
    return kept


def _times(perf: Path | None) -> tuple[dict[tuple[str, str], float], dict[str, Any] | None]:
    if perf is None:
        return {}, None
    found = json.loads(perf.read_text("utf-8"))
    times = {(row["method"], row["policy"]): row["time"] for row in found["rows"]}
    return times, found["provenance"]


def best(rows: list[dict[str, Any]], count: int) -> list[str]:
    """The rows that are best in the mean of their ranks, each with how good it is.

    Half of them do without a buffer of data, the others have one: those would win everywhere. Rows
    of all benchmarks take part, multi-task training and WSD-CL do not.
    """
    plain = [row for row in rows if not row["examples"]]
    replay = [row for row in rows if row["examples"]]
    return [*_best(plain, count - count // 2), *_best(replay, count // 2)]


def _best(rows: list[dict[str, Any]], count: int) -> list[str]:
    ranks: dict[tuple[str, str], list[float]] = defaultdict(list)
    names = [name for name in BENCHMARKS if name != "wsd"]
    shown = [name for name in names if any(row["benchmark"] == name for row in rows)]
    for benchmark in shown:
        part = [row for row in rows if row["benchmark"] == benchmark and row["RP"] is not None]
        part = [row for row in part if row["method"] != "multitask"]
        sign = -1 if part[0]["higher_is_better"] else 1
        for rank, row in enumerate(sorted(part, key=lambda row: sign * row["RP"])):
            ranks[row["method"], row["policy"]].append(rank / len(part))
    whole = {key: sum(r) / len(r) for key, r in ranks.items() if len(r) == len(shown)}
    chosen = sorted(whole, key=lambda key: whole[key])[:count]
    return [
        f"{method}, {policy}: mean rank {whole[method, policy]:.2f}" for method, policy in chosen
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
        figure = Figure(figsize=(10, 3.6 * len(shown)), layout="constrained")
        FigureCanvasSVG(figure)
        axes = figure.subplots(len(shown), 2, squeeze=False)
        for line, benchmark in zip(axes, shown, strict=True):
            part = [r for r in rows if r["benchmark"] == benchmark and r["RP"] is not None]
            _panel(line[0], part, "bytes", "bytes a parameter beyond AdamW")
            _panel(line[1], part, "time", "time a step, AdamW = 1")
            line[0].set_ylabel(f"{benchmark}: RP")
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
    top = next((row for row in rows if row["method"] == "multitask"), None)
    if top is not None:
        ax.axhline(top["RP"], color=COLOURS[8], linestyle=":", label="multi-task training")
    for stored, colour, kind in ((False, COLOURS[0], "without data"), (True, COLOURS[1], "replay")):
        part = [row for row in rows if row["examples"] == stored and row["method"] != "multitask"]
        part = [row for row in part if row[cost] is not None]
        ours = [row for row in part if row["policy"] == "continual"]
        for points, marker in ((part, "o"), (ours, "*")):
            size = 60 if marker == "*" else 16
            xs, ys = ([row[key] for row in points] for key in (cost, "RP"))
            ax.scatter(xs, ys, s=size, color=colour, marker=marker)
        edge = frontier(part, cost)
        line = ([row[key] for row in edge] for key in (cost, "RP"))
        ax.plot(*line, color=colour, drawstyle="steps-post", label=f"{kind} (stars: with MC)")
        for i, row in enumerate(edge):  # names of neighbours above and below their points
            ax.annotate(name_of(row), (row[cost], row["RP"]), fontsize=6,
                        xytext=(4, (4, -9, 13)[i % 3]), textcoords="offset points")  # fmt: skip
    if cost == "time" and any(row[cost] is not None for row in rows):
        ax.set_xscale("log")
        ax.set_xticks([1, 2, 4, 8, 16], labels=["1", "2", "4", "8", "16"])
        ax.minorticks_off()
    if rows and not rows[0]["higher_is_better"]:
        ax.set_yscale("log")
    if ax.get_legend_handles_labels()[0]:
        ax.legend(fontsize=6)


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
