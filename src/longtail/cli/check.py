"""`longtail check`: whether the files of finished runs are those that the runs wrote."""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import asdict
from pathlib import Path

EXAMPLES = """examples:
  longtail check runs/table1            every run of a study, its weights too
  longtail check runs --json            for machines
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.epilog = EXAMPLES
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("folder", type=Path, help="folder of runs, at any depth")
    parser.add_argument("--json", action="store_true", help="print what was found as JSON")


def main(args: argparse.Namespace) -> int:
    """Exit code 0 where all is sound, 1 where something is damaged, 2 where nothing is there."""
    from longtail.runs.integrity import check_folder

    found = check_folder(args.folder)
    if not (found.sound or found.without or found.damaged):
        raise ValueError(f"no finished run in {args.folder}")
    if args.json:
        print(json.dumps(asdict(found), indent=2))
    else:
        for folder, wrong in found.damaged.items():
            print(f"longtail: {folder}: {wrong}", file=sys.stderr)
        text = f"{found.sound} sound, {len(found.damaged)} damaged"
        text += f", {found.without} without checksums to compare with" if found.without else ""
        print(text)
    return 1 if found.damaged else 0
