"""A generated world as a source of questions and pictures.

Everything is a function of the world's settings: the same settings, the same numbers.
"""

import random
from collections import Counter
from collections.abc import Callable, Container, Iterator
from dataclasses import asdict
from functools import cached_property
from typing import Any

from longtail_bench.vqa.options import DataOptions
from longtail_bench.vqa.prepared import ImageRegions
from longtail_bench.vqa.problems import Problems
from longtail_bench.vqa.tasks import Question
from longtail_bench.vqa.world import questions as ask
from longtail_bench.vqa.world import yes_no as verify
from longtail_bench.vqa.world.balance import balanced
from longtail_bench.vqa.world.draws import Asked, Draw
from longtail_bench.vqa.world.features import BLOCK, Detector, shares
from longtail_bench.vqa.world.scenes import Kind, View, World, frequency, kinds, views

FAMILIES: tuple[tuple[int, Callable[[Draw, View], Asked | None]], ...] = (
    (26, ask.query_attribute),  # shares about as in GQA's balanced questions
    (14, ask.query_relation),
    (12, ask.query_action),
    (9, ask.choose_attribute),
    (5, ask.choose_relation),
    (10, verify.verify_attribute),
    (8, verify.verify_relation),
    (10, verify.exists),
    (6, verify.logical_attributes),
    (5, verify.logical_exists),
    (5, verify.compare),
)
RATIO = 1.5
SURPLUS = 1.6
"""Questions drawn for one that stays; the rest goes in balancing."""

MINIATURE = World(questions=2400, types=40, width=32, exponent=1.0, shift=4.0, detector=20)


def world_of(options: DataOptions) -> World:
    """The world that a benchmark's settings ask for."""
    base = asdict(MINIATURE if options.miniature else World())
    base |= {"seed": options.world_seed, "noise": options.noise}
    if options.types_seed != options.world_seed:  # the same world is prepared once
        base["types_seed"] = options.types_seed
    base |= {"occlusion": options.occlusion, "tag_noise": options.tag_noise}
    if not options.miniature:
        base |= {"questions": options.world_questions, "detector": options.detector}
    return World(**base)


class GeneratedWorld:
    """Scenes, what is asked about them, and what a detector sees of them."""

    def __init__(self, world: World) -> None:
        self.world = world

    @property
    def made_of(self) -> dict[str, Any]:
        return asdict(self.world)

    @cached_property
    def types(self) -> list[Kind]:
        return kinds(self.world)

    @cached_property
    def scenes(self) -> list[View]:
        """Those of training, then those of the tests."""
        return list(views(self.world, self.types, self._count))

    @cached_property
    def questions(self) -> tuple[list[Asked], list[Asked]]:
        """Those of training and those of the tests, drawn one after the other."""
        tests = max(1, round(self.world.test_share * self._count))
        train = self._count - tests
        weights = [frequency(self.world, kind.number) for kind in self.types]
        draw = Draw(self.types, weights, self.world.seed)
        asked = []
        for part in (self.scenes[:train], self.scenes[train:]):
            asked.append(_asked(draw, part, round(self.world.questions * len(part) / self._count)))
        return asked[0], asked[1]

    @property
    def _count(self) -> int:
        """Of the scenes."""
        return max(2, round(self.world.questions / self.world.per_image))

    def names(self, problems: Problems) -> list[str]:
        counts = Counter(thing.name for view in self.scenes for thing in view.things)
        return [name for name, _ in counts.most_common()]

    def train(self, problems: Problems) -> list[Question]:
        return _numbered("train", self.questions[0])

    def test(self, problems: Problems) -> list[Question]:
        return _numbered("test", self.questions[1])

    def regions(
        self, wanted: Container[str], problems: Problems, most: int
    ) -> Iterator[ImageRegions]:
        detector = Detector(self.world, self.types)
        keep = slice(most or None)
        for block, start in enumerate(range(0, len(self.scenes), BLOCK)):
            for view, features, tags in detector.see(self.scenes[start : start + BLOCK], block):
                if view.image in wanted:
                    boxes = shares(view)
                    yield ImageRegions(view.image, features[keep], boxes[keep], tags[keep])


def _numbered(part: str, asked: list[Asked]) -> list[Question]:
    return [Question(f"{part}{n}", q.image, q.text, q.answer) for n, q in enumerate(asked)]


def _asked(draw: Draw, part: list[View], wanted: int) -> list[Asked]:
    """`wanted` questions, balanced; more are drawn until there are enough."""
    families = [family for share, family in FAMILIES for _ in range(share)]
    found: list[Asked] = []
    kept: list[int] = []
    texts: set[tuple[str, str]] = set()
    for _ in range(8):
        for n in range(int(SURPLUS * wanted)):
            view = part[n % len(part)]
            asked = draw.pick(families)(draw, view)
            if asked is not None and (view.image, asked.text) not in texts:
                texts.add((view.image, asked.text))
                found.append(asked)
        kept = balanced(found, RATIO, 2, random.Random(f"{len(found)} balance"))
        if len(kept) >= wanted:
            break
    keep = sorted(kept, key=lambda n: draw.rng.random())[:wanted]
    return [found[n] for n in sorted(keep)]
