"""Region features: three published forms, one result, and everything that can be wrong named."""

import base64
import json
from pathlib import Path

import numpy as np
import pytest

from longtail.benchmarks.vqa.gqa import feature_forms as forms
from longtail.benchmarks.vqa.gqa import features as storage
from longtail.benchmarks.vqa.gqa.stream import DUPLICATE, Problems
from longtail.benchmarks.vqa.prepared import Regions, geometry

WIDTH = 8
IMAGES = ("1", "n2", "3")
SIZE = (100, 50)


def made_up(seed: int = 0) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Features [n, 8] and corners in pixels [n, 4] of three images."""
    rng = np.random.default_rng(seed)
    found = {}
    for n, image in enumerate(IMAGES, 2):
        low = rng.integers(0, 20, (n, 2))
        corners = np.concatenate([low, low + rng.integers(1, 25, (n, 2))], 1).astype(np.float32)
        found[image] = rng.standard_normal((n, WIDTH)).astype(np.float32), corners
    return found


def encoded(x: np.ndarray) -> str:
    return base64.b64encode(np.ascontiguousarray(x, np.float32).tobytes()).decode()


def write_tsv(folder: Path, with_geometry: bool = True, columns: int = 2) -> list[str]:
    lines, labels = [], []
    for image, (x, corners) in made_up().items():
        shares = corners / np.array(SIZE * 2, np.float32)
        x = np.concatenate([x, geometry(shares)], 1) if with_geometry else x
        if columns == 2:
            rest = json.dumps({"num_boxes": len(x), "features": encoded(x)})
        else:
            rest = f"{len(x)}\t{encoded(x)}"
        lines.append(f"{image}\t{rest}\n")
        objects = [
            {"class": f"thing{i}", "rect": c.tolist(), "conf": 0.9} for i, c in enumerate(corners)
        ]
        label = {"image_w": SIZE[0], "image_h": SIZE[1], "objects": objects}
        labels.append(f"{image}\t{json.dumps(label)}\n")
    (folder / "features.tsv").write_text("".join(lines))
    (folder / "predictions.tsv").write_text("".join(labels))
    return lines


def write_npz(folder: Path) -> None:
    for image, (x, corners) in made_up().items():
        np.savez(folder / f"{image}.npz", features=x, boxes=corners, width=SIZE[0], height=SIZE[1])


def write_hdf5(folder: Path) -> None:
    h5py = pytest.importorskip("h5py")
    info = {}
    for part, images in enumerate((IMAGES[:2], IMAGES[2:])):
        with h5py.File(folder / f"gqa_objects_{part}.h5", "w") as file:
            features = file.create_dataset("features", (len(images), 100, WIDTH), np.float32)
            boxes = file.create_dataset("bboxes", (len(images), 100, 4), np.float32)
            for index, image in enumerate(images):
                x, corners = made_up()[image]
                features[index, : len(x)], boxes[index, : len(x)] = x, corners
                info[image] = {
                    "file": part,
                    "idx": index,
                    "objectsNum": len(x),
                    "width": SIZE[0],
                    "height": SIZE[1],
                }
    (folder / "gqa_objects_info.json").write_text(json.dumps(info))


def read(folder: Path, problems: Problems | None = None, images=IMAGES, **options) -> Regions:
    problems = Problems() if problems is None else problems
    return storage.read_regions(folder, images, problems, cache=folder / "cache", **options)


def check(regions: Regions, images=IMAGES) -> None:
    for image in images:
        k = list(regions.images).index(image)
        rows = slice(regions.offsets[k], regions.offsets[k + 1])
        x, corners = made_up()[image]
        np.testing.assert_array_equal(regions.features[rows], x.astype(np.float16))
        np.testing.assert_allclose(
            regions.boxes[rows], corners / np.array(SIZE * 2, np.float32), atol=1e-6
        )


@pytest.mark.parametrize("columns", [2, 3])
@pytest.mark.parametrize("with_geometry", [True, False])
def test_tsv(tmp_path: Path, columns: int, with_geometry: bool) -> None:
    write_tsv(tmp_path, with_geometry, columns)
    regions = read(tmp_path, Problems(strict=True))
    check(regions)
    assert isinstance(regions.features, np.memmap)
    assert regions.width == WIDTH
    assert [regions.tag_names[i] for i in regions.tags[:2]] == ["thing0", "thing1"]
    assert regions.sizes.tolist() == [list(SIZE)] * 3


def test_npz_and_hdf5_give_the_same(tmp_path: Path) -> None:
    for name, write in (("npz", write_npz), ("hdf5", write_hdf5)):
        folder = tmp_path / name
        folder.mkdir()
        write(folder)
        check(read(folder, Problems(strict=True)))


def test_lineidx_reads_only_wanted_lines(tmp_path: Path) -> None:
    lines = write_tsv(tmp_path)
    starts = np.cumsum([0, *map(len, lines)])[:-1]
    (tmp_path / "features.lineidx").write_text("".join(f"{start}\n" for start in starts))
    damaged = "x" * len(lines[0])  # unwanted: must not matter
    (tmp_path / "features.tsv").write_text(damaged[:-1] + "\n" + "".join(lines[1:]))
    check(read(tmp_path, Problems(strict=True), IMAGES[1:]), IMAGES[1:])
    (tmp_path / "features.lineidx").write_text("0\nzero\n")
    with pytest.raises(ValueError, match=r"features\.lineidx, line 2: 'zero'"):
        read(tmp_path, images=("1", "3"))


def test_a_mended_lineidx_is_read_anew(tmp_path: Path) -> None:
    lines = write_tsv(tmp_path)
    (tmp_path / "features.lineidx").write_text("0\n")  # as a copy that broke off leaves it
    problems = Problems()
    read(tmp_path, problems)
    assert problems.counts[storage.MISSING] == 2
    starts = np.cumsum([0, *map(len, lines)])[:-1]
    (tmp_path / "features.lineidx").write_text("".join(f"{start}\n" for start in starts))
    check(read(tmp_path, Problems(strict=True)))


def test_tsv_may_begin_with_a_mark_and_end_lines_as_windows_does(tmp_path: Path) -> None:
    write_tsv(tmp_path)
    for name in ("features.tsv", "predictions.tsv"):
        text = (tmp_path / name).read_bytes().replace(b"\n", b"\r\n")
        (tmp_path / name).write_bytes(b"\xef\xbb\xbf" + text)
    check(read(tmp_path, Problems(strict=True)))


def test_at_most_so_many_regions(tmp_path: Path) -> None:
    write_tsv(tmp_path)
    assert np.diff(read(tmp_path, most=2).offsets).tolist() == [2, 2, 2]


def test_conversion_is_cached_by_content(tmp_path: Path) -> None:
    write_tsv(tmp_path)
    first = read(tmp_path)
    assert read(tmp_path).features.filename == first.features.filename
    (tmp_path / "features.tsv").write_text((tmp_path / "features.tsv").read_text() + "\n")
    assert read(tmp_path).features.filename != first.features.filename


@pytest.mark.parametrize("cut", [5, 40, 100])
def test_truncated_tsv_is_named_with_its_line(tmp_path: Path, cut: int) -> None:
    write_tsv(tmp_path)
    text = (tmp_path / "features.tsv").read_text()
    (tmp_path / "features.tsv").write_text(text[:-cut])
    problems = Problems()
    regions = read(tmp_path, problems)
    assert problems.counts == {forms.TRUNCATED: 1, storage.MISSING: 1}
    assert "features.tsv, line 3, image 3" in problems.lines()[0]
    assert np.diff(regions.offsets).tolist() == [2, 3, 0]
    check(regions, IMAGES[:2])
    again = Problems()
    read(tmp_path, again)
    assert again.counts == problems.counts, "what was wrong is remembered with the cache"
    with pytest.raises(ValueError, match=r"features\.tsv, line 3"):
        read(tmp_path, Problems(strict=True))


def test_a_line_without_its_end_is_not_quoted_whole(tmp_path: Path) -> None:
    write_tsv(tmp_path)
    path = tmp_path / "features.tsv"
    lines = path.read_text().splitlines(keepends=True)
    path.write_text(lines[0][:-30] + lines[1] + lines[2])
    problems = Problems()
    read(tmp_path, problems)
    assert problems.counts[forms.TRUNCATED] == 1
    assert len(problems.examples[forms.TRUNCATED][0]) < 200


def test_truncated_labels_are_named(tmp_path: Path) -> None:
    write_tsv(tmp_path)
    path = tmp_path / "predictions.tsv"
    path.write_text(path.read_text()[:-30])
    problems = Problems()
    check(read(tmp_path, problems))
    assert "predictions.tsv, line 3" in problems.lines()[0]


def test_truncated_hdf5_is_named(tmp_path: Path) -> None:
    write_hdf5(tmp_path)
    path = tmp_path / "gqa_objects_1.h5"
    path.write_bytes(path.read_bytes()[:2000])
    problems = Problems()
    regions = read(tmp_path, problems)
    assert problems.counts == {forms.NO_PART: 1, storage.MISSING: 1}
    assert "gqa_objects_1.h5" in problems.examples[forms.NO_PART][0]
    check(regions, IMAGES[:2])
    path.unlink()
    with pytest.raises(ValueError, match=r"gqa_objects_1\.h5"):
        read(tmp_path, Problems(strict=True))


def test_an_index_beyond_the_part_is_named(tmp_path: Path) -> None:
    write_hdf5(tmp_path)
    path = tmp_path / "gqa_objects_info.json"
    info = json.loads(path.read_text())
    info["n2"]["idx"] = 77
    path.write_text(json.dumps(info))
    problems = Problems()
    check(read(tmp_path, problems), ("1", "3"))
    assert "image n2" in problems.examples[forms.UNREADABLE][0]


def test_wrong_widths_are_named(tmp_path: Path) -> None:
    write_npz(tmp_path)
    np.savez(tmp_path / "n2.npz", features=np.ones((2, 5)), boxes=np.ones((2, 4)))
    problems = Problems()
    check(read(tmp_path, problems), ("1", "3"))
    assert problems.examples[forms.WRONG_WIDTH] == ["n2.npz: 5, expected 8"]
    write_tsv(tmp_path)
    with pytest.raises(ValueError, match=r"line 1: 14, expected 2048.*another width"):
        read(tmp_path, Problems(strict=True), width=2048)


def test_broken_and_strange_archives_are_named(tmp_path: Path) -> None:
    write_npz(tmp_path)
    (tmp_path / "1.npz").write_bytes((tmp_path / "1.npz").read_bytes()[:90])
    np.savez(tmp_path / "n2.npz", features=np.ones((2, 8)), boxes=np.ones((3, 4)))
    np.savez(tmp_path / "3.npz", features=np.full((2, 8), np.nan), boxes=np.ones((2, 4)))
    problems = Problems()
    read(tmp_path, problems)
    assert problems.counts == {
        forms.UNREADABLE: 1,
        storage.SHAPE: 1,
        storage.NOT_FINITE: 1,
        storage.MISSING: 3,
    }


@pytest.mark.parametrize(
    "change",
    [
        {"tags": np.array("word")},
        {"boxes": np.array([["a"] * 4] * 2)},
        {"width": np.inf},
        {"width": np.array([1, 2])},
    ],
    ids=["tags", "boxes", "infinite", "sizes"],
)
def test_an_archive_with_a_strange_entry_is_named(tmp_path: Path, change: dict) -> None:
    write_npz(tmp_path)
    x, corners = made_up()["1"]
    content = {"features": x, "boxes": corners, "width": SIZE[0], "height": SIZE[1], **change}
    np.savez(tmp_path / "1.npz", **content)
    problems = Problems()
    check(read(tmp_path, problems), IMAGES[1:])
    assert problems.counts == {forms.UNREADABLE: 1, storage.MISSING: 1}
    assert problems.examples[forms.UNREADABLE][0].startswith("1.npz (")


def test_an_archive_with_damaged_content_is_named(tmp_path: Path) -> None:
    write_npz(tmp_path)
    path = tmp_path / "1.npz"
    noise = np.random.default_rng(0).standard_normal((99, WIDTH))
    np.savez_compressed(path, features=noise, boxes=np.ones((99, 4)))
    content = path.read_bytes()
    path.write_bytes(content[:500] + b"\xff" * 400 + content[900:])
    problems = Problems()
    check(read(tmp_path, problems), IMAGES[1:])
    assert problems.counts == {forms.UNREADABLE: 1, storage.MISSING: 1}


@pytest.mark.parametrize(
    "change", [{"objectsNum": None}, {"width": None}, {"objectsNum": -1}, {"height": 1e999}]
)
def test_a_strange_entry_of_hdf5_is_named(tmp_path: Path, change: dict) -> None:
    write_hdf5(tmp_path)
    path = tmp_path / "gqa_objects_info.json"
    info = json.loads(path.read_text())
    path.write_text(json.dumps({**info, "1": {**info["1"], **change}}))
    problems = Problems()
    check(read(tmp_path, problems), IMAGES[1:])
    assert problems.counts == {forms.UNREADABLE: 1, storage.MISSING: 1}
    assert problems.examples[forms.UNREADABLE][0].startswith("gqa_objects_0.h5: image 1 (")


def test_an_infinite_number_in_a_tsv_is_named(tmp_path: Path) -> None:
    write_tsv(tmp_path, with_geometry=False)
    for name, number in (("features.tsv", '"num_boxes": 2'), ("predictions.tsv", '"image_w": 100')):
        text = (tmp_path / name).read_text()
        infinite = number.split(":")[0] + ": Infinity"
        (tmp_path / name).write_text(text.replace(number, infinite, 1))
    problems = Problems()
    check(read(tmp_path, problems), IMAGES[1:])
    assert problems.counts == {forms.TRUNCATED: 2, storage.MISSING: 1}


def test_boxes_outside_the_image_are_clipped_and_counted(tmp_path: Path) -> None:
    write_npz(tmp_path)
    x = made_up()["1"][0]
    boxes = np.array([[-10, 0, 50, 25], [90, 40, 130, 60]])
    np.savez(tmp_path / "1.npz", features=x, boxes=boxes, width=SIZE[0], height=SIZE[1])
    problems = Problems()
    regions = read(tmp_path, problems)
    assert problems.examples[storage.OUTSIDE] == ["1.npz"]
    assert regions.boxes[:2].tolist() == pytest.approx(
        np.array([[0, 0, 0.5, 0.5], [0.9, 0.8, 1, 1]])
    )


def test_labels_for_other_regions_are_named(tmp_path: Path) -> None:
    write_tsv(tmp_path)
    label = json.dumps({"objects": [{"class": "one", "rect": [0, 0, 1, 1]}]})
    (tmp_path / "predictions.tsv").write_text(f"1\t{label}\n")
    problems = Problems()
    regions = read(tmp_path, problems)
    assert problems.examples[forms.LABELS_DIFFER] == ["features.tsv, line 1: 2 regions, 1 labels"]
    assert set(regions.tags.tolist()) == {-1}


def test_an_image_twice_is_named(tmp_path: Path) -> None:
    lines = write_tsv(tmp_path)
    (tmp_path / "features.tsv").write_text("".join([*lines, lines[0]]))
    problems = Problems()
    check(read(tmp_path, problems))
    assert problems.examples[DUPLICATE] == ["features.tsv, line 4: 1"]


def test_a_folder_without_features_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="holds no region features"):
        storage.find_features(tmp_path)
    (tmp_path / "objects").mkdir()
    write_npz(tmp_path / "objects")
    assert storage.find_features(tmp_path) == tmp_path / "objects"
