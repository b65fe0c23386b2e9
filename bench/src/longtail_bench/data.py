"""What `longtail data` asks of each benchmark: flags of its own, and who fetches or checks.

Nothing of a benchmark is imported before its files are asked for.
"""

from __future__ import annotations

import argparse
import importlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class DataCommand:
    """An entry point of the group ``longtail.data``.

    Attributes:
        module: has a function ``data_command(args)``.
        flags: further arguments of ``longtail data``, each with its keywords of `add_argument`.
    """

    module: str
    flags: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        for flag, keywords in self.flags.items():
            parser.add_argument(flag, **keywords)

    def main(self, args: argparse.Namespace) -> int:
        return importlib.import_module(self.module).data_command(args)


IMAGES = DataCommand("longtail_bench.images.split")
NLP5 = DataCommand("longtail_bench.nlp5.files")
FSMOL = DataCommand("longtail_bench.fsmol.data")
WSD = DataCommand("longtail_bench.wsd.data")
VQA = DataCommand(
    "longtail_bench.vqa.data",
    {"--strict": {"action": "store_true", "help": "refuse what is only counted"}},
)
