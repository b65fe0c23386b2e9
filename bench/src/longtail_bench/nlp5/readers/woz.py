"""WOZ 2.0 (Wen et al., 2017; Mrksic et al., 2017): restaurant dialogues, what each turn changes.

A dialogue is a list of turns; a turn has the user's ``transcript``, the ``system_acts`` it replies
to and the ``belief_state`` after it. The context is acts and transcript, the answer the change:

    area -- I would like the East part of town.   ->   area: east;
    What is its phone number?                     ->   ; phone
    Thank you!                                    ->   None

New or changed goals come before the semicolon, what the user asks for after it.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from longtail_bench.nlp5.examples import DAMAGE, Example, flat, malformed, parse_json

QUESTION = "What is the change in state?"
NOTHING = "None"


def read(path: Path) -> list[Example]:
    """The turns of one file; those of a dialogue share their group and follow one another."""
    dialogues = parse_json(path)
    if not isinstance(dialogues, list):
        raise ValueError(f"{path} is not WOZ: it holds no list of dialogues")
    found: list[Example] = []
    for number, dialogue in enumerate(dialogues):
        goals: dict[str, str] = {}
        group = f"{path.stem}/{number}"
        place = f"{path}, dialogue {number}"
        try:
            for turn, content in enumerate(dialogue["dialogue"]):
                place = f"{path}, dialogue {number}, turn {turn}"
                now, requests = _state(content["belief_state"])
                changed = {slot: value for slot, value in now.items() if goals.get(slot) != value}
                goals = now
                answer = answer_of(changed, requests)
                found.append(Example(_context(content), QUESTION, (answer,), group=group))
        except DAMAGE as error:
            raise malformed(place, error) from None
    return found


def answer_of(goals: dict[str, str], requests: list[str]) -> str:
    """The change as text: ``food: thai, area: east; phone``."""
    if not goals and not requests:
        return NOTHING
    text = ", ".join(f"{slot}: {value}" for slot, value in goals.items()) + ";"
    return f"{text} {', '.join(requests)}" if requests else text


def _context(turn: dict[str, Any]) -> str:
    acts = [": ".join(act) if isinstance(act, list) else act for act in turn["system_acts"]]
    before = f"{', '.join(acts)} -- " if acts else ""
    return flat(before + turn["transcript"])


def _state(belief: list[dict[str, Any]]) -> tuple[dict[str, str], list[str]]:
    """The goals (slot to value) and the requests of a belief state."""
    goals: dict[str, str] = {}
    requests: list[str] = []
    for item in belief:
        for slot, value in item["slots"]:
            if item["act"] == "inform":
                goals[slot] = value
            else:
                requests.append(value)
    return goals, requests
