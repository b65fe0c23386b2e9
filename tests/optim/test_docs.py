"""The examples in docstrings and on the docs page run as they stand."""

import doctest
import importlib
import re
from pathlib import Path

import pytest

PAGE = Path(__file__).parents[2] / "docs" / "continual_adam.md"


@pytest.mark.parametrize(
    "name",
    [
        *("optim.continual_adam", "optim.boundary"),
        *("memory.file", "memory.prime", "support.param_names"),
    ],
)
def test_docstring_examples(name: str) -> None:
    module = importlib.import_module(f"longtail.{name}")
    result = doctest.testmod(module)
    assert result.attempted > 0
    assert result.failed == 0


def test_docs_page(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {}
    blocks = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    assert len(blocks) >= 4
    for block in blocks:
        exec(compile(block, str(PAGE), "exec"), names)
    assert "tasks seen: 3" in capsys.readouterr().out
