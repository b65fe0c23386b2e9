"""What Tab offers: commands, names and flags, without waiting for torch."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

EXPECTED = {
    "longtail st": ["study"],
    "longtail run sy": ["synthetic"],
    "longtail run toy --method ewc": ["ewc", "ewcpp", "ewc_adam", "ewc_routed"],
    "longtail run toy --policy continual_": ["continual_seen"],
    "longtail study --log ten": ["tensorboard"],
    "longtail run toy --snap": ["--snapshot-minutes"],
}
# In a process of its own: argcomplete closes descriptors that are not its.
CHILD = """
import io, json, os, sys
from longtail.cli.completion import complete
from longtail.cli.entry import make_parser

class Answer(io.StringIO):
    def close(self):
        pass

os.environ.update({"_ARGCOMPLETE": "1", "_ARGCOMPLETE_IFS": "|"})
found = {}
for line in json.load(sys.stdin):
    os.environ.update({"COMP_LINE": line, "COMP_POINT": str(len(line))})
    answer = Answer()
    complete(make_parser, exit_method=lambda code: None, output_stream=answer)
    found[line] = [[word.strip() for word in answer.getvalue().split("|")], "torch" in sys.modules]
print(json.dumps(found))
"""


def test_tab_offers_what_could_follow_and_does_not_wait_for_torch() -> None:
    pytest.importorskip("argcomplete")
    done = subprocess.run(
        [sys.executable, "-c", CHILD],
        input=json.dumps([*EXPECTED]),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-500:]
    found = json.loads(done.stdout)
    assert {line: words for line, (words, _) in found.items()} == EXPECTED
    assert not any(found[line][1] for line in EXPECTED)
