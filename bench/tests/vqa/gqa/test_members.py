"""Members of a JSON object one by one: same content as json.load, bounded memory, breaks named."""

import json
import tracemalloc
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from longtail_bench.vqa.gqa.members import members

WHOLE = st.integers(-(1 << 62), 1 << 62)
VALUES = st.recursive(
    st.none()
    | st.booleans()
    | WHOLE
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


@settings(max_examples=60, deadline=None)
@given(
    st.dictionaries(st.text(), st.dictionaries(st.text(), VALUES, max_size=3), max_size=6),
    st.booleans(),
    st.sampled_from([None, 2]),
    st.sampled_from(["utf-8", "utf-8-sig"]),
)
def test_same_as_json(tmp_path_factory, content, ascii_only, indent, encoding) -> None:
    path = tmp_path_factory.getbasetemp() / "content.json"
    path.write_text(json.dumps(content, ensure_ascii=ascii_only, indent=indent), encoding)
    assert dict(members(path)) == content


def test_memory_stays_bounded(tmp_path: Path) -> None:
    path = tmp_path / "large.json"
    with open(path, "w") as file:
        file.write("{")
        for n in range(20_000):
            file.write(f'{", " if n else ""}"{n}": {{"question": "{"what " * 200}"}}')
        file.write("}")
    tracemalloc.start()
    count = sum(1 for _ in members(path))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert count == 20_000
    assert peak < path.stat().st_size / 10


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ('{"1": {"a": 1},\n "2": {"b": oops}}', "invalid char"),
        ('{"1": {"a": 1}, "2": {"b": "cut o', "premature EOF"),
        ('{"1": {"a": 1}', "premature EOF"),
        ('{"1": {"a": 1} "2": {}}', "I expect ',' or '}'"),
        ('{"1": {}}\n{"2": {}}', "trailing garbage"),
        ("[1, 2]", "it holds no object"),
        ("", "it holds no object"),
        ('{"é": {}, "2": 7}', "2 is a int, not an object"),
        ('{"1": {"a": "\x1b[2J"}}', r"\x1b[2J"),
    ],
)
def test_breaks_are_named(tmp_path: Path, text: str, what: str) -> None:
    path = tmp_path / "broken.json"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(ValueError, match=r"broken\.json.*: broken JSON: ") as error:
        list(members(path))
    assert what in str(error.value)


def test_bytes_that_are_no_text_are_named(tmp_path: Path) -> None:
    path = tmp_path / "broken.json"
    path.write_bytes(b'{"1": {"a": "\xff\xfe"}}')
    with pytest.raises(ValueError, match=r"broken\.json.*invalid bytes in UTF8"):
        list(members(path))
