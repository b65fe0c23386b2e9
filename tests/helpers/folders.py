"""What a folder holds, for comparing two of them."""

import json
from pathlib import Path


def contents(folder: Path) -> dict[str, bytes]:
    """Files that follow from the settings: all but times, locks and snapshots."""
    return {
        str(path.relative_to(folder)): _without_command(path)
        for path in folder.rglob("*")
        if path.is_file()
        and path.name not in ("timing.json", ".lock")
        and "snapshot" not in path.parts
    }


def _without_command(path: Path) -> bytes:
    if path.name != "plan.json":
        return path.read_bytes()
    plan = json.loads(path.read_text())
    return json.dumps({k: v for k, v in plan.items() if k != "command"}).encode()
