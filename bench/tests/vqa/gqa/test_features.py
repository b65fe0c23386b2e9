"""Region features: two forms, one result, and everything that can be wrong named."""

import base64
import json
from pathlib import Path

import numpy as np
import pytest

from longtail_bench.vqa.gqa import feature_forms as forms
from longtail_bench.vqa.gqa import features
from longtail_bench.vqa.prepared import ImageRegions, geometry
from longtail_bench.vqa.problems import DUPLICATE, Problems

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


def read(
    folder: Path, problems: Problems | None = None, images=IMAGES, most: int = 0
) -> dict[str, ImageRegions]:
    files = features.feature_files(folder)
    assert files is not None
    problems = Problems(strict=True) if problems is None else problems
    return {one.image: one for one in features.read_regions(files, {*images}, problems, most)}


def check(regions: dict[str, ImageRegions], images=IMAGES) -> None:
    assert regions.keys() == {*images}
    for image in images:
        x, corners = made_up()[image]
        np.testing.assert_array_equal(regions[image].features, x)
        shares = corners / np.array(SIZE * 2, np.float32)
        np.testing.assert_allclose(regions[image].boxes, shares, atol=1e-6)


@pytest.mark.parametrize("columns", [2, 3])
@pytest.mark.parametrize("with_geometry", [True, False])
def test_tsv(tmp_path: Path, columns: int, with_geometry: bool) -> None:
    write_tsv(tmp_path, with_geometry, columns)
    regions = read(tmp_path)
    check(regions)
    assert regions["1"].tags == ["thing0", "thing1"]


def test_npz(tmp_path: Path) -> None:
    write_npz(tmp_path)
    check(read(tmp_path))


def test_lineidx_reads_only_wanted_lines(tmp_path: Path) -> None:
    lines = write_tsv(tmp_path)
    starts = np.cumsum([0, *map(len, lines)])[:-1]
    (tmp_path / "features.lineidx").write_text("".join(f"{start}\n" for start in starts))
    damaged = "x" * len(lines[0])  # unwanted: must not matter
    (tmp_path / "features.tsv").write_text(damaged[:-1] + "\n" + "".join(lines[1:]))
    check(read(tmp_path, images=IMAGES[1:]), IMAGES[1:])
    (tmp_path / "features.lineidx").write_text("0\nzero\n")
    with pytest.raises(ValueError, match=r"features\.lineidx, line 2: 'zero'"):
        read(tmp_path, images=("1", "3"))


def test_tsv_may_begin_with_a_mark_and_end_lines_as_windows_does(tmp_path: Path) -> None:
    write_tsv(tmp_path)
    for name in ("features.tsv", "predictions.tsv"):
        text = (tmp_path / name).read_bytes().replace(b"\n", b"\r\n")
        (tmp_path / name).write_bytes(b"\xef\xbb\xbf" + text)
    check(read(tmp_path))


def test_at_most_so_many_regions(tmp_path: Path) -> None:
    write_tsv(tmp_path)
    regions = read(tmp_path, most=2).values()
    assert [len(one.features) for one in regions] == [len(one.boxes) for one in regions] == [2] * 3
    assert [one.tags for one in regions] == [["thing0", "thing1"]] * 3


@pytest.mark.parametrize("cut", [5, 40, 100])
def test_truncated_tsv_is_named_with_its_line(tmp_path: Path, cut: int) -> None:
    write_tsv(tmp_path)
    text = (tmp_path / "features.tsv").read_text()
    (tmp_path / "features.tsv").write_text(text[:-cut])
    problems = Problems()
    check(read(tmp_path, problems), IMAGES[:2])
    assert problems.counts == {forms.TRUNCATED: 1}
    assert "features.tsv, line 3, image 3" in problems.lines()[0]
    with pytest.raises(ValueError, match=r"features\.tsv, line 3"):
        read(tmp_path)


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


