"""Entry points: who offers what, and what is said where something is missing."""

from __future__ import annotations

from importlib.metadata import EntryPoint

import pytest

from longtail import benchmarks
from longtail.cli import main
from longtail.study.named import named_studies
from longtail.support import doors


def test_ours_stand_before_those_of_strangers(monkeypatch: pytest.MonkeyPatch) -> None:
    group = "longtail.benchmarks"
    theirs = EntryPoint("wsd", "stranger.wsd", group)
    ours = EntryPoint("wsd", "longtail_bench.wsd", group)
    monkeypatch.setattr(doors, "entry_points", lambda group: [theirs, ours])
    doors.offered.cache_clear()
    try:
        assert doors.offered(group)["wsd"] == ours
    finally:
        doors.offered.cache_clear()


def test_a_broken_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    entry = EntryPoint("lines", "longtail.metrics:NoSuchThing", "longtail.methods")
    monkeypatch.setattr(doors, "offered", lambda group: {"lines": entry})
    with pytest.raises(ValueError, match=r"'lines' of a package \(longtail.metrics:NoSuchThing"):
        doors.load("longtail.methods", "lines")


@pytest.mark.parametrize(
    "words", [["run", "fashion_mnist"], ["study", "table1"], ["run", "toy", "--method", "cofima"]]
)
def test_without_the_second_package_an_error_says_what_to_install(
    words: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(doors, "offered", lambda group: {})
    monkeypatch.setattr(doors, "find_spec", lambda name: None)
    named_studies.cache_clear()
    try:
        assert main(words) == 2
    finally:
        named_studies.cache_clear()
    assert "pip install ./bench" in capsys.readouterr().err
    assert list(benchmarks.paths()) == ["toy"]
