"""What the laboratory uses of longtail a stranger's package may use: what `__all__` lists."""

from __future__ import annotations

import ast
import importlib
from collections.abc import Iterator
from pathlib import Path

import longtail_bench

SOURCE = Path(longtail_bench.__file__).parent
# Rooms and modules whose interface is not settled yet.
UNSETTLED = ("longtail.optim", "longtail.report")


def imported(file: Path) -> Iterator[tuple[str, str]]:
    """The modules of longtail that a file imports from, each with a name."""
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "longtail":
            assert node.module is not None
            for alias in node.names:
                yield node.module, alias.name


def test_only_what_longtail_offers_is_used() -> None:
    hidden = set()
    for file in SOURCE.rglob("*.py"):
        for module, name in imported(file):
            offered = getattr(importlib.import_module(module), "__all__", ())
            if not module.startswith(UNSETTLED) and name not in offered:
                hidden.add(f"{file.relative_to(SOURCE)}: {module}.{name}")
    assert not hidden
