"""A world to ask questions about: object types with a long tail of frequencies, and scenes.

Type number k (the most frequent is 0) is seen with a frequency after Zipf and Mandelbrot

    p(k)  proportional to  (k + 1 + shift) ** -exponent

whose defaults come from GQA itself: in the real questions at hand, the objects from 'appliance' on
have this curve (docs/benchmarks/vqa.md). A scene is at a place; places differ in the categories
seen there, chosen such that over all places a type is as frequent as p says.
"""

import random
from bisect import bisect
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import accumulate

from longtail_bench.vqa.world import words

WIDTH, HEIGHT = 640, 480
PERSON = "person"


@dataclass(frozen=True)
class World:
    """What the generator makes, and how well a detector sees it.

    Attributes:
        questions: in train and val together.
        types: object types, the most frequent ones; 0: all there are (more than 1,000).
        per_image: questions asked about one image, on average.
        test_share: of the images, and with them of the questions.
        width: of the region features.
        exponent, shift: of the types' frequencies, see above.
        types_seed: of the types, how frequent they are and how they look; None: as `seed`. Worlds
            that differ in `seed` alone show the same things in other scenes.
        noise: standard deviation of the features' noise; prototypes have 1.
        attributes: size of the prototypes of attributes against those of types.
        occlusion: share of objects whose features are mixed with those of another.
        tag_noise: share of tags that name another object of the category.
        detector: so many types have a word of their own as tag, the others that of their category.
    """

    seed: int = 0
    questions: int = 114_000
    types: int = 0
    per_image: float = 5.0
    test_share: float = 0.2
    width: int = 128
    exponent: float = 1.8
    shift: float = 42.0
    types_seed: int | None = None
    noise: float = 1.0
    attributes: float = 0.6
    occlusion: float = 0.2
    tag_noise: float = 0.3
    detector: int = 100

    @property
    def look_seed(self) -> int:
        """Seed of what there is, whatever the scenes."""
        return self.seed if self.types_seed is None else self.types_seed


@dataclass(frozen=True, slots=True)
class Kind:
    """A type of object; its `category` as in `words.py`."""

    number: int
    name: str
    category: str
    nature: str
    favourites: tuple[str, str]


@dataclass(slots=True)
class Thing:
    """An object in a scene; `attributes` from "color", "size", "material", "state" or "pose"."""

    kind: Kind
    attributes: dict[str, str]
    box: tuple[int, int, int, int]
    relations: list[tuple[str, "Thing"]] = field(default_factory=list)

    @property
    def name(self) -> str:
        return self.kind.name

    @property
    def category(self) -> str:
        return self.kind.category.replace("_", " ")

    @property
    def centre(self) -> tuple[float, float]:
        x, y, w, h = self.box
        return x + w / 2, y + h / 2


@dataclass(slots=True)
class View:
    """A scene: an image's name and its things."""

    image: str
    things: list[Thing]


def kinds(world: World) -> list[Kind]:
    """The types of the world, the most frequent first."""
    rng = random.Random(f"{world.look_seed} kinds")
    ranked = []
    for category, text in words.CATEGORIES.items():
        for position, name in enumerate(text.split()):
            # the first words of a category are the common ones, and people most of all
            common = position / 3 if category == PERSON else position
            ranked.append((common + 8 * rng.random(), name, category))
    ranked.sort()
    found = []
    for number, (_, name, category) in enumerate(ranked[: world.types or None]):
        first, second = rng.random(), rng.random()
        colours = words.COLOURS
        favourites = (colours[int(first * len(colours))], colours[int(second * len(colours))])
        nature = words.NATURE.get(category, "hard")
        found.append(Kind(number, name.replace("_", " "), category, nature, favourites))
    return found


def frequency(world: World, number: int) -> float:
    return (number + 1 + world.shift) ** -world.exponent


