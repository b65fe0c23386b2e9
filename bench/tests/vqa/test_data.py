"""`longtail data vqa` says what to get, and checks what is there."""

import argparse
import json
from pathlib import Path

import pytest

from bench_helpers.vqa_content import write_gqa
from longtail_bench.vqa import data
from longtail_bench.vqa.sources import NO_FEATURES


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LONGTAIL_CACHE", str(tmp_path / "cache"))


def command(**given) -> argparse.Namespace:
    return argparse.Namespace(
        **{"dir": None, "check": False, "quiet": False, "json": False, "strict": False, **given}
    )


def test_check_prints_statistics_beside_the_papers(tmp_path: Path, capsys) -> None:
    write_gqa(tmp_path / "files", features=("1", "2", "3"))
    assert data.data_command(command(dir=str(tmp_path / "files"), check=True)) == 0
    printed = capsys.readouterr().out
    assert "man, 6  appliance, 2,396" in printed
    assert "137.86" in printed
    assert "left out: 5" in printed
    assert data.data_command(command(dir=str(tmp_path / "files"), check=True, json=True)) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["tasks"], found["largest"], found["answers"]) == (3, 6, 2)
    listed = found["listed"][NO_FEATURES]
    assert len(listed) == found["problems"][NO_FEATURES] == 5
    assert all("image 4" in where for where in listed)
    with pytest.raises(ValueError, match="without features"):
        data.data_command(command(dir=str(tmp_path / "files"), check=True, strict=True))


def test_check_works_on_questions_alone(tmp_path: Path, capsys) -> None:
    write_gqa(tmp_path / "files", features=())
    assert data.data_command(command(dir=str(tmp_path / "files"), check=True)) == 0
    assert "questions only" in capsys.readouterr().out


def test_without_files_it_says_where_to_get_them(capsys) -> None:
    assert data.data_command(command()) == 0
    printed = capsys.readouterr().out
    assert "questions1.2.zip" in printed
    assert "features.tsv" in printed
