"""No module imports from a layer above its own, at its top or within a function."""

from __future__ import annotations

import ast
from pathlib import Path

import longtail

ROOT = Path(longtail.__file__).parent
LAYERS = (  # bottom first; CONTRIBUTING.md has the same, top first
    "downloads files labels machine modes preload progress reading stopping values",
    "random columns factored examples objectives sequences sources tasks metrics optim",
    "memory replicas storage stacked_linear regressions",
    "methods models benchmarks",
    "policies best_epoch evaluation graphs graph_fisher recording training",
    "snapshot settings assembly session run_folder",
    "study study_file jobs engines execution results report cluster estimate loggers overview",
    "commands cli",
)
LAYER_OF = {name: number for number, names in enumerate(LAYERS) for name in names.split()}
SOURCES = [path for path in sorted(ROOT.rglob("*.py")) if path != ROOT / "__init__.py"]


def part_of(path: Path) -> str:
    """The module or subpackage of longtail that a file belongs to."""
    return path.relative_to(ROOT).parts[0].removesuffix(".py")


def imported_parts(path: Path) -> set[str]:
    names = []
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert not node.level, f"{path.name} has a relative import, line {node.lineno}"
            names += [f"{node.module}.{alias.name}" for alias in node.names]
    split = [name.split(".") for name in names if name.startswith("longtail.")]
    return {parts[1] for parts in split} & {part_of(source) for source in SOURCES}


def test_every_module_has_a_layer() -> None:
    missing = {part_of(path) for path in SOURCES} - set(LAYER_OF)
    assert not missing, f"put {sorted(missing)} into a layer, here and in CONTRIBUTING.md"


def test_imports_do_not_go_up() -> None:
    upward = [
        f"{path.relative_to(ROOT)} imports {name}"
        for path in SOURCES
        for name in sorted(imported_parts(path))
        if LAYER_OF.get(name, 0) > LAYER_OF.get(part_of(path), len(LAYERS))
    ]
    assert not upward, "\n".join(upward)
