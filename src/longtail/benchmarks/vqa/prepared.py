"""What a visual question answering benchmark is made of, ready to be learned.

    row n:  questions[n], answers[n] (a number in answer_names), images[n] (a row of `regions`)
    task i: train rows  train_rows[train_offsets[i] : train_offsets[i + 1]], test rows likewise

Tasks overlap: a question that mentions a table and a bottle is a row of both. The regions of all
images lie end to end in memory-mapped arrays:

    image k has regions  offsets[k] : offsets[k + 1]  of features [R, F], boxes [R, 4], tags [R]
"""

import errno
import os
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from longtail.support.files import naming, parse_json, write_json

GEOMETRY = 6
"""Numbers that Oscar puts behind a region's features: corners, width and height of its box."""


@dataclass(frozen=True)
class Regions:
    """The regions of all images.

    Attributes:
        images: the images' names.
        offsets: int64 [K + 1], where each image's regions begin.
        features: float16 [R, F], memory-mapped, without box geometry.
        boxes: float32 [R, 4], corners (x1, y1, x2, y2) as shares of width and height.
        tags: int32 [R], the detector's word for the region, a number in `tag_names`; -1: none.
        tag_names: the words.
        sizes: int32 [K, 2], width and height in pixels; 0 where the files do not say.
        facts: what was wrong with the files.
    """

    images: Sequence[str]
    offsets: np.ndarray
    features: np.ndarray
    boxes: np.ndarray
    tags: np.ndarray
    tag_names: Sequence[str]
    sizes: np.ndarray
    facts: dict[str, Any] = field(default_factory=dict)

    ARRAYS = ("offsets", "features", "boxes", "tags", "sizes")
    NAMES = ("images", "tag_names", "facts")

    @property
    def width(self) -> int:
        return int(self.features.shape[1])

    def save(self, folder: Path) -> None:
        _save(self, folder)

    @classmethod
    def load(cls, folder: Path) -> "Regions":
        return _load(cls, folder)


@dataclass(frozen=True)
class PreparedVQA:
    """Questions, answers and tasks; the rows of train and test are rows of one table.

    Attributes:
        ids: the questions' ids in the published files.
        questions: their texts.
        answers: int64 [N].
        images: int64 [N], rows of `regions`.
        answer_names: the answers to choose from.
        task_names: the objects, in the order they are learned.
        train_offsets, train_rows, test_offsets, test_rows: int64, see above.
        groups: the answer group of each question ("color", "furniture", ...), "" where none.
        regions: what the images show; None in a benchmark without features.
        facts: counts of what was read and what was left out.
    """

    ids: Sequence[str]
    questions: Sequence[str]
    answers: np.ndarray
    images: np.ndarray
    answer_names: Sequence[str]
    task_names: Sequence[str]
    train_offsets: np.ndarray
    train_rows: np.ndarray
    test_offsets: np.ndarray
    test_rows: np.ndarray
    groups: Sequence[str]
    regions: Regions
    facts: dict[str, Any]

    ARRAYS = ("answers", "images", "train_offsets", "train_rows", "test_offsets", "test_rows")
    NAMES = ("ids", "questions", "answer_names", "task_names", "groups", "facts")

    def __len__(self) -> int:
        return len(self.questions)

    def train(self, task: int) -> np.ndarray:
        """The training rows of a task."""
        return self.train_rows[self.train_offsets[task] : self.train_offsets[task + 1]]

    def test(self, task: int) -> np.ndarray:
        """The test rows of a task."""
        return self.test_rows[self.test_offsets[task] : self.test_offsets[task + 1]]

    def save(self, folder: Path) -> None:
        """Everything but the regions, which have a folder of their own."""
        _save(self, folder)

    @classmethod
    def load(cls, folder: Path, regions: Regions) -> "PreparedVQA":
        return _load(cls, folder, regions=regions)


def geometry(boxes: np.ndarray) -> np.ndarray:
    """[..., 6] as Oscar has it, from corners [..., 4]: x1, y1, x2, y2, width, height."""
    return np.concatenate([boxes, boxes[..., 2:] - boxes[..., :2]], axis=-1)


def _save(value: Any, folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name in value.ARRAYS:
        np.save(folder / f"{name}.npy", getattr(value, name))
    save_names(folder, **{name: getattr(value, name) for name in value.NAMES})


def save_names(folder: Path, **names: Any) -> None:
    """The part that is no array; written last, so that a folder without it is not complete."""
    write_json(folder / "names.json", names)


@contextmanager
def whole_folder(target: Path) -> Iterator[Path]:
    """A folder to write to that becomes `target` when all is written, or else leaves no trace.

    Two processes may make the same one: the first to end wins, the other's is dropped.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    work = Path(tempfile.mkdtemp(prefix=f".{target.name}-", dir=target.parent))
    work.chmod(0o755)
    try:
        with naming(target):
            yield work
        try:
            os.replace(work, target)  # takes the place of nothing, or of an empty folder
        except OSError as error:
            if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
                raise
    finally:
        shutil.rmtree(work, ignore_errors=True)


def _load(kind: type, folder: Path, **others: Any) -> Any:
    try:
        names = parse_json(folder / "names.json", dict)
        arrays = {name: np.load(folder / f"{name}.npy", mmap_mode="r") for name in kind.ARRAYS}
        return kind(**arrays, **{name: names[name] for name in kind.NAMES}, **others)
    except Exception as error:  # NumPy lets Python's tokeniser read a header, and raise its errors
        raise ValueError(f"{folder} is damaged: {error}") from None
