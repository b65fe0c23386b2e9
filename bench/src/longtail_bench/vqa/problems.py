"""What is wrong with data: counted and listed by kind, or refused at once."""

from collections import Counter

DUPLICATE = "id that was there before"


class Problems:
    """Notes what is wrong.

    Args:
        strict: raise `ValueError` at the first thing that is noted.
    """

    SHOWN = 5
    LISTED = 100_000  # of a kind: a list for people, in bounded memory

    def __init__(self, strict: bool = False) -> None:
        self.strict = strict
        self.counts: Counter[str] = Counter()
        self.examples: dict[str, list[str]] = {}

    def note(self, kind: str, where: str) -> None:
        if self.strict:
            raise ValueError(f"{where}: {kind}")
        self.counts[kind] += 1
        if self.counts[kind] <= self.LISTED:
            self.examples.setdefault(kind, []).append(where)

    def merge(self, kind: str, count: int, examples: list[str]) -> None:
        """Add what was noted elsewhere, in an earlier reading of files that are cached."""
        if self.strict:
            raise ValueError(f"{examples[0]}: {kind}")
        self.counts[kind] += count
        self.examples.setdefault(kind, []).extend(examples)
        del self.examples[kind][self.LISTED :]

    def lines(self) -> list[str]:
        """One sentence a kind, with the first few."""
        sentences = []
        for kind, count in self.counts.most_common():
            shown = ", ".join(self.examples[kind][: self.SHOWN])
            more = ", ..." if count > self.SHOWN else ""
            sentences.append(f"{kind}: {count:,} ({shown}{more})")
        return sentences
