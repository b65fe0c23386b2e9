"""Region features from the publishers' files into memory-mapped storage, once.

    regions = read_regions(folder, images, problems)      # folder in any form of feature_forms

The storage lies in the cache folder under a name made of the files' content and of what was asked
for, in float16, without geometry: about 0.2 MB an image at 45 regions of 2,048.
"""

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import IO, Any

import numpy as np

from longtail.benchmarks.vqa.gqa import feature_forms as forms
from longtail.benchmarks.vqa.gqa.feature_forms import ImageRegions
from longtail.benchmarks.vqa.gqa.stream import DUPLICATE, Problems
from longtail.benchmarks.vqa.prepared import GEOMETRY, Regions, save_names, whole_folder
from longtail.support.downloads import cache_folder

OUTSIDE = "boxes outside the image, clipped to it"
MISSING = "image without features"
NO_BOXES = "regions without boxes, given the whole image"
NOT_FINITE = "features that are not finite, left out"
SHAPE = "features or boxes of a shape that is none, left out"

_SAMPLE = 1 << 20


def feature_form(folder: Path) -> tuple[str, list[Path]]:
    """Which of the three forms a folder holds, and its files."""
    if (folder / "gqa_objects_info.json").is_file():
        parts = sorted(folder.glob("gqa_objects_*.h5"))
        return "hdf5", [folder / "gqa_objects_info.json", *parts]
    features, labels = forms.tsv_files(folder)
    if features:
        indices = [path.with_suffix(".lineidx") for path in features + labels]
        return "tsv", [*features, *labels, *(path for path in indices if path.is_file())]
    archives = sorted(folder.glob("*.npz"))
    if archives:
        return "npz", archives
    raise ValueError(
        f"{folder} holds no region features: neither gqa_objects_info.json with gqa_objects_N.h5, "
        "nor features.tsv, nor IMAGE.npz"
    )


def find_features(folder: Path) -> Path:
    """The folder itself, or the one within it where features usually lie."""
    for name in ("", "features", "objects", "allImages/objects", "objectFeatures"):
        try:
            feature_form(folder / name)
        except ValueError:
            continue
        return folder / name
    feature_form(folder)
    raise AssertionError  # the line above has raised


