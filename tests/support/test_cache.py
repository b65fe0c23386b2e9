"""Where fetched files go."""

import sys
from pathlib import Path

import pytest

from longtail.support.cache import cache_folder


def test_the_cache_folder_can_be_chosen(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("LONGTAIL_CACHE", str(tmp_path))
    assert cache_folder("mnist") == tmp_path / "mnist"
    monkeypatch.delenv("LONGTAIL_CACHE")
    assert cache_folder("mnist").parent.name == "longtail"


@pytest.mark.skipif(sys.platform != "linux", reason="the folders of Linux")
def test_without_a_choice_the_cache_is_where_linux_keeps_them(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv("LONGTAIL_CACHE", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert cache_folder("mnist") == tmp_path / "xdg" / "longtail" / "mnist"
    for unset in (
        lambda: monkeypatch.setenv("XDG_CACHE_HOME", ""),
        lambda: monkeypatch.delenv("XDG_CACHE_HOME"),
    ):
        unset()
        assert cache_folder() == tmp_path / "home" / ".cache" / "longtail"
