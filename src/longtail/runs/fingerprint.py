"""What a run depends on beside its settings: the user's own code, and data files.

Both are recorded in ``config.toml``, and a run whose code or data have changed since is computed
anew. A run of ours on data of ours has neither, so its files are as they always were:

    [fingerprint]
    "my_methods.py" = "2c26b46b68ff..."                  the SHA-256 of what its code says
    "data/tickets.csv" = "1048 bytes, fcde2b2edba5..."   and of what a file holds

Code is what Python reads of a source file, so that a comment changes nothing: that of the modules
that a user named for benchmark, method, optimizer or policy, and of what they import of their
project. Data are the files that settings of the benchmark name; of a folder, the files in it.
"""

from __future__ import annotations

import ast
import hashlib
import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import suppress
from functools import cache
from importlib.machinery import ModuleSpec, PathFinder
from importlib.util import resolve_name
from pathlib import Path
from types import ModuleType
from typing import Literal, get_origin, get_type_hints

from longtail.runs.config import RunConfig, load_benchmark, method_class
from longtail.support.doors import OURS
from longtail.support.files import digest
from longtail.support.modules import import_object

NOT_A_PROJECTS = {*OURS, *sys.stdlib_module_names}
INSTALLED = {"site-packages", "dist-packages"}


def fingerprint(config: RunConfig) -> dict[str, str]:
    """The code and the data of a run as they are now, by the names of the files."""
    return code_of(config) | data_of(config)


def change(before: Mapping[str, str], now: Mapping[str, str]) -> str | None:
    """What is no longer as a run had it, as the beginning of a sentence; None where nothing is.

    A file that is not here, as in a copy of the folder on another machine, does not count: nobody
    could compute the run anew.
    """
    for name, held in before.items():
        if now.get(name, held) != held:
            return f"{name} has changed"
    return None


def code_of(config: RunConfig) -> dict[str, str]:
    """The user's code behind a run, by the names of its files in the project."""
    modules = [config.benchmark, load_benchmark(config.benchmark).build.__module__]
    for path in (config.method, config.optimizer, config.policy):
        if ":" in path:
            modules += [path.partition(":")[0], str(import_object(path).__module__)]
    modules.append(method_class(config.method).__module__)
    return _code_behind(tuple(sys.modules[name] for name in modules if name in sys.modules))


@cache
def _code_behind(modules: tuple[ModuleType, ...]) -> dict[str, str]:
    """The first answer stays, whatever becomes of the files.

    This process goes on with the code that it has imported.
    """
    code: dict[str, str] = {}
    waiting = [module.__name__ for module in modules]
    seen: set[str] = set()
    while waiting:
        name = waiting.pop()
        path = None if name in seen else _file_of(name)
        seen.add(name)
        if path is None:
            continue
        package = name if path.stem == "__init__" else name.rpartition(".")[0]
        said = content = path.read_bytes()
        with suppress(SyntaxError, ImportError):  # in a file that was never imported
            tree = ast.parse(content)
            said = ast.unparse(tree).encode()
            waiting += [package, *_imported(tree, package)]
        label = "/".join([*filter(None, package.split(".")), path.name])
        code[label] = hashlib.sha256(said).hexdigest()
    return dict(sorted(code.items()))


def _file_of(name: str) -> Path | None:
    """The source of a module of a user's project; what is Python's, installed or ours has none."""
    if name.partition(".")[0] in NOT_A_PROJECTS:
        return None
    spec = _located(name)
    path = Path((spec and spec.origin) or "")
    is_source = path.suffix == ".py" and path.is_file()
    return path if is_source and not INSTALLED & {*path.parts} else None


def _located(name: str) -> ModuleSpec | None:
    """Where a module is; nothing is imported to find out."""
    if name in sys.modules:
        return sys.modules[name].__spec__
    parent = name.rpartition(".")[0]
    package = _located(parent) if parent else None
    folders = package.submodule_search_locations if package else None
    return None if parent and folders is None else PathFinder.find_spec(name, folders)


def _imported(tree: ast.Module, package: str) -> Iterator[str]:
    """The names of modules that a source imports, within functions too."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = resolve_name("." * node.level + (node.module or ""), package)
            yield base
            yield from (f"{base}.{alias.name}" for alias in node.names)  # may be modules, too


def data_of(config: RunConfig) -> dict[str, str]:
    """The files and folders that settings of the benchmark name, or that it says it reads.

    A setting that is one of a few words names none, whatever lies in the current folder.
    """
    spec = load_benchmark(config.benchmark)
    kinds = get_type_hints(spec.Settings)
    named = [v for name, v in vars(config.data).items() if get_origin(kinds[name]) is not Literal]
    if spec.files is not None:
        named += spec.files(config.data)
    paths = [str(value) for value in named if isinstance(value, str | Path)]
    return {path: _held(path) for path in paths if os.path.exists(path)}


def _held(path: str) -> str:
    """Size and SHA-256 of a file; of a folder those of the files in it, as one."""
    if os.path.isdir(path):
        inside = sorted(entry.path for entry in os.scandir(path) if entry.is_file())
        text = "\n".join(f"{os.path.basename(file)}: {_held(file)}" for file in inside)
        return f"{len(inside)} files, {hashlib.sha256(text.encode()).hexdigest()}"
    state = os.stat(path)
    return f"{state.st_size} bytes, {_sha256(path, state.st_size, state.st_mtime_ns)}"


@cache
def _sha256(path: str, size: int, time_ns: int) -> str:
    """A large file is read once, as long as it is the same: the runs of a study share it."""
    return digest(Path(path))