def test_wrong_widths_are_named(tmp_path: Path) -> None:
    write_npz(tmp_path)
    np.savez(tmp_path / "n2.npz", features=np.ones((2, 5)), boxes=np.ones((2, 4)))
    problems = Problems()
    check(read(tmp_path, problems), ("1", "3"))
    assert problems.examples[features.WRONG_WIDTH] == ["n2.npz: 5, expected 8"]


def test_an_image_without_regions_says_nothing_of_the_width(tmp_path: Path) -> None:
    lines = write_tsv(tmp_path)
    nothing = json.dumps({"num_boxes": 0, "features": ""})
    (tmp_path / "features.tsv").write_text("".join([f"0\t{nothing}\n", *lines]))
    check(read(tmp_path, images=("0", *IMAGES)))


def test_broken_and_strange_archives_are_named(tmp_path: Path) -> None:
    write_npz(tmp_path)
    (tmp_path / "1.npz").write_bytes((tmp_path / "1.npz").read_bytes()[:90])
    np.savez(tmp_path / "n2.npz", features=np.ones((2, 8)), boxes=np.ones((3, 4)))
    np.savez(tmp_path / "3.npz", features=np.full((2, 8), np.nan), boxes=np.ones((2, 4)))
    problems = Problems()
    assert not read(tmp_path, problems)
    assert problems.counts == {
        forms.UNREADABLE: 1,
        features.SHAPE: 1,
        features.NOT_FINITE: 1,
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
    assert problems.counts == {forms.UNREADABLE: 1}
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
    assert problems.counts == {forms.UNREADABLE: 1}


def test_an_infinite_number_in_a_tsv_is_named(tmp_path: Path) -> None:
    write_tsv(tmp_path, with_geometry=False)
    for name, number in (("features.tsv", '"num_boxes": 2'), ("predictions.tsv", '"image_w": 100')):
        text = (tmp_path / name).read_text()
        infinite = number.split(":")[0] + ": Infinity"
        (tmp_path / name).write_text(text.replace(number, infinite, 1))
    problems = Problems()
    check(read(tmp_path, problems), IMAGES[1:])
    assert problems.counts == {forms.TRUNCATED: 2}


def test_boxes_outside_the_image_are_clipped_and_counted(tmp_path: Path) -> None:
    write_npz(tmp_path)
    x = made_up()["1"][0]
    boxes = np.array([[-10, 0, 50, 25], [90, 40, 130, 60]])
    np.savez(tmp_path / "1.npz", features=x, boxes=boxes, width=SIZE[0], height=SIZE[1])
    problems = Problems()
    boxes = read(tmp_path, problems)["1"].boxes
    assert problems.examples[features.OUTSIDE] == ["1.npz"]
    np.testing.assert_allclose(boxes, [[0, 0, 0.5, 0.5], [0.9, 0.8, 1, 1]], atol=1e-6)


def test_labels_for_other_regions_are_named(tmp_path: Path) -> None:
    write_tsv(tmp_path)
    label = json.dumps({"objects": [{"class": "one", "rect": [0, 0, 1, 1]}]})
    (tmp_path / "predictions.tsv").write_text(f"1\t{label}\n")
    problems = Problems()
    regions = read(tmp_path, problems)
    assert problems.examples[forms.LABELS_DIFFER] == ["features.tsv, line 1: 2 regions, 1 labels"]
    assert [one.tags for one in regions.values()] == [None] * 3


def test_an_image_twice_is_named(tmp_path: Path) -> None:
    lines = write_tsv(tmp_path)
    (tmp_path / "features.tsv").write_text("".join([*lines, lines[0]]))
    problems = Problems()
    check(read(tmp_path, problems))
    assert problems.examples[DUPLICATE] == ["features.tsv, line 4: 1"]


def test_features_lie_in_the_folder_or_in_features(tmp_path: Path) -> None:
    assert features.feature_files(tmp_path) is None
    (tmp_path / "features").mkdir()
    write_npz(tmp_path / "features")
    check(read(tmp_path))
    write_tsv(tmp_path)
    files = features.feature_files(tmp_path)
    assert files is not None
    assert (files.form, files.folder) == ("tsv", tmp_path)
