"""What every file of bench/results/perf says, in one shape: its numbers, and where they are from.

    write(path, rows, device)                       a script's rows
    write(path, rows, device, ratios=..., bars=...)  and what was made of them

A file is `{"provenance": {...}, "rows": [...]}`, with `settings`, `ratios`, `bars` and `holds`
where a script has them. All names of `PROVENANCE`, `VERSIONS` and `HARDWARE` are there, null where
nothing is known. `tests/perf/test_provenance.py` holds every published file to it.
"""

from __future__ import annotations

import importlib.util
import json
import os
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import torch

from longtail.support import devices, machine

PROVENANCE = ("command", "commit", "date", "versions", "hardware", "note")
VERSIONS = ("python", "longtail", "torch", "numpy", "triton", "cuda", "driver")
HARDWARE = ("system", "cpu", "cores", "threads", "device", "gpu")
PARTS = ("settings", "rows", "ratios", "bars", "holds")


def write(
    path: str | Path, rows: list[dict[str, Any]], device: torch.device | str, **parts: Any
) -> None:
    """Write the rows and the other `PARTS` with what there is to know about this process."""
    known = {"provenance": provenance(device), "settings": parts.pop("settings", None)}
    content = {k: v for k, v in (known | {"rows": rows} | parts).items() if v is not None}
    if wrong := problems(content):
        raise ValueError(f"{path}: {'; '.join(wrong)}")
    Path(path).write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")


def provenance(device: torch.device | str) -> dict[str, Any]:
    """Command, commit, date, versions and hardware of this process, computing on ``device``."""
    versions: dict[str, Any] = dict(machine.versions())
    commit = versions.pop("commit", None)
    versions["torch"] = torch.__version__  # with the CUDA it was built for
    if torch.device(device).type == "cuda":
        versions["cuda"], versions["driver"] = torch.version.cuda, _driver()
        if importlib.util.find_spec("triton"):
            import triton  # pyright: ignore[reportMissingImports]

            versions["triton"] = triton.__version__
    script = Path(os.path.relpath(sys.argv[0])).as_posix()
    return {
        "command": shlex.join(["python", script, *sys.argv[1:]]),
        "commit": commit,
        "date": machine.now(),
        "versions": {name: versions.get(name) for name in VERSIONS},
        "hardware": {name: devices.hardware(device).get(name) for name in HARDWARE},
        "note": None,
    }


def _driver() -> str | None:
    command = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return None
    return done.stdout.strip() or None


def problems(content: Any) -> list[str]:
    """What keeps the content of a file from following the schema; empty where nothing does."""
    if not isinstance(content, dict) or not isinstance(content.get("provenance"), dict):
        return ["it has no provenance"]
    found = content["provenance"]
    wrong = _differing("provenance", found, PROVENANCE)
    wrong += _differing("versions", found.get("versions"), VERSIONS)
    wrong += _differing("hardware", found.get("hardware"), HARDWARE)
    wrong += [f"unknown part {name!r}" for name in content if name not in ("provenance", *PARTS)]
    rows = content.get("rows")
    if not isinstance(rows, list) or not rows or not all(isinstance(row, dict) for row in rows):
        wrong.append("rows are not a list of tables with something in it")
    wrong += [
        f"{name} is not a table"
        for name in PARTS
        if name != "rows" and not isinstance(content.get(name, {}), dict)
    ]
    return wrong


def _differing(what: str, found: Any, names: tuple[str, ...]) -> list[str]:
    if not isinstance(found, dict):
        return [f"{what} is not a table"]
    missing = [f"{what} lacks {name!r}" for name in names if name not in found]
    return missing + [f"unknown {name!r} in {what}" for name in found if name not in names]