def fingerprint(paths: Iterable[Path]) -> str:
    """Of names, sizes and content; of large files a megabyte at the start, middle and end."""
    found = hashlib.blake2b(digest_size=12)
    for path in paths:
        size = path.stat().st_size
        found.update(f"{path.name}\0{size}\0".encode())
        with open(path, "rb") as file:
            if size <= 4 * _SAMPLE:
                found.update(file.read())
                continue
            for place in (0, size // 2, size - _SAMPLE):
                file.seek(place)
                found.update(file.read(_SAMPLE))
    return found.hexdigest()


def read_regions(
    folder: Path,
    images: Sequence[str],
    problems: Problems,
    *,
    width: int = 0,
    most: int = 0,
    cache: Path | None = None,
) -> Regions:
    """The regions of `images`, at most `most` each (0: all), in the order of the files.

    Images without features are noted, come last and have no regions. `width` is what the features
    should have, without geometry; 0 means that of the first image.
    """
    form, files = feature_form(folder)
    asked = "\0".join((form, str(width), str(most), *images))
    key = hashlib.blake2b((fingerprint(files) + asked).encode(), digest_size=12).hexdigest()
    target = (cache or cache_folder("vqa")) / f"regions-{key}"
    if not (target / "names.json").is_file():
        _convert(form, folder, images, Problems(problems.strict), width, most, target)
    regions = Regions.load(target)
    for kind, (count, examples) in regions.facts.items():
        problems.merge(kind, count, examples)
    for image, count in zip(regions.images, np.diff(regions.offsets), strict=True):
        if not count:
            problems.note(MISSING, f"image {image}")
    return regions


def _convert(
    form: str,
    folder: Path,
    images: Sequence[str],
    problems: Problems,
    width: int,
    most: int,
    target: Path,
) -> None:
    wanted = {image: k for k, image in enumerate(images)}
    if form == "tsv":
        found: Iterable[ImageRegions] = forms.read_tsv(folder, wanted, problems, width)
    else:
        found = (forms.read_hdf5 if form == "hdf5" else forms.read_npz)(folder, wanted, problems)
    with whole_folder(target) as work:
        _write(work, _usable(found, problems, width, most), images, wanted, problems)


def _usable(
    found: Iterable[ImageRegions], problems: Problems, width: int, most: int
) -> Iterator[tuple[ImageRegions, np.ndarray]]:
    """Each image's regions with features and boxes of the right form, the boxes as shares."""
    seen: set[str] = set()
    for entry in found:
        if entry.image in seen:
            problems.note(DUPLICATE, f"{entry.where}: {entry.image}")
            continue
        x, boxes = entry.features, entry.boxes
        if x.ndim != 2 or (boxes is not None and boxes.shape != (len(x), 4)):
            shape = "none" if boxes is None else boxes.shape
            problems.note(SHAPE, f"{entry.where}: features {x.shape}, boxes {shape}")
            continue
        if not np.isfinite(x).all() or (boxes is not None and not np.isfinite(boxes).all()):
            problems.note(NOT_FINITE, entry.where)
            continue
        shares = None
        if has_geometry(x):
            x, shares = x[:, :-GEOMETRY], x[:, -GEOMETRY : -GEOMETRY + 4]
        elif boxes is not None:
            scale = np.array(entry.size * 2, np.float32)
            shares = boxes / scale if scale.all() else boxes
        if shares is None:
            problems.note(NO_BOXES, entry.where)
            shares = np.tile(np.array([0, 0, 1, 1], np.float32), (len(x), 1))
        width = width or x.shape[1]
        if x.shape[1] != width:
            problems.note(forms.WRONG_WIDTH, f"{entry.where}: {x.shape[1]}, expected {width}")
            continue
        keep = slice(most or None)
        shares = _inside(shares[keep], entry.where, problems)
        tags = None if entry.tags is None or len(entry.tags) != len(x) else entry.tags[keep]
        seen.add(entry.image)
        yield ImageRegions(entry.image, x[keep], None, tags, entry.size, entry.where), shares


def has_geometry(x: np.ndarray, tolerance: float = 2e-3) -> bool:
    """Whether the last six columns are corners, width and height of boxes, as shares."""
    if x.shape[1] <= GEOMETRY or not len(x):
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


class _Rows:
    """A .npy file that grows; its header is written again when the number of rows is known."""

    def __init__(self, file: IO[bytes], dtype: Any, tail: tuple[int, ...] | None = None) -> None:
        self.file, self.dtype, self.tail, self.rows = file, np.dtype(dtype), tail, 0

    def append(self, values: np.ndarray) -> None:
        values = np.ascontiguousarray(values, self.dtype)
        if not self.rows:
            self.tail = values.shape[1:]
            self.header()
        self.rows += len(values)
        self.file.write(values.tobytes())

    def header(self) -> None:
        """NumPy leaves room for the first dimension to grow, so the length stays the same."""
        self.file.seek(0)
        shape = (self.rows, *(self.tail or ()))
        described = {"descr": self.dtype.str, "fortran_order": False, "shape": shape}
        np.lib.format.write_array_header_1_0(self.file, described)


def _write(
    work: Path,
    found: Iterable[tuple[ImageRegions, np.ndarray]],
    images: Sequence[str],
    wanted: dict[str, int],
    problems: Problems,
) -> None:
    """Images in the order in which they come, those that are missing last."""
    words: dict[str, int] = {}
    starts = np.zeros((len(images), 2), np.int64)
    sizes = np.zeros((len(images), 2), np.int32)
    limit = np.finfo(np.float16).max
    with (
        open(work / "features.npy", "wb") as first,
        open(work / "boxes.npy", "wb") as second,
        open(work / "tags.npy", "wb") as third,
    ):
        features, boxes = _Rows(first, np.float16, (1,)), _Rows(second, np.float32, (4,))
        tags = _Rows(third, np.int32)
        for entry, shares in found:
            if not len(entry.features):
                continue
            k = wanted[entry.image]
            starts[k] = features.rows, features.rows + len(shares)
            sizes[k] = entry.size
            features.append(entry.features.clip(-limit, limit))
            boxes.append(shares)
            numbers = [words.setdefault(word, len(words)) for word in entry.tags or ()]
            tags.append(np.array(numbers or [-1] * len(shares)))
        for rows in (features, boxes, tags):
            rows.header()
    order = np.lexsort((starts[:, 0], starts[:, 1] == 0))
    lengths = (starts[:, 1] - starts[:, 0])[order]
    np.save(work / "offsets.npy", np.concatenate([[0], np.cumsum(lengths)]))
    np.save(work / "sizes.npy", sizes[order])
    facts = {kind: (count, problems.examples[kind]) for kind, count in problems.counts.items()}
    names = [images[k] for k in order]
    save_names(work, images=names, tag_names=list(words), facts=facts)
