"""What a detector would see of a generated scene: a feature vector, a box and a word per object.

    f = (category + type + s * (colour + material + state) + noise * n) / scale
    f <- (1 - a) f + a f_other          for an occluded object, a uniform in [0.2, 0.6]

with a fixed random prototype for each category, type and attribute value, s the size of the
attributes' prototypes, and n standard normal. Size is not in the features: it is in the box.

Words give little away. A detector knows the frequent types by name and calls the others by their
category, and a share of its words names another object of the category; attributes and relations
are in no word.
"""

from collections.abc import Iterator

import numpy as np

from longtail.support.random import derive, integers, normal, uniform
from longtail_bench.vqa.world import words
from longtail_bench.vqa.world.scenes import HEIGHT, WIDTH, Kind, View, World

BLOCK = 4096


class Detector:
    """Prototypes and words of a world."""

    def __init__(self, world: World, types: list[Kind]) -> None:
        self.world, self.types = world, types
        categories = list(words.CATEGORIES)
        self.category = np.array([categories.index(kind.category) for kind in types])
        values = [*words.COLOURS]
        for options in (*words.MATERIALS.values(), *words.STATES.values()):
            values += options
        self.value = {value: i for i, value in enumerate(dict.fromkeys(values))}
        self.of_type = self._prototypes(len(types), "type")
        self.of_type += 0.7 * self._prototypes(len(categories), "category")[self.category]
        self.of_value = world.attributes * self._prototypes(len(self.value), "value")
        self.of_value = np.concatenate([self.of_value, np.zeros((1, world.width), np.float32)])
        self.scale = np.float32(np.sqrt(1.5 + 3 * world.attributes**2 + world.noise**2))
        members = {c: np.flatnonzero(self.category == c) for c in set(self.category.tolist())}
        self.same_category = [members[c] for c in self.category.tolist()]

    def _prototypes(self, count: int, what: str) -> np.ndarray:
        drawn = normal(count * self.world.width, derive(self.world.look_seed, "prototypes", what))
        return drawn.numpy().reshape(count, self.world.width)

    def see(self, views: list[View], block: int) -> Iterator[tuple[View, np.ndarray, list[str]]]:
        """Each view of a block with the features [n, F] of its things and their words."""
        seed = derive(self.world.seed, "seen", block)
        things = [thing for view in views for thing in view.things]
        sizes = np.array([len(view.things) for view in views])
        number = np.array([thing.kind.number for thing in things])
        blank = len(self.of_value) - 1
        value = np.full((len(things), 3), blank)
        for row, thing in zip(value, things, strict=True):
            found = [v for a, v in thing.attributes.items() if a != "size"]
            row[: len(found)] = [self.value[v] for v in found]
        noise = normal(len(things) * self.world.width, seed, "noise").numpy()
        x = self.of_type[number] + self.of_value[value].sum(1)
        x += np.float32(self.world.noise) * noise.reshape(x.shape)
        x = self._occluded(x, sizes, seed) / self.scale
        tags = self._words(number, seed)
        stops = np.cumsum(sizes)
        for view, stop, size in zip(views, stops, sizes, strict=True):
            yield view, x[stop - size : stop], tags[stop - size : stop]

    def _occluded(self, x: np.ndarray, sizes: np.ndarray, seed: int) -> np.ndarray:
        """Some things are seen through another of the same view."""
        n = len(x)
        start = np.repeat(np.cumsum(sizes) - sizes, sizes)
        step = 1 + integers(1 << 16, n, seed, "by").numpy() % np.repeat(
            np.maximum(sizes - 1, 1), sizes
        )
        other = start + (np.arange(n) - start + step) % np.repeat(sizes, sizes)
        share = 0.2 + 0.4 * uniform(n, seed, "how much").numpy()
        share *= uniform(n, seed, "occluded").numpy() < self.world.occlusion
        share = share.astype(np.float32)[:, None]
        return (1 - share) * x + share * x[other]

    def _words(self, number: np.ndarray, seed: int) -> list[str]:
        wrong = uniform(len(number), seed, "wrong").numpy() < self.world.tag_noise
        draw = uniform(len(number), seed, "word").numpy()
        found = []
        for kind, is_wrong, place in zip(
            number.tolist(), wrong.tolist(), draw.tolist(), strict=True
        ):
            if is_wrong:
                options = self.same_category[kind]
                kind = int(options[int(place * len(options))])
            known = self.types[kind]
            name = known.name if kind < self.world.detector else known.category.replace("_", " ")
            found.append(name)
        return found


def shares(view: View) -> np.ndarray:
    """The boxes of a view's things as corners, shares of the image [n, 4]."""
    x, y, w, h = np.array([thing.box for thing in view.things], np.float32).T
    scale = np.array([WIDTH, HEIGHT, WIDTH, HEIGHT], np.float32)
    return np.stack([x, y, x + w, y + h], axis=1) / scale
