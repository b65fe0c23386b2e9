"""Prepared folders: what was written comes back, damage is named, no other files are touched."""

import errno
import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from longtail_bench import prepared
from longtail_bench.prepared import Form, check_free, complete, find, key, load, save

FORM = Form("Tables", 2, mapped=("large",))
VALUES: dict[str, Any] = {
    "large": np.arange(12, dtype=np.float16).reshape(6, 2),
    "numbers": np.array([3, 1, 2], np.int32),
    "names": ["a", "ü"],
    "facts": {"count": 3},
}


def content(folder: Path) -> dict[str, bytes]:
    files = (path for path in folder.rglob("*") if path.is_file())
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in files}


def test_what_was_saved_comes_back(tmp_path: Path) -> None:
    place = tmp_path / "new" / "tables"
    save(FORM, place, VALUES)
    again = load(FORM, place)
    assert again.keys() == VALUES.keys()
    assert (again["names"], again["facts"]) == (VALUES["names"], VALUES["facts"])
    for name in ("large", "numbers"):
        assert again[name].dtype == VALUES[name].dtype
        assert np.array_equal(again[name], VALUES[name])
    assert isinstance(again["large"], np.memmap)  # it may be larger than memory
    assert complete(place)
    assert list(place.parent.iterdir()) == [place]  # nothing is left of the making


@pytest.mark.parametrize("name", ["numbers.npy", "content.json", "large.npy", "meta.json"])
@pytest.mark.parametrize("damage", ["cut", "longer", "gone"])
def test_a_damaged_file_is_named(tmp_path: Path, name: str, damage: str) -> None:
    save(FORM, tmp_path / "tables", VALUES)
    path = tmp_path / "tables" / name
    whole = path.read_bytes()
    if damage == "gone":
        path.unlink()
    else:
        path.write_bytes(whole[:-3] if damage == "cut" else whole + b"x")
    with pytest.raises(ValueError, match=rf"{path}|tables is not a prepared Tables: .*meta\.json"):
        load(FORM, tmp_path / "tables")


def test_one_changed_bit_is_noticed(tmp_path: Path) -> None:
    save(FORM, tmp_path / "tables", VALUES)
    for name in ("numbers.npy", "content.json"):
        path = tmp_path / "tables" / name
        whole = path.read_bytes()
        path.write_bytes(whole[:-6] + bytes([whole[-6] ^ 1]) + whole[-5:])
        with pytest.raises(ValueError, match=rf"{name} is damaged .*prepare it again"):
            load(FORM, tmp_path / "tables")
        path.write_bytes(whole)
    load(FORM, tmp_path / "tables")


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"form": "Others"}, "holds Others, not a prepared Tables"),
        ({"rule": 1}, "was prepared by rule 1, this version has rule 2: prepare it again"),
        ({"sha256": None}, r"meta\.json is damaged"),
        ({"sha256": {"x" * 5000 + ".npy": "0"}}, "is damaged"),
    ],
)
def test_other_tables_are_refused(tmp_path: Path, change: dict[str, Any], said: str) -> None:
    save(FORM, tmp_path / "tables", VALUES)
    path = tmp_path / "tables" / "meta.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    with pytest.raises(ValueError, match=said):
        load(FORM, tmp_path / "tables")
    with pytest.raises(ValueError, match="is not a prepared Tables"):
        load(FORM, tmp_path)


def test_tables_of_a_form_are_found_the_newest_first(tmp_path: Path) -> None:
    for number, (name, form) in enumerate(
        [("b", FORM), ("a", FORM), ("other", Form("Others", 2)), ("older", Form("Tables", 1))]
    ):
        save(form, tmp_path / name, {"names": []})
        os.utime(tmp_path / name / "meta.json", (number, number))
    (tmp_path / "damaged").mkdir()
    (tmp_path / "damaged" / "meta.json").write_text("{ cut off")
    assert find(FORM, tmp_path) == [tmp_path / "a", tmp_path / "b"]
    assert find(FORM, tmp_path / "nowhere") == []


def test_the_name_in_the_cache_is_made_of_form_and_sources() -> None:
    keys = {key(FORM, "one"), key(FORM, "two"), key(FORM, "one", 1), key(Form("Tables", 3), "one")}
    assert len(keys) == 4
    assert key(FORM, "one") in keys


def test_the_fingerprint_is_of_names_and_content(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "a"
    path.write_bytes(bytes(100))
    first = prepared.fingerprint([path])
    assert prepared.fingerprint([path]) == first
    path.write_bytes(bytes(99) + b"1")
    second = prepared.fingerprint([path])
    path = path.rename(tmp_path / "b")
    assert len({first, second, prepared.fingerprint([path])}) == 3
    monkeypatch.setattr(prepared, "SAMPLE", 10)  # of a hundred bytes thirty are read
    path.write_bytes(bytes(100))
    seen = {prepared.fingerprint([path])}
    for place in (5, 55, 95):
        path.write_bytes(bytes(place) + b"1" + bytes(99 - place))
        seen.add(prepared.fingerprint([path]))
    assert len(seen) == 4


def test_what_lies_there_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "thesis.txt").write_text("years of work")
    (tmp_path / "link").symlink_to(tmp_path / "nowhere")
    before = content(tmp_path)
    for name in ("file", "full", "link"):
        with pytest.raises(ValueError, match=f"{name} is there already"):
            check_free(tmp_path / name)
        with pytest.raises((ValueError, OSError)):
            save(FORM, tmp_path / name, VALUES)
        assert content(tmp_path) == before
        assert sorted(path.name for path in tmp_path.iterdir()) == ["file", "full", "link"]
    (tmp_path / "empty").mkdir()
    check_free(tmp_path / "empty")
    save(FORM, tmp_path / "empty", VALUES)
    assert load(FORM, tmp_path / "empty")["names"] == ["a", "ü"]


def test_of_two_who_prepare_the_same_the_first_wins(tmp_path: Path) -> None:
    save(FORM, tmp_path / "tables", VALUES)
    before = content(tmp_path)
    save(FORM, tmp_path / "tables", {**VALUES, "names": ["late"]})
    assert content(tmp_path) == before


def test_what_fails_half_way_leaves_no_trace(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise OSError(errno.ENOSPC, "no space left")

    for module, name in ((prepared.np, "save"), (prepared.json, "dumps"), (prepared.os, "replace")):
        with monkeypatch.context() as patch:
            patch.setattr(module, name, fail)
            with pytest.raises(OSError, match="no space left"):
                save(FORM, tmp_path / "tables", VALUES)
        assert not any(tmp_path.iterdir())
