"""Morgan fingerprints (radius 2, 2,048 counts) of molecules that come without, made by RDKit.

The same generator made the published ones: on assays that have both they agree count for count.
Some 1,300 molecules, phosphonates written [PH](=O)(=O), have a valence that RDKit has come to
refuse; these are read without that one check. Many molecules are shared out among processes, one
for each core.
"""

from __future__ import annotations

import importlib.util
import queue
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TextIO

import numpy as np

from longtail.benchmarks.fsmol.assays import WIDTH
from longtail.support.machine import usable_cores

RADIUS = 2
BLOCK = 1000  # molecules that a process gets at once, some 0.4 s of work

Counts = tuple[np.ndarray, np.ndarray]


def morgan(
    smiles: Sequence[str], progress: bool = True, workers: int | None = None
) -> Iterator[Counts | None]:
    """For each molecule the bits that are set, and their counts; None where it cannot be read.

    Args:
        smiles: the molecules.
        progress: show a bar.
        workers: processes; by default one for each core, but none for a few molecules.

    Raises:
        ValueError: RDKit is not installed.
    """
    if importlib.util.find_spec("rdkit") is None:
        raise ValueError(
            "these files have no fingerprints, and making them needs RDKit: "
            "pip install 'longtail[mol]'"
        )
    blocks = [smiles[start : start + BLOCK] for start in range(0, len(smiles), BLOCK)]
    if workers is None:
        workers = min(len(usable_cores()), len(blocks) // 4)
    bar = Bar(len(smiles), "fingerprints") if progress else None
    for block in _in_processes(blocks, workers) if workers > 1 else map(_here, blocks):
        yield from block
        if bar is not None:
            bar.tick(len(block))


def _here(smiles: Sequence[str]) -> list[Counts | None]:
    from longtail.benchmarks.fsmol.rdkit_counts import counter

    return list(map(counter(RADIUS, WIDTH), smiles))


def _in_processes(blocks: Sequence[Sequence[str]], workers: int) -> Iterator[list[Counts | None]]:
    """The blocks' fingerprints, in their order."""
    program = Path(__file__).with_name("rdkit_counts.py")
    command = [sys.executable, "-P", str(program), str(RADIUS), str(WIDTH)]
    free: queue.SimpleQueue[subprocess.Popen[bytes]] = queue.SimpleQueue()
    running = []
    try:
        for _ in range(workers):
            pipe = subprocess.PIPE
            running.append(subprocess.Popen(command, stdin=pipe, stdout=pipe))
            free.put(running[-1])

        def ask_any(block: Sequence[str]) -> list[Counts | None]:
            process = free.get()
            try:
                return _ask(process, block)
            finally:
                free.put(process)

        with ThreadPoolExecutor(workers) as threads:
            yield from threads.map(ask_any, blocks)
    finally:
        for process in running:
            process.kill()
            process.communicate()


def _ask(process: subprocess.Popen[bytes], smiles: Sequence[str]) -> list[Counts | None]:
    """What a process of `rdkit_counts.py` answers."""
    assert process.stdin is not None
    try:
        process.stdin.write("\n".join([str(len(smiles)), *smiles, ""]).encode())
        process.stdin.flush()
        sizes = _read(process, np.int32, len(smiles))
        known = np.maximum(sizes, 0)
        places, counts = (_read(process, kind, known.sum()) for kind in (np.uint16, np.uint8))
    except (OSError, EOFError) as error:
        raise RuntimeError(f"a process that made fingerprints ended: {error}") from error
    ends = np.cumsum(known)
    pairs = zip(np.split(places, ends[:-1]), np.split(counts, ends[:-1]), strict=True)
    return [pair if size >= 0 else None for size, pair in zip(sizes, pairs, strict=True)]


def _read(process: subprocess.Popen[bytes], kind: type[np.generic], count: int) -> np.ndarray:
    assert process.stdout is not None
    size = int(count) * np.dtype(kind).itemsize
    content = process.stdout.read(size)
    if len(content) < size:
        raise EOFError("its answer is cut short")
    return np.frombuffer(content, kind)


class Bar:
    """How far it is: one line that counts on a terminal, one line at the end in a pipe."""

    def __init__(self, total: int, what: str, stream: TextIO | None = None) -> None:
        self.total, self.what, self.stream = total, what, stream or sys.stderr
        self.done, self.begin, self.shown = 0, time.monotonic(), 0.0
        self.alive = self.stream.isatty()

    def tick(self, count: int) -> None:
        self.done += count
        passed = time.monotonic() - self.begin
        if self.done < self.total and not (self.alive and passed - self.shown > 0.2):
            return
        self.shown = passed
        left = passed * (self.total - self.done) / self.done
        text = f"{self.what}: {self.done:,} of {self.total:,}, {passed:.0f} s"
        text += f", {left:.0f} s left" if self.done < self.total else ""
        start, end = ("\r", "\n" if self.done == self.total else "") if self.alive else ("", "\n")
        print(f"{start}{text:<60}" if self.alive else text, end=end, file=self.stream, flush=True)