class Places:
    """Draws a place, and types that are seen there."""

    def __init__(self, world: World, types: list[Kind]) -> None:
        seen = [text.split() for text in words.PLACES.values()]
        count = Counter(category for categories in seen for category in categories)
        self.types, self.cumulative, totals = [], [], []
        for categories in seen:
            here = [kind for kind in types if kind.category in categories]
            # shared out over the places of its category: the sum over places is p again
            weights = [frequency(world, kind.number) / count[kind.category] for kind in here]
            if here:
                self.types.append(here)
                self.cumulative.append(list(accumulate(weights)))
                totals.append(self.cumulative[-1][-1])
        self.places = list(accumulate(totals))

    def place(self, rng: random.Random) -> int:
        return min(bisect(self.places, rng.random() * self.places[-1]), len(self.places) - 1)

    def kind(self, place: int, rng: random.Random) -> Kind:
        cumulative = self.cumulative[place]
        found = bisect(cumulative, rng.random() * cumulative[-1])
        return self.types[place][min(found, len(cumulative) - 1)]


def views(world: World, types: list[Kind], count: int) -> Iterator[View]:
    """`count` scenes."""
    rng = random.Random(f"{world.seed} scenes")
    places = Places(world, types)
    for number in range(count):
        place = places.place(rng)
        chosen: dict[str, Kind] = {}
        for _ in range(6 + int(6 * rng.random())):
            kind = places.kind(place, rng)
            chosen.setdefault(kind.name, kind)  # "the table" must be one table
        things = [Thing(kind, _attributes(kind, rng), (0, 0, 1, 1)) for kind in chosen.values()]
        for thing in things:
            thing.box = _box(thing.attributes["size"], rng)
        _act(things, rng)
        _relate(things)
        yield View(f"g{number}", things)


def _attributes(kind: Kind, rng: random.Random) -> dict[str, str]:
    found = {"color": _colour(kind, rng), "size": _one(words.SIZES, rng)}
    if words.MATERIALS[kind.nature]:
        found["material"] = _one(words.MATERIALS[kind.nature], rng)
    found["pose" if kind.nature == "living" else "state"] = _one(words.STATES[kind.nature], rng)
    return found


def _colour(kind: Kind, rng: random.Random) -> str:
    place = rng.random()
    if place < 0.3:
        return kind.favourites[place < 0.12]
    return _one(words.COLOURS, rng)


def _one(options: list[str], rng: random.Random) -> str:
    return options[int(rng.random() * len(options))]


def _box(size: str, rng: random.Random) -> tuple[int, int, int, int]:
    low, high = (0.08, 0.16) if size == "small" else (0.22, 0.4)
    w = int(WIDTH * (low + (high - low) * rng.random()))
    h = int(HEIGHT * (low + (high - low) * rng.random()))
    return int(rng.random() * (WIDTH - w)), int(rng.random() * (HEIGHT - h)), w, h


def _act(things: list[Thing], rng: random.Random) -> None:
    """People take things to themselves: what one holds, wears or rides is where that shows."""
    people = [thing for thing in things if thing.kind.category == PERSON]
    free = [t for t in things if t.kind.category in words.ACTION]
    for person in people:
        if not free or rng.random() < 0.2:
            continue
        thing = free.pop(int(rng.random() * len(free)))
        action = words.ACTION[thing.kind.category]
        x, y, w, h = person.box
        share = {"holding": (0.8, 0.35), "wearing": (0.15, 0.1), "riding": (0.1, 0.7)}[action]
        _, _, tw, th = thing.box
        left = min(max(int(x + share[0] * w), 0), WIDTH - tw)
        top = min(max(int(y + share[1] * h), 0), HEIGHT - th)
        thing.box = left, top, tw, th
        person.relations.append((action, thing))


def _relate(things: list[Thing]) -> None:
    """Spatial relations between objects whose centres are far enough apart to tell."""
    centres = [thing.centre for thing in things]
    for i, a in enumerate(things):
        for j in range(i + 1, len(things)):
            relation = spatial(centres[i], centres[j])
            if relation:
                b = things[j]
                a.relations.append((relation, b))
                b.relations.append((words.OPPOSITE[relation], a))


def spatial(a: tuple[float, float], b: tuple[float, float]) -> str:
    """How a lies to b along the axis on which they are further apart; "" where too close."""
    dx, dy = (a[0] - b[0]) / WIDTH, (a[1] - b[1]) / HEIGHT
    if max(abs(dx), abs(dy)) < 0.12:
        return ""
    if abs(dx) >= abs(dy):
        return "to the left of" if dx < 0 else "to the right of"
    return "above" if dy < 0 else "below"
