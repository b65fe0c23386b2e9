"""Drawing what to ask about: one thing of a scene, how it is called, what is claimed of it."""

import random
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

from longtail_bench.vqa.world import words
from longtail_bench.vqa.world.scenes import Kind, Thing, View

T = TypeVar("T")

SPATIAL = frozenset(words.OPPOSITE)


@dataclass(frozen=True, slots=True)
class Asked:
    """A question of one of GQA's kinds; answers are balanced among those of a group.

    Attributes:
        kind: the detailed type, as GQA calls it.
        group: of the questions of this kind, those with the same answers to choose from.
        local: of the questions of this kind, those that are alike.
    """

    image: str
    text: str
    answer: str
    kind: str
    group: str
    local: str


def options(attribute: str, nature: str) -> list[str]:
    """The values that an attribute can have."""
    if attribute in ("color", "size"):
        return words.COLOURS if attribute == "color" else words.SIZES
    return (words.MATERIALS if attribute == "material" else words.STATES)[nature]


class Draw:
    """Random choices, all from one seeded source."""

    def __init__(self, types: list[Kind], weights: list[float], seed: int) -> None:
        self.rng = random.Random(f"{seed} questions")
        self.types, self.weights = types, weights
        self.by_category: dict[str, list[Kind]] = defaultdict(list)
        for kind in types:
            self.by_category[kind.category].append(kind)

    def coin(self, share: float = 0.5) -> bool:
        return self.rng.random() < share

    def pick(self, found: Sequence[T]) -> T:
        return found[int(self.rng.random() * len(found))]

    def attribute(self, thing: Thing) -> tuple[str, str]:
        """One of the thing's attributes, and its value."""
        return self.pick(list(thing.attributes.items()))

    def other(self, thing: Thing, attribute: str) -> str:
        """A value that the thing does not have."""
        value = thing.attributes[attribute]
        return self.pick([v for v in options(attribute, thing.kind.nature) if v != value])

    def claim(self, thing: Thing, avoid: str = "") -> tuple[str, str, bool]:
        """An attribute, a value, and whether the thing has it: half of the time."""
        attribute, value = self.pick([a for a in thing.attributes.items() if a[0] != avoid])
        true = self.coin()
        return attribute, value if true else self.other(thing, attribute), true

    def described(self, thing: Thing) -> str:
        """The thing by its name or, half of the time, by where it is."""
        near = [(relation, other) for relation, other in thing.relations if relation in SPATIAL]
        if not near or self.coin():
            return thing.name
        relation, other = self.pick(near)
        return f"{thing.name} {relation} the {other.name}"

    def absent(self, view: View) -> Kind:
        """A type that is not in the view, of a category that is: a hard one to deny."""
        here = {thing.name for thing in view.things}
        found = self.by_category[self.pick(view.things).kind.category]
        found = [kind for kind in found if kind.name not in here]
        if not found:
            found = [kind for kind in self.types if kind.name not in here]
        return self.rng.choices(found, [self.weights[kind.number] for kind in found])[0]


def said(attribute: str, value: str) -> str:
    return f"made of {value}" if attribute == "material" else value


def article(name: str) -> str:
    return f"an {name}" if name[0] in "aeiou" else f"a {name}"
