"""Region features in the forms people have: a reader each, both yielding the same.

    tsv    Oscar / VinVL: features.tsv with lines  image TAB {"num_boxes": n, "features": base64}
           or  image TAB n TAB base64  (float32 [n, F]); beside it predictions.tsv or label.tsv with
           lines  image TAB {"image_w": .., "image_h": .., "objects": [{"class", "rect"}, ..]}
    npz    a folder with IMAGE.npz: features [n, F], boxes [n, 4] in pixels, width and height, and
           perhaps tags

Oscar's features end with six numbers of geometry (corners, width, height as shares of the image).
They are recognised by what they are, whatever the width, and become the boxes.
"""

import base64
import json
from codecs import BOM_UTF8
from collections.abc import Container, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from longtail_bench.vqa.problems import Problems


@dataclass(frozen=True, slots=True)
class RawRegions:
    """The regions of one image as a file has them: features [n, F], corners [n, 4], words or none.

    The boxes are in pixels where `size` (width, height) is known, else shares of the image.
    """

    image: str
    features: np.ndarray
    boxes: np.ndarray | None
    tags: list[str] | None
    size: tuple[int, int]
    where: str


TRUNCATED = "truncated line, left out"
UNREADABLE = "features that cannot be read, left out"
LABELS_DIFFER = "labels for another number of regions, left out"

# What numbers and texts of another kind than expected raise; binascii's error is a ValueError.
_DAMAGE = (ValueError, KeyError, TypeError, IndexError, AttributeError, OverflowError)
_DAMAGE += (RecursionError,)  # JSON of thousands of brackets


def tsv_files(folder: Path) -> tuple[list[Path], list[Path]]:
    """Files of features and files of labels."""
    files = sorted(folder.glob("*.tsv"))
    labels = [path for path in files if "label" in path.name or "predictions" in path.name]
    return [path for path in files if "feature" in path.name], labels


def read_tsv(folder: Path, wanted: Container[str], problems: Problems) -> Iterator[RawRegions]:
    """The TSV of Oscar and VinVL; labels are read first, as they are a hundredth of the size."""
    files, label_files = tsv_files(folder)
    labels = _labels(label_files, wanted, problems)
    for path in files:
        for number, columns in _tsv_lines(path, wanted):
            where = f"{path.name}, line {number}"
            image = columns[0]
            try:
                n, code = _counted_features(columns)
                flat = np.frombuffer(base64.b64decode(code, validate=True), np.float32)
                if n < 0 or (n and len(flat) % n) or (not n and len(flat)):
                    raise ValueError(f"{len(flat)} numbers for {n} regions")
            except _DAMAGE as error:
                problems.note(TRUNCATED, f"{where}, image {image} ({brief(error)})")
                continue
            x = flat.reshape(n, -1) if n else flat.reshape(0, 1)
            tags, boxes, size = labels.get(image, (None, None, (0, 0)))
            if tags is not None and len(tags) != n:
                problems.note(LABELS_DIFFER, f"{where}: {n} regions, {len(tags)} labels")
                tags, boxes = None, None
            yield RawRegions(image, x, boxes, tags, size, where)


def brief(error: Exception, most: int = 80) -> str:
    """What an error says, without the line of a megabyte that it may quote."""
    text = str(error)
    return text if len(text) <= most else f"{text[:most]}..."


def _counted_features(columns: list[str]) -> tuple[int, str]:
    if len(columns) >= 3:
        return int(columns[1]), columns[-1]
    entry = json.loads(columns[1])
    return int(entry["num_boxes"]), entry["features"]


def _tsv_lines(path: Path, wanted: Container[str]) -> Iterator[tuple[int, list[str]]]:
    """The numbers and columns of the lines about wanted images.

    With FILE.lineidx (the byte where each line starts) beside it, other lines are not read.
    """
    index = path.with_suffix(".lineidx")
    with open(path, "rb") as file:
        if not index.is_file():
            for number, line in enumerate(file, 1):
                if _image(line) in wanted:
                    yield number, _columns(line)
            return
        for number, start in _starts(index):
            file.seek(start)
            if _image(file.read(256)) in wanted:
                file.seek(start)
                yield number, _columns(file.readline())


def _starts(index: Path) -> Iterator[tuple[int, int]]:
    for number, text in enumerate(index.read_text(encoding="utf-8").split(), 1):
        if not text.isdecimal():
            raise ValueError(f"{index}, line {number}: {text!r} is no byte offset")
        yield number, int(text)


def _image(line: bytes) -> str:
    return line.removeprefix(BOM_UTF8).split(b"\t", 1)[0].decode(errors="replace").strip()


def _columns(line: bytes) -> list[str]:
    return line.removeprefix(BOM_UTF8).decode(errors="replace").rstrip("\r\n").split("\t")


Labels = tuple[list[str] | None, np.ndarray | None, tuple[int, int]]


def _labels(paths: Iterable[Path], wanted: Container[str], problems: Problems) -> dict[str, Labels]:
    found: dict[str, Labels] = {}
    for path in paths:
        for number, columns in _tsv_lines(path, wanted):
            try:
                entry = json.loads(columns[1])
                objects = entry["objects"] if isinstance(entry, dict) else entry
                size = (0, 0)
                if isinstance(entry, dict):
                    size = int(entry.get("image_w", 0)), int(entry.get("image_h", 0))
                boxes = None
                if objects and all("rect" in each for each in objects):
                    boxes = np.array([each["rect"] for each in objects], np.float32).reshape(-1, 4)
                found[columns[0]] = [str(each["class"]) for each in objects], boxes, size
            except _DAMAGE as error:
                problems.note(TRUNCATED, f"{path.name}, line {number} ({brief(error)})")
    return found


def read_npz(folder: Path, wanted: Container[str], problems: Problems) -> Iterator[RawRegions]:
    """One archive an image, named after it."""
    for path in sorted(folder.glob("*.npz")):
        if path.stem not in wanted:
            continue
        try:
            with open(path, "rb") as file, np.load(file, allow_pickle=False) as archive:
                content = {name: archive[name] for name in archive}
            features = np.asarray(content["features"], np.float32)
            boxes = np.asarray(content["boxes"], np.float32) if "boxes" in content else None
            tags = [str(word) for word in content["tags"]] if "tags" in content else None
            size = int(content.get("width", 0)), int(content.get("height", 0))
        except Exception as error:  # of damaged bytes NumPy and zipfile make errors of many kinds
            problems.note(UNREADABLE, f"{path.name} ({error})")
            continue
        yield RawRegions(path.stem, features, boxes, tags, size, path.name)
