"""A built-in miniature: noisy seven-segment digits, so that every command runs with no files.

Class k is drawn as its number. A network has to look at shapes, as with the real images, but a few
hundred examples are enough.
"""

import numpy as np

from longtail.support.random import integers, normal, uniform
from longtail_bench.images.files import SOURCES, Images

TRAIN_PER_CLASS = 80
TEST_PER_CLASS = 20
SIDE = 16

# segments: top, upper left, upper right, middle, lower left, lower right, bottom
_SEGMENTS = (0x77, 0x24, 0x5D, 0x6D, 0x2E, 0x6B, 0x7B, 0x25, 0x7F, 0x6F)


def _glyph(digit: int) -> np.ndarray:
    """[9, 5] of 0 and 1."""
    on = [bool(_SEGMENTS[digit] >> bit & 1) for bit in range(7)]
    glyph = np.zeros((9, 5), np.float32)
    for bit, row in ((0, 0), (3, 4), (6, 8)):
        glyph[row, :] = np.maximum(glyph[row, :], on[bit])
    for bit, rows, column in ((1, 0, 0), (2, 0, 4), (4, 4, 0), (5, 4, 4)):
        glyph[rows : rows + 5, column] = np.maximum(glyph[rows : rows + 5, column], on[bit])
    return glyph


def miniature(name: str, seed: int = 0) -> Images:
    """Images like those of `name`, 16 pixels a side: 80 a class to train on and 20 to test."""
    source = SOURCES[name]
    train, train_labels = _draw(source.classes, TRAIN_PER_CLASS, source.shape[0], seed, "train")
    test, test_labels = _draw(source.classes, TEST_PER_CLASS, source.shape[0], seed, "test")
    return Images(train, train_labels, test, test_labels)


def _draw(
    classes: int, each: int, channels: int, seed: int, part: str
) -> tuple[np.ndarray, np.ndarray]:
    n = classes * each
    labels = np.arange(n, dtype=np.int64) % classes
    glyphs = np.stack([_glyph(d) for d in range(10)])
    digits = (labels % 10,) if classes <= 10 else (labels // 10, labels % 10)
    ink = np.concatenate([np.pad(glyphs[d], ((0, 0), (0, 0), (0, 1))) for d in digits], axis=2)

    height, width = ink.shape[1:]
    # a pixel off the centre at most: more would ask for more examples than a miniature has
    top = (SIDE - height) // 2 + integers(3, n, seed, part, "top").numpy() - 1
    left = (SIDE - width) // 2 + integers(3, n, seed, part, "left").numpy() - 1
    rows = (top[:, None] + np.arange(height))[:, :, None]
    columns = (left[:, None] + np.arange(width))[:, None, :]
    canvas = np.zeros((n, SIDE, SIDE), np.float32)
    canvas[np.arange(n)[:, None, None], rows, columns] = ink

    # each image has its own strength of ink and, in colour, its own ink and paper
    paint = uniform(2 * n * channels, seed, part, "paint").numpy().reshape(2, n, channels, 1, 1)
    ink_level, paper = (0.6 + 0.4 * paint[0], 0.3 * paint[1])
    noise = normal(n * channels * SIDE * SIDE, seed, part, "noise").numpy()
    x = paper + canvas[:, None] * (ink_level - paper)
    x = x + 0.1 * noise.reshape(n, channels, SIDE, SIDE)
    return (255 * x.clip(0, 1)).astype(np.uint8), labels
