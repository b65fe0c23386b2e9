"""What a run depends on beside its settings: the user's own code, and the data files it read.

Both are recorded in ``config.toml``, and a run whose code or data have changed since is computed
anew. A run of ours on data of ours has neither, so its files are as they always were:

    [fingerprint.code]
    "my_methods.py" = "2c26b46b68ff..."       the SHA-256 of a source file

    [fingerprint.data."data/tickets.csv"]
    bytes = 1048
    sha256 = "fcde2b2edba5..."

Settings, code and data fix a run; dates of files do not, so that a copy of a file is the same file.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from glob import escape, iglob
from pathlib import Path
from typing import Any, Literal, get_origin, get_type_hints

from longtail import benchmarks
from longtail.runs.config import RunConfig, load_benchmark, method_class
from longtail.support.modules import import_object
from longtail.support.opened import content, listen, listen_below, read_by
from longtail.support.user_code import sources

# Kinds of files that libraries open by themselves, where Python does not see it.
NATIVE = (".safetensors", ".gguf", ".h5", ".hdf5", ".parquet", ".arrow")
MOST_FILES = 200  # beyond, files of one folder and kind are one entry


@dataclass(frozen=True)
class Fingerprint:
    """The code and the data of a run.

    Args:
        code: SHA-256 of source files, by their names in the project; of installed ones a version.
        data: size and SHA-256 of files by their paths as the code named them, or of all files that
            a pattern stands for, as ``images/*.png``.
    """

    code: Mapping[str, str] = field(default_factory=dict)
    data: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)

    def __bool__(self) -> bool:
        return bool(self.code or self.data)

    def as_dict(self) -> dict[str, Any]:
        """Plain values for TOML and JSON, without a part that is empty."""
        data = {path: dict(entry) for path, entry in self.data.items()}
        return {name: part for name, part in (("code", dict(self.code)), ("data", data)) if part}


def read(content: Any) -> Fingerprint | None:
    """One from a file; None where there is none, as from before they were recorded."""
    if not isinstance(content, Mapping):
        return None
    code, data = content.get("code", {}), content.get("data", {})
    if not isinstance(code, Mapping) or not isinstance(data, Mapping):
        return None
    entries = {str(k): v for k, v in data.items() if isinstance(v, Mapping)}
    return Fingerprint({str(k): str(v) for k, v in code.items()}, entries)


def user_modules(config: RunConfig) -> tuple[str, ...]:
    """The modules that a user named for benchmark, method, optimizer or policy, or wrote them in.

    None where all is ours.
    """
    named = [] if config.benchmark in benchmarks.BENCHMARKS else [config.benchmark]
    for path in (config.method, config.train.optimizer, config.optimizer):
        if ":" in path:
            module = path.partition(":")[0]
            found = import_object(path)
            named += [module, getattr(found, "__module__", None) or module]
    named.append(method_class(config.method).__module__)
    return tuple(dict.fromkeys(n for n in named if n.partition(".")[0] != "longtail"))


def code_now(config: RunConfig) -> Fingerprint:
    """The code that this process would train a run with; of its data nothing is known yet."""
    code: dict[str, str] = {}
    for module in user_modules(config):
        code |= {name: source.mark for name, source in sources(module).items()}
    return Fingerprint(dict(sorted(code.items())))


def depends_on_files(config: RunConfig) -> bool:
    """Whether a run can have a fingerprint: it has code of a user's, or settings name its data."""
    return bool(user_modules(config)) or any(True for _ in _named(config))


class Watch:
    """Notes what files runs of one method and benchmark read; made before they are built."""

    def __init__(self, *configs: RunConfig) -> None:
        self.config, self.modules = configs[0], user_modules(configs[0])
        self.named = list(dict.fromkeys(path for config in configs for path in _named(config)))
        if self.modules:
            listen()
        listen_below(path for path in self.named if path.is_dir())

    def fingerprint(self) -> Fingerprint:
        """The code, and the data read so far."""
        code = [source.path for module in self.modules for source in sources(module).values()]
        folders = [path for path in self.named if path.is_dir()]
        paths = [str(path) for path in self.named if path.is_file()]
        beside = (path for folder in folders for path in folder.iterdir())
        paths += [str(path) for path in beside if path.suffix in NATIVE and path.is_file()]
        paths += read_by(code, folders)
        return Fingerprint(code_now(self.config).code, _measured(paths))


def _named(config: RunConfig) -> Iterator[Path]:
    """Files and folders that settings of the benchmark name, or that it says it reads.

    A setting that is one of a few words names none, whatever lies in the current folder.
    """
    spec = load_benchmark(config.benchmark)
    words = [n for n, hint in get_type_hints(spec.Settings).items() if get_origin(hint) is Literal]
    given = {name: value for name, value in vars(config.data).items() if name not in words}
    values = [v for v in given.values() if isinstance(v, str | Path) and str(v)]
    files = spec.files
    declared = [] if files is None else list(files(config.data))
    for value in dict.fromkeys(map(str, (*values, *declared))):
        if "\0" not in value and len(value) < 4096 and os.path.exists(value):
            yield Path(value)


def _measured(paths: Iterable[str]) -> dict[str, dict[str, Any]]:
    found = {}
    for path in _grouped(sorted(set(paths))):
        try:
            found[path] = measure(path)
        except OSError:  # a temporary file that is gone: nothing to compare with later
            continue
    return found


def _grouped(paths: list[str]) -> list[str]:
    """The paths, or where they are too many to list, patterns for the files of a folder and kind.

    A folder of folders, one a class of images, has one pattern for all of them.
    """
    if len(paths) <= MOST_FILES:
        return paths
    kinds = {(os.path.dirname(path), os.path.splitext(path)[1]) for path in paths}
    below = ""
    if len({kind for _, kind in kinds}) > MOST_FILES:  # file.1, file.2, ...
        kinds = {(folder, "") for folder, _ in kinds}
    while len(kinds) > MOST_FILES:
        kinds, below = {(os.path.dirname(folder), kind) for folder, kind in kinds}, "**"
    return sorted(os.path.join(escape(folder), below, f"*{escape(kind)}") for folder, kind in kinds)


def measure(path: str) -> dict[str, Any]:
    """Size and SHA-256 of a file, or, of those that a pattern stands for, of all together.

    Raises:
        OSError: there is no such file.
    """
    if os.path.exists(path):
        return content(path)._asdict()
    files = sorted(p for p in iglob(path, recursive=True) if os.path.isfile(p))
    if not files:
        raise FileNotFoundError(path)
    total, sha = 0, hashlib.sha256()
    for file in files:
        found = content(file)
        total += found.bytes
        sha.update(f"{file}\n{found.sha256}\n".encode())
    return {"files": len(files), "bytes": total, "sha256": sha.hexdigest()}


def change(before: Fingerprint | None, code: Fingerprint) -> str | None:
    """What is no longer as a run had it, as the beginning of a sentence; None where nothing is.

    A data file that is not here at all, as in a copy of the folder on another machine, does not
    count: nobody could compute the run anew.

    Args:
        before: as recorded; None says nothing, so nothing can have changed.
        code: of now.
    """
    if before is None:
        return None
    names = dict.fromkeys((*before.code, *code.code))
    changes = [_verb(name, before.code.get(name), code.code.get(name)) for name in names]
    for path, entry in before.data.items():
        try:
            changes.append(_verb(path, dict(entry), measure(path)))
        except OSError:
            continue
    found = [text for text in changes if text]
    more = f" and {len(found) - 1} more" if len(found) > 1 else ""
    return f"{found[0]}{more}" if found else None


def _verb(name: str, before: Any, now: Any) -> str | None:
    if before == now:
        return None
    if before is None:
        return f"{name} is new"
    return f"{name} is no longer part of the code" if now is None else f"{name} has changed"
