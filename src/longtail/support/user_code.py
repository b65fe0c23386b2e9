"""Which files of a program are a user's own: not Python's, not an installed package's, not ours.

The code behind a run is the module that a user named and whatever it imports of the same project,
which is read from the `import` statements, those within functions included. Nothing is executed to
find out.
"""

from __future__ import annotations

import ast
import functools
import hashlib
import sys
import sysconfig
from collections.abc import Iterator
from importlib import metadata
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from typing import NamedTuple

OURS = Path(__file__).resolve().parents[1]
INSTALLED = ("site-packages", "dist-packages")


@functools.cache
def owner(file: str) -> str:
    """Whose a source file is: ``ours``, ``user`` or ``other`` (Python's, or a package's)."""
    if file.startswith("<"):  # typed in, or frozen into Python
        return "other"
    path = Path(file).resolve()
    if path.is_relative_to(OURS):
        return "ours"
    if any(part in INSTALLED for part in path.parts):
        return "other"
    return "other" if any(path.is_relative_to(folder) for folder in _pythons()) else "user"


@functools.cache
def _pythons() -> tuple[Path, ...]:
    """The folders of Python's own modules."""
    names = ("stdlib", "platstdlib")
    return tuple(Path(p).resolve() for n in names if (p := sysconfig.get_path(n)))


class Source(NamedTuple):
    """A source file of the user's, and the SHA-256 of what is in it.

    Of an installed package the module that was named, and the package's version: thousands of
    files may be behind it, and they change together.
    """

    path: Path
    mark: str


_known: dict[str, tuple[ModuleSpec | None, dict[str, Source]]] = {}


def sources(module: str) -> dict[str, Source]:
    """The source files behind an imported module, by their names in the project.

    The first answer stays as long as the module is the same: this process goes on with the code
    that it has read. One that is imported anew is looked at anew. A module of ours has none.
    """
    loaded = sys.modules.get(module)
    spec = None if loaded is None else loaded.__spec__
    if module not in _known or _known[module][0] is not spec:
        files = [(name, path, "") for name, path in sorted(project_files(module).items())]
        marked = {n: Source(p, v or _sha256(p)) for n, p, v in files or _installed(module)}
        _known[module] = spec, marked
    return _known[module][1]


def _sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def _installed(module: str) -> list[tuple[str, Path, str]]:
    """A module that is no user's, and the version of its package where that is known."""
    path = _locate(module)
    if path is None or owner(str(path)) == "ours":
        return []
    try:
        version = f"version {metadata.version(module.partition('.')[0])}"
    except metadata.PackageNotFoundError:
        version = ""
    return [(_label(module, path), path, version)]


def project_files(module: str) -> dict[str, Path]:
    """The source files of a module and of what it imports of its project, by name.

    Of the project is what is a user's: neither ours nor installed. Files are named as from the
    project's root: ``my_package/losses.py``.
    """
    waiting, seen, found = [module], set(), {}
    while waiting:
        name = waiting.pop()
        if name in seen:
            continue
        seen.add(name)
        if parent := name.rpartition(".")[0]:  # is executed before its modules
            waiting.append(parent)
        path = _locate(name)
        if path is not None and owner(str(path)) == "user":
            found[_label(name, path)] = path
            waiting += _imported(path, name)
    return found


def _locate(name: str) -> Path | None:
    """Where a module's source is, without importing anything; None where it has none."""
    loaded = getattr(sys.modules.get(name), "__file__", None)
    if loaded is not None:
        return _existing(loaded)
    folders, full = None, ""
    spec = None
    for part in name.split("."):
        full = f"{full}.{part}" if full else part
        try:
            spec = PathFinder.find_spec(full, folders)
        except (ImportError, ValueError):
            return None
        if spec is None:
            return None
        folders = spec.submodule_search_locations
    return _existing(spec.origin) if spec is not None and spec.origin else None


def _existing(file: str) -> Path | None:
    path = Path(file)
    return path if path.is_file() else None


def _label(name: str, path: Path) -> str:
    parts = name.split(".")
    folders = parts if path.stem == "__init__" else parts[:-1]
    return "/".join([*folders, path.name])


def _imported(path: Path, name: str) -> Iterator[str]:
    """The names of modules that a source file imports, of whatever project."""
    if path.suffix != ".py":
        return
    try:
        tree = ast.parse(path.read_bytes())
    except (SyntaxError, ValueError):
        return
    package = name if path.stem == "__init__" else name.rpartition(".")[0]
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = _absolute(node, package)
            if base:
                yield base
                yield from (f"{base}.{alias.name}" for alias in node.names)  # may be modules too
        elif isinstance(node, ast.Call) and _is_import_call(node.func):
            first = node.args[0] if node.args else None
            if isinstance(first, ast.Constant) and isinstance(first.value, str):
                yield first.value


def _absolute(node: ast.ImportFrom, package: str) -> str:
    """The module that ``from . import x`` begins at."""
    if not node.level:
        return node.module or ""
    parts = package.split(".") if package else []
    kept = parts[: len(parts) - (node.level - 1)]
    return ".".join([*kept, *([node.module] if node.module else [])])


def _is_import_call(function: ast.expr) -> bool:
    name = function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")
    return name in ("import_module", "__import__")
