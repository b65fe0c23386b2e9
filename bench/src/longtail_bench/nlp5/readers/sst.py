"""Stanford Sentiment Treebank, binary (Socher et al., 2013): CSV, a label and a sentence a line.

label,sentence
1,"A stirring, funny and finally transporting re-imagining of Beauty and the Beast"
"""

from __future__ import annotations

from pathlib import Path

from longtail_bench.nlp5.examples import DAMAGE, Example, csv_rows, flat, malformed

QUESTION = "Is this review negative or positive?"
LABELS = {"0": "negative", "1": "positive"}


def read(path: Path) -> list[Example]:
    """The sentences of one file."""
    examples: list[Example] = []
    for place, row in csv_rows(path):
        try:
            label = row["label"]
            if label not in LABELS:
                raise ValueError(f"label {label!r} is none of {', '.join(LABELS)}")
            examples.append(Example(flat(row["sentence"]), QUESTION, (LABELS[label],)))
        except DAMAGE as error:
            raise malformed(place, error) from None
    return examples
