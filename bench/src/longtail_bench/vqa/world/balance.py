"""Answers balanced within each group of questions, as GQA does it."""

import random
from collections import defaultdict

from longtail_bench.vqa.world.draws import Asked


def balanced(asked: list[Asked], ratio: float, slack: int, rng: random.Random) -> list[int]:
    """Which questions stay: GQA's smoothing, by family and again by local group.

    With a group's answers from the rarest up, an answer keeps at most  ratio * (all rarer ones),
    and `slack` at least: no answer can be guessed from the group alone, and the order of the
    answers' frequencies stays. Yes and no become equally frequent (ratio 1).
    """
    kept = list(range(len(asked)))
    rng.shuffle(kept)
    for key in (_local, _family):
        groups: dict[tuple[str, ...], dict[str, list[int]]] = defaultdict(lambda: defaultdict(list))
        for n in kept:
            groups[key(asked[n])][asked[n].answer].append(n)
        kept = []
        for answers in groups.values():
            binary = answers.keys() <= {"yes", "no"}
            rarer = 0
            for rows in sorted(answers.values(), key=len):
                limit = int((1.0 if binary else ratio) * rarer)
                stay = rows[: max(limit, slack)] if len(answers) > 1 and rarer else rows
                kept += stay
                rarer += len(stay)
    return sorted(kept)


def _local(asked: Asked) -> tuple[str, ...]:
    return (asked.kind, asked.local)


def _family(asked: Asked) -> tuple[str, ...]:
    return (asked.kind, asked.group)
