"""The streaming JSON reader: same content as json.load, bounded memory, breaks named."""

import json
import tracemalloc
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from longtail.benchmarks.vqa.gqa.stream import Problems, members

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


@settings(max_examples=60, deadline=None)
@given(
    st.dictionaries(st.text(), st.dictionaries(st.text(), VALUES, max_size=3), max_size=6),
    st.integers(1, 40),
    st.booleans(),
    st.sampled_from([None, 2]),
)
def test_same_as_json_for_every_chunk(tmp_path_factory, content, chunk, ascii_only, indent) -> None:
    path = tmp_path_factory.getbasetemp() / "content.json"
    path.write_text(json.dumps(content, ensure_ascii=ascii_only, indent=indent), encoding="utf-8")
    assert dict(members(path, chunk)) == content


def test_memory_stays_bounded(tmp_path: Path) -> None:
    path = tmp_path / "large.json"
    with open(path, "w") as file:
        file.write("{")
        for n in range(20_000):
            file.write(f'{", " if n else ""}"{n}": {{"question": "{"what " * 200}"}}')
        file.write("}")
    tracemalloc.start()
    count = sum(1 for _ in members(path, 1 << 16))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert count == 20_000
    assert peak < path.stat().st_size / 10


@pytest.mark.parametrize(
    ("text", "byte", "line", "what"),
    [
        ('{"1": {"a": 1},\n "2": {"b": oops}}', 28, 2, "Expecting value"),
        ('{"1": {"a": 1}, "2": {"b": "cut o', 27, 1, "ends within a value"),
        ('{"1": {"a": 1}, ', 16, 1, "ends within a value"),
        ('{"1": {"a": 1}', 14, 1, "it ends"),
        ('{"1": {"a": 1} "2": {}}', 15, 1, "expected ','"),
        ('{"1": {}}\n{"2": {}}', 10, 2, "expected nothing more, found '{'"),
        ("{} {}", 3, 1, "expected nothing more, found '{'"),
        ("[1, 2]", 0, 1, "expected '{'"),
        ("", 0, 1, "it ends"),
        ('{"é": {}, "2": 7}', 17, 1, "2 is a int, not an object"),
    ],
)
@pytest.mark.parametrize("chunk", [3, 1 << 20])
def test_breaks_are_named(tmp_path: Path, text, byte, line, what, chunk) -> None:
    path = tmp_path / "broken.json"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(ValueError, match="broken JSON") as error:
        list(members(path, chunk))
    assert f"broken.json, byte {byte} (line {line})" in str(error.value)
    assert what in str(error.value)


def test_bytes_that_are_no_text_are_named(tmp_path: Path) -> None:
    path = tmp_path / "broken.json"
    path.write_bytes(b'{"1": {"a": "\xff\xfe"}}')
    with pytest.raises(ValueError, match=r"broken\.json.*not UTF-8"):
        list(members(path))


def test_problems_count_or_refuse() -> None:
    problems = Problems()
    for n in range(9):
        problems.note("bad", f"line {n}")
    assert problems.lines() == ["bad: 9 (line 0, line 1, line 2, line 3, line 4, ...)"]
    assert problems.examples == {"bad": [f"line {n}" for n in range(9)]}
    with pytest.raises(ValueError, match="line 7: bad"):
        Problems(strict=True).note("bad", "line 7")
