"""What the report's short names mean, in words that need no other page."""

from __future__ import annotations

from dataclasses import dataclass

from longtail.report.table import Table


@dataclass(frozen=True)
class Word:
    """A short name, what it stands for, and a sentence that defines it."""

    short: str
    long: str
    meaning: str

    @property
    def text(self) -> str:
        return f"{self.long}: {self.meaning}"


METRIC_WORDS = {
    "RP": Word(
        "RP",
        "retained performance",
        "mean score over all tasks after the last one was learned, each weighted by its test "
        "examples.",
    ),
    "LP": Word(
        "LP",
        "learned performance",
        "mean score of each task right after it was learned, weighted alike.",
    ),
    "FGT": Word(
        "FGT",
        "forgetting",
        "mean difference between a task's best score so far and its final one; of an error it is "
        "negative where something was forgotten.",
    ),
    "BWT": Word(
        "BWT",
        "backward transfer",
        "mean change of a task's score from when it was learned to the end; where higher scores "
        "are better, below zero means forgetting.",
    ),
}
POLICY_WORDS = {
    "continual": Word(
        "Continual AdamW",
        "moments of all tasks",
        "AdamW whose second moments are averaged over all earlier tasks.",
    ),
    "continual_seen": Word(
        "Continual AdamW, seen",
        "moments of all tasks, of weights moved before",
        "Continual AdamW, with plain AdamW's step for weights that no earlier task has moved.",
    ),
    "kept": Word("AdamW kept", "one AdamW", "never told that a task has ended."),
    "new": Word("AdamW new", "a new AdamW", "its moments start at zero with every task."),
}
PART_WORDS = {
    "head": "head: the tenth of the tasks with the most training examples",
    "body": "body: the tasks between head and tail",
    "tail": "tail: the half of the tasks with the fewest training examples",
    "zero shot": "zero-shot tasks, without training examples",
    "late": "mean over the evaluations in the last quarter of the tasks",
}
MOMENT_WORDS = (
    Word("reset", "a moment", "starts at zero with every task."),
    Word("ema, EA", "a moment", "goes on from one task into the next."),
    Word("task, TA", "a moment", "is averaged over all earlier tasks, by their size."),
    Word("lr adjust", "the learning rate", "warms up at the start of every task."),
)
MULTITASK = Word(
    "MTL", "multi-task training", "all tasks at once, which no method that learns in turn can do."
)


def metric_word(metric: str) -> Word:
    """The definition of a metric, or of a breakdown such as `breakdown.tail.RP`."""
    rest, _, last = metric.rpartition(".")
    known = METRIC_WORDS.get(last)
    short = heading(metric)
    if known is None:
        return Word(short, short, f"`{metric}` of a run's summary, mean over seeds.")
    if not rest:
        return known
    part = rest.removeprefix("breakdown.").replace("_", " ")
    return Word(short, f"{known.long}, {PART_WORDS.get(part, part)}", known.meaning)


def heading(metric: str) -> str:
    """`head RP` for breakdown.head.RP: tasks by size need no other name."""
    return metric.removeprefix("breakdown.").replace(".", " ").replace("_", " ")


def direction(table: Table, metric: str) -> str:
    """Which way is better, as a sentence; none where several scores stand in one table."""
    if table.kinds.mixed:
        return ""
    return "Higher is better." if table.kinds.better(metric) else "Lower is better."


def arrow(table: Table, metric: str) -> str:
    """The metric's name with the direction in which it is better."""
    if table.kinds.mixed:
        return heading(metric)
    return heading(metric) + ("↑" if table.kinds.better(metric) else "↓")


def moment_words(table: Table) -> tuple[Word, ...]:
    """Definitions of what an ablation does with the moments, where the table names it."""
    return MOMENT_WORDS if "second_moment" in table.index else ()


def policy_words(table: Table) -> list[Word]:
    """Definitions of the policies and methods that the table names by a short word."""
    policies = dict.fromkeys(str(row.get("policy")) for row in table.rows)
    words = [POLICY_WORDS[name] for name in policies if name in POLICY_WORDS]
    some = any(row.get("method") == "multitask" for row in table.rows)
    return [*words, MULTITASK] if some else words
