"""What a visual question answering benchmark is made of, ready to be learned.

    row n:  questions[n], answers[n] (a number in answer_names), images[n] (a row of `regions`)
    task i: train rows  train_rows[train_offsets[i] : train_offsets[i + 1]], test rows likewise

Tasks overlap: a question that mentions a table and a bottle is a row of both. The regions of all
images lie end to end, their features in a memory-mapped file:

    image k has regions  offsets[k] : offsets[k + 1]  of features [R, F], boxes [R, 4], tags [R]
"""

from collections.abc import Iterable
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from longtail_bench.prepared import Form, load, save

FORM = Form("VQA benchmark", 1, mapped=("features",))
GEOMETRY = 6
"""Numbers that Oscar puts behind a region's features: corners, width and height of its box."""


@dataclass(frozen=True)
class Regions:
    """The regions of all images.

    Attributes:
        image_names: the images' names.
        offsets: int64 [K + 1], where each image's regions begin.
        features: float16 [R, F], memory-mapped, without box geometry.
        boxes: float32 [R, 4], corners (x1, y1, x2, y2) as shares of width and height.
        tags: int32 [R], the detector's word for the region, a number in `tag_names`; -1: none.
        tag_names: the words.
    """

    image_names: list[str]
    offsets: np.ndarray
    features: np.ndarray
    boxes: np.ndarray
    tags: np.ndarray
    tag_names: list[str]

    @property
    def width(self) -> int:
        return int(self.features.shape[1])


@dataclass(frozen=True)
class PreparedVQA:
    """Questions, answers and tasks; the rows of train and test are rows of one table.

    Attributes:
        questions: their texts.
        answers: int64 [N].
        images: int64 [N], rows of `regions`.
        answer_names: the answers to choose from.
        task_names: the objects, in the order they are learned.
        train_offsets, train_rows, test_offsets, test_rows: int64, see above.
        regions: what the images show.
        counts: of what was read and what was left out.
        problems: what was wrong with the files: how often, and the first places.
    """

    questions: list[str]
    answers: np.ndarray
    images: np.ndarray
    answer_names: list[str]
    task_names: list[str]
    train_offsets: np.ndarray
    train_rows: np.ndarray
    test_offsets: np.ndarray
    test_rows: np.ndarray
    regions: Regions
    counts: dict[str, int]
    problems: dict[str, tuple[int, list[str]]]

    def __len__(self) -> int:
        return len(self.questions)

    def train(self, task: int) -> np.ndarray:
        """The training rows of a task."""
        return self.train_rows[self.train_offsets[task] : self.train_offsets[task + 1]]

    def test(self, task: int) -> np.ndarray:
        """The test rows of a task."""
        return self.test_rows[self.test_offsets[task] : self.test_offsets[task + 1]]

    def save(self, folder: Path) -> None:
        """To a folder that is not there, for `Settings.prepared` on another machine."""
        values = vars(self) | vars(self.regions)
        del values["regions"]
        save(FORM, folder, values)

    @classmethod
    def load(cls, folder: Path) -> "PreparedVQA":
        values = load(FORM, folder)
        try:
            regions = Regions(**{field.name: values.pop(field.name) for field in fields(Regions)})
            return cls(**values, regions=regions)
        except (KeyError, TypeError) as error:
            raise ValueError(f"{folder} is damaged: {error}") from None


class ImageRegions(NamedTuple):
    """The regions of one image: features [n, F], boxes [n, 4] as shares, words or none."""

    image: str
    features: np.ndarray
    boxes: np.ndarray
    tags: list[str] | None


def store_regions(work: Path, images: Iterable[ImageRegions]) -> dict[str, Any]:
    """Write the features of images as they come to `work`; the other values of `Regions`."""
    names: list[str] = []
    ends, boxes, tags = [0], [np.zeros((0, 4), np.float32)], [np.zeros(0, np.int32)]
    words: dict[str, int] = {}
    width, limit = 1, np.finfo(np.float16).max
    with open(work / "features.npy", "wb") as file:
        for image in images:
            if not names:
                width = image.features.shape[1]
                _write_header(file, 0, width)
            names.append(image.image)
            ends.append(ends[-1] + len(image.features))
            file.write(image.features.clip(-limit, limit).astype(np.float16).tobytes())
            boxes.append(image.boxes)
            numbers = [words.setdefault(word, len(words)) for word in image.tags or ()]
            tags.append(np.array(numbers or [-1] * len(image.features), np.int32))
        # NumPy leaves room for the first dimension to grow: the header's length stays the same
        file.seek(0)
        _write_header(file, ends[-1], width)
    return {
        "image_names": names,
        "offsets": np.array(ends, np.int64),
        "boxes": np.concatenate(boxes, dtype=np.float32),
        "tags": np.concatenate(tags),
        "tag_names": list(words),
    }


def _write_header(file: Any, rows: int, width: int) -> None:
    about = {"descr": "<f2", "fortran_order": False, "shape": (rows, width)}
    np.lib.format.write_array_header_1_0(file, about)


def geometry(boxes: np.ndarray) -> np.ndarray:
    """[..., 6] as Oscar has it, from corners [..., 4]: x1, y1, x2, y2, width, height."""
    return np.concatenate([boxes, boxes[..., 2:] - boxes[..., :2]], axis=-1)
