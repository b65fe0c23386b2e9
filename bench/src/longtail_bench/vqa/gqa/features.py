"""Region features as the publishers have them, as regions that a model can read.

files = feature_files(folder)                       # in either form of feature_forms
for image in read_regions(files, wanted, problems, most=45):
    ...
"""

from collections.abc import Container, Iterator
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np

from longtail_bench.vqa.gqa import feature_forms as forms
from longtail_bench.vqa.prepared import GEOMETRY, ImageRegions
from longtail_bench.vqa.problems import DUPLICATE, Problems

OUTSIDE = "boxes outside the image, clipped to it"
NO_BOXES = "regions without boxes, given the whole image"
NOT_FINITE = "features that are not finite, left out"
SHAPE = "features or boxes of a shape that is none, left out"
WRONG_WIDTH = "features of another width, left out"


class FeatureFiles(NamedTuple):
    """The files of region features in a folder, and their form."""

    form: Literal["tsv", "npz"]
    folder: Path
    files: list[Path]


def feature_files(folder: Path) -> FeatureFiles | None:
    """Those in the folder, or else in `features` within it."""
    for place in (folder, folder / "features"):
        features, labels = forms.tsv_files(place)
        if features:
            indices = [path.with_suffix(".lineidx") for path in features + labels]
            there = [path for path in indices if path.is_file()]
            return FeatureFiles("tsv", place, [*features, *labels, *there])
        archives = sorted(place.glob("*.npz"))
        if archives:
            return FeatureFiles("npz", place, archives)
    return None


def read_regions(
    features: FeatureFiles, wanted: Container[str], problems: Problems, most: int = 0
) -> Iterator[ImageRegions]:
    """The regions of the wanted images, at most `most` each (0: all), in the order of the files.

    All have the width of the first image's; boxes become shares of the image.
    """
    read = forms.read_tsv if features.form == "tsv" else forms.read_npz
    seen: set[str] = set()
    width = 0
    for raw in read(features.folder, wanted, problems):
        if raw.image in seen:
            problems.note(DUPLICATE, f"{raw.where}: {raw.image}")
            continue
        x, boxes = raw.features, raw.boxes
        if x.ndim != 2 or (boxes is not None and boxes.shape != (len(x), 4)):
            shape = "none" if boxes is None else boxes.shape
            problems.note(SHAPE, f"{raw.where}: features {x.shape}, boxes {shape}")
            continue
        if not np.isfinite(x).all() or (boxes is not None and not np.isfinite(boxes).all()):
            problems.note(NOT_FINITE, raw.where)
            continue
        if not len(x):
            continue
        shares = None
        if has_geometry(x):
            x, shares = x[:, :-GEOMETRY], x[:, -GEOMETRY : -GEOMETRY + 4]
        elif boxes is not None:
            scale = np.array(raw.size * 2, np.float32)
            shares = boxes / scale if scale.all() else boxes
        if shares is None:
            problems.note(NO_BOXES, raw.where)
            shares = np.tile(np.array([0, 0, 1, 1], np.float32), (len(x), 1))
        width = width or x.shape[1]
        if x.shape[1] != width:
            problems.note(WRONG_WIDTH, f"{raw.where}: {x.shape[1]}, expected {width}")
            continue
        keep = slice(most or None)
        shares = _inside(shares[keep], raw.where, problems)
        tags = None if raw.tags is None or len(raw.tags) != len(x) else raw.tags[keep]
        seen.add(raw.image)
        yield ImageRegions(raw.image, x[keep], shares, tags)


def has_geometry(x: np.ndarray, tolerance: float = 2e-3) -> bool:
    """Whether the last six columns are corners, width and height of boxes, as shares."""
    if x.shape[1] <= GEOMETRY:
        return False
    x1, y1, x2, y2, w, h = x[:, -GEOMETRY:].astype(np.float64).T
    fits = (np.abs(x2 - x1 - w) < tolerance) & (np.abs(y2 - y1 - h) < tolerance)
    return bool(fits.all() and (w > 0).any() and x2.max() < 1.1 and y2.max() < 1.1)


def _inside(boxes: np.ndarray, where: str, problems: Problems) -> np.ndarray:
    clipped = boxes.clip(0, 1)
    clipped[:, 2:] = np.maximum(clipped[:, 2:], clipped[:, :2])  # corners in the wrong order
    # detectors round: half a hundredth beyond the edge is no mistake worth naming
    if np.abs(clipped - boxes).max(initial=0) > 0.005:
        problems.note(OUTSIDE, where)
    return clipped
