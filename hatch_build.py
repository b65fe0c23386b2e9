"""Puts the commit into a wheel and a source archive, as `longtail/COMMIT`: results say theirs."""

from __future__ import annotations

import subprocess
import tempfile
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

PLACES = {"wheel": "longtail/COMMIT", "sdist": "src/longtail/COMMIT"}


class CommitHook(BuildHookInterface):
    """Asks git while there is a checkout; a wheel made from a source archive takes its file."""

    PLUGIN_NAME = "custom"

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        found = described(Path(self.root))
        if version == "editable" or found is None:  # an editable install runs from the checkout
            return
        file = Path(tempfile.mkdtemp(prefix="longtail-build-")) / "COMMIT"
        file.write_text(f"{found}\n", encoding="utf-8")
        build_data["force_include"][str(file)] = PLACES[self.target_name]


def described(root: Path) -> str | None:
    """The commit of a checkout, or what a source archive says; None where neither is there."""
    if not (root / ".git").exists():
        file = root / "src" / "longtail" / "COMMIT"
        return file.read_text(encoding="utf-8").strip() if file.exists() else None
    command = ["git", "-C", str(root), "describe", "--always", "--dirty", "--abbrev=12"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip()
