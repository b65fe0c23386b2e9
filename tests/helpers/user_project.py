"""A user's project for tests: modules that are written, imported, edited and imported anew."""

from __future__ import annotations

import importlib
import sys
import textwrap
from pathlib import Path

import pytest

METHOD = '''
from longtail.methods import Finetune
from {helper} import factor

class Scaled(Finetune):
    """The loss, times a factor."""

    name = "scaled"

    def loss(self, batch):
        return super().loss(batch) * factor()
'''

BENCHMARK = '''
"""Weekly numbers from a file."""
import csv
from dataclasses import dataclass, field

import torch
from torch import nn

from longtail.benchmarks import Benchmark, BenchmarkSpec
from longtail.tasks import REGRESSION, from_tensors

@dataclass(frozen=True)
class Settings:
    file: str = field(default="weeks.csv", metadata={{"help": "where the numbers are"}})

def build(settings, seed):
    with open({file}) as rows:
        numbers = torch.tensor([[float(v) for v in row] for row in csv.reader(rows)])
    tasks = [("week %d" % i, (part[:, :1], part[:, 1]), (part[:, :1], part[:, 1]))
             for i, part in enumerate(numbers.split(4))]
    def make_model(seed):
        return nn.Sequential(nn.Linear(1, 1), nn.Flatten(0))
    return Benchmark(from_tensors(tasks, REGRESSION), make_model)

SPEC = BenchmarkSpec(Settings, build)
'''


class Project:
    """Files of a user's in the current folder; names are its own, so that tests stay apart."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.folder, self.monkeypatch = folder, monkeypatch
        monkeypatch.chdir(folder)
        monkeypatch.syspath_prepend(folder)
        monkeypatch.setattr(sys, "dont_write_bytecode", True)
        self.modules: set[str] = set()

    def write(self, name: str, text: str) -> Path:
        """A module, which the next import reads from the disk."""
        path = self.folder / (name.replace(".", "/") + ".py")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(textwrap.dedent(text))
        self.modules.add(name.partition(".")[0])
        self.forget()
        return path

    def forget(self) -> None:
        """As a new process would begin."""
        for name in [n for n in sys.modules if n.partition(".")[0] in self.modules]:
            del sys.modules[name]
        importlib.invalidate_caches()

    def write_numbers(self, rows: int, slope: float = 2.0, name: str = "weeks.csv") -> Path:
        path = self.folder / name
        path.write_text("".join(f"{i / 10},{slope * i / 10}\n" for i in range(rows)))
        return path
