"""Snapshots of a run: whole or not there, checked when read, cheap enough to leave on.

A snapshot is one ``torch.save`` file, ``snapshot/<number>-<sha256>.pt``, that
``torch.load(weights_only=True)`` opens. Its checksum is part of its name, so the rename that
publishes it publishes the checksum too. The last two are kept: if the newest is damaged, the one
before is used.

When to write: every ``minutes``, as long as all snapshots together take less than ``share`` of the
time passed,

    spent + cost of one more <= share * elapsed.
"""

from __future__ import annotations

import hashlib
import math
import random
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import IO, Any, cast

import numpy as np
import torch

from longtail.runs.files import SNAPSHOT_DRAFT, remove_snapshot, snapshots_in
from longtail.runs.values import first_difference
from longtail.support.files import drafting, remove_left_drafts

FORMAT = 1  # of what is in a snapshot
ZIP = b"PK\x03\x04"  # how a file of `torch.save` begins

_PLAIN = (str, int, float, bool, type(None))


class SnapshotError(OSError):
    """A snapshot could not be written; the ones written before are untouched."""


class Snapshots:
    """The snapshots of one run.

    Args:
        folder: where they lie; made at the first save.
        minutes: least time between two. 0 means that one is always due, at whatever cost;
            infinity that there are none.
        config: plain settings, kept in every snapshot; `load` refuses one made with others.
        share: largest part of the run's time that snapshots may take.
        warn: told, in a sentence, when a damaged snapshot is passed over.
    """

    def __init__(
        self,
        folder: Path,
        minutes: float = 2.0,
        config: Mapping[str, Any] | None = None,
        *,
        share: float = 0.02,
        warn: Callable[[str], None] = lambda text: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        if not minutes >= 0:  # NaN neither
            raise ValueError(f"minutes between snapshots must not be negative, got {minutes}")
        self.folder = Path(folder)
        self.config = dict(config or {})
        self.share = share
        self.warn = warn
        self.count = 0
        self.seconds = 0.0
        self._interval = 60 * minutes
        self._cost = 0.0
        self._clock = clock
        self._start = self._last = clock()

    @property
    def never(self) -> bool:
        """Whether the run does without: what is stopped begins anew."""
        return self._interval == math.inf

    def due(self) -> bool:
        now = self._clock()
        if self._interval == 0:
            return True
        if now - self._last < self._interval:
            return False
        return self.seconds + self._cost <= self.share * (now - self._start)

    def save(self, state: Mapping[str, Any], keep: int = 2) -> Path:
        """Write ``state`` durably, then drop all but the last ``keep``."""
        _require_plain(state, "state")
        began = self._clock()
        old = self.files()
        try:
            path = self._write(
                {"format": FORMAT, "config": self.config, "state": dict(state)},
                _number(snapshots_in(self.folder)) + 1,
            )
        except OSError as error:
            left = f"; the last good one is {old[-1]}" if old else "; there is no earlier one"
            text = f"cannot write a snapshot to {self.folder}: {error.strerror or error}{left}"
            raise SnapshotError(error.errno, text) from error
        for extra in old[: max(0, len(old) + 1 - keep)]:
            remove_snapshot(extra)
        self._last = self._clock()
        self._cost = self._last - began
        self.seconds += self._cost
        self.count += 1
        return path

    def clear(self) -> None:
        for path in self.files():
            remove_snapshot(path)
        remove_left_drafts(self.folder, [SNAPSHOT_DRAFT])

    def load(self, usable: Callable[[dict[str, Any]], str | None] | None = None) -> dict | None:
        """The newest snapshot that is whole, or None; ``usable`` may find a reason against one."""
        files = snapshots_in(self.folder)
        for path in reversed(files):
            instead = (
                "using the one before it" if path != files[0] else "starting from the first task"
            )
            try:
                content = _read(path)
            except ValueError as error:
                self.warn(f"snapshot {path} is damaged ({error}); {instead}")
                continue
            _refuse_format(content, path)
            self._refuse_other(content["config"], path)
            reason = usable(content["state"]) if usable else None
            if reason is None:
                # The run goes on from here, so what came after leads nowhere.
                for newer in self.files():
                    if newer > path:
                        remove_snapshot(newer)
                return content["state"]
            self.warn(f"snapshot {path} cannot be used ({reason}); {instead}")
        return None

    def files(self) -> list[Path]:
        """Published snapshots, oldest first; drafts do not count, nor folders of such names."""
        return [path for path in snapshots_in(self.folder) if not path.is_dir()]

    def _write(self, content: dict[str, Any], number: int) -> Path:
        self.folder.mkdir(parents=True, exist_ok=True)
        with drafting(self.folder / SNAPSHOT_DRAFT) as draft:
            hashed = _HashedFile(draft.file)
            torch.save(content, cast(IO[bytes], hashed))
            hashed.finish()
            path = self.folder / f"{number:08d}-{hashed.sha.hexdigest()}.pt"
            draft.publish(path)
        return path

    def _refuse_other(self, config: Mapping[str, Any], path: Path) -> None:
        difference = first_difference(config, self.config)
        if difference:
            key, there, here = difference
            raise ValueError(
                f"snapshot {path} is of another configuration: "
                f"{key} is {there!r} there, {here!r} here; delete the folder's settings and repeat "
                "the command with those of the snapshot, or choose another --out"
            )


class _HashedFile:
    """A file that hashes what passes through and keeps an I/O error until `finish`.

    torch's zip writer calls `write` from C++, where an exception would end in another, less telling
    one.
    """

    def __init__(self, file: Any) -> None:
        self.file = file
        self.sha = hashlib.sha256()
        self.error: OSError | None = None

    def write(self, data: Any) -> int:
        if self.error is None:
            try:
                self.file.write(data)
            except OSError as error:
                self.error = error
            self.sha.update(data)
        return len(data)

    def flush(self) -> None:
        pass

    def finish(self) -> None:
        if self.error is not None:
            raise self.error


def _refuse_format(content: dict[str, Any], path: Path) -> None:
    """One of another version is whole: to pass it over would throw its work away in silence."""
    if (told := content.get("format")) != FORMAT:
        raise ValueError(
            f"snapshot {path} has format {told!r}, this longtail reads {FORMAT}: go on with the "
            f"longtail that wrote it, or delete {path.parent} to begin with the first task"
        )


def _number(files: list[Path]) -> int:
    return int(files[-1].name.split("-")[0]) if files else 0


def _read(path: Path) -> dict[str, Any]:
    if path.is_dir():
        raise ValueError("it is a folder")
    wanted = path.stem.partition("-")[2]
    with open(path, "rb") as file:
        form = file.read(len(ZIP))
        file.seek(0)
        found = hashlib.file_digest(file, "sha256").hexdigest()
    if found != wanted:
        raise ValueError("its checksum does not match")
    # torch would try its oldest form too, a tar archive, and make a folder elsewhere to unpack it.
    if form != ZIP:
        raise ValueError("it cannot be opened, it is no file of torch.save")
    # To the CPU, whatever device it came from: load_state_dict copies each part into place.
    try:
        content = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # an unpickler raises whatever the bytes lead it to
        raise ValueError(f"it cannot be opened, {type(error).__name__}") from None
    if not isinstance(content, dict) or not {"config", "state"} <= content.keys():
        raise ValueError("it is no snapshot")
    return content


def _require_plain(value: Any, where: str) -> None:
    """Fail at the first save, not at the resume, if `weights_only` could not load it."""
    if isinstance(value, Mapping):
        for key, item in value.items():
            if not isinstance(key, _PLAIN):
                raise TypeError(f"snapshot: key {key!r} in {where} is not plain")
            _require_plain(item, f"{where}[{key!r}]")
    elif isinstance(value, (list, tuple)):
        for index, item in enumerate(value):
            if not isinstance(item, _PLAIN):
                _require_plain(item, f"{where}[{index}]")
    elif not isinstance(value, (*_PLAIN, torch.Tensor)):
        raise TypeError(f"snapshot: {where} is a {type(value).__name__}, not a tensor or plain")


def generator_state() -> dict[str, Any]:
    """State of every global random generator a model or a data set might draw from."""
    version, words, gauss = random.getstate()
    kind, keys, position, has_gauss, cached = cast(tuple, np.random.get_state(legacy=True))
    assert kind == "MT19937"
    return {
        "torch": torch.get_rng_state(),
        "cuda": torch.cuda.get_rng_state_all() if torch.cuda.is_available() else [],
        "python": [version, list(words), gauss],
        "numpy": [torch.from_numpy(keys.astype(np.int64)), int(position), has_gauss, cached],
    }


def set_generator_state(state: Mapping[str, Any]) -> None:
    torch.set_rng_state(state["torch"])
    # A run may move to a machine with other devices; those it does have get their state back.
    for device, value in enumerate(state["cuda"][: torch.cuda.device_count()]):
        torch.cuda.set_rng_state(value, device)
    version, words, gauss = state["python"]
    random.setstate((version, tuple(words), gauss))
    keys, position, has_gauss, cached = state["numpy"]
    np.random.set_state(("MT19937", keys.numpy().astype(np.uint32), position, has_gauss, cached))


def seed_generators(seed: int) -> None:
    """Seed all of them, so that nothing a run draws depends on what happened before it."""
    torch.manual_seed(seed)
    random.seed(seed)
    np.random.seed(seed % 2**32)
