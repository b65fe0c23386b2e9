"""Where the numbers of a report come from: study, versions, hardware, dates, time taken."""

from __future__ import annotations

from typing import Any

from longtail.names import __version__
from longtail.report.frame import Frames
from longtail.support.machine import commit


def provenance(frames: Frames) -> dict[str, Any]:
    """Collected from the runs' timing.json; a stack's time counts once."""
    finished = [frames.entries[place] for place in frames.finished.index]
    timings = {str(entry.folder): entry.timing for entry in finished}
    plan = frames.plan
    found: dict[str, Any] = {"report_by": f"longtail {__version__}", "runs": frames.state}
    if described := commit():
        found["report_commit"] = described
    if "name" in plan:
        found["study"] = plan["name"]
        usual = f"longtail study {plan.get('file', '')}".strip()
        found["command"] = str(plan.get("command", usual))
    if code := plan.get("code"):
        found["code"] = [f"{name} {str(sha)[:12]}" for name, sha in sorted(code.items())]
    benchmarks = sorted({str(run.config.get("benchmark")) for run in finished})
    if benchmarks:
        found["benchmark"] = ", ".join(benchmarks)
    seeds = sorted({run.seed for run in finished})
    if seeds:
        found["seeds"] = _ranges(seeds)
    collected: dict[str, list[str]] = {}
    seconds = 0.0
    for timing in timings.values():
        for key, value in _leaves(timing):
            if key == "directory":  # where a run was called from is nobody else's business
                continue
            if key.endswith("seconds"):
                number = key == "seconds" and isinstance(value, int | float)
                seconds += float(value) if number else 0.0
            else:
                key = "commit" if key == "versions.commit" else key
                collected.setdefault(key, []).append(str(value))
    if seconds:
        found["seconds"] = round(seconds, 1)
    for key, values in collected.items():
        different = sorted(set(values))
        if len(different) <= 4:
            found[key] = different[0] if len(different) == 1 else different
        else:
            found[key] = f"{different[0]} to {different[-1]}"
    return found


def _leaves(tree: dict[str, Any], prefix: str = "") -> list[tuple[str, Any]]:
    found = []
    for key, value in tree.items():
        if isinstance(value, dict):
            found += _leaves(value, f"{prefix}{key}.")
        elif isinstance(value, str | int | float | bool):
            found.append((f"{prefix}{key}", value))
    return found


def _ranges(values: list[int]) -> str:
    """0, 1, 2, 5 as "0-2, 5"."""
    parts: list[list[int]] = []
    for value in values:
        if parts and value == parts[-1][-1] + 1:
            parts[-1].append(value)
        else:
            parts.append([value])
    return ", ".join(str(p[0]) if len(p) == 1 else f"{p[0]}-{p[-1]}" for p in parts)
