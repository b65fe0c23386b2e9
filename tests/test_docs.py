"""The pages' examples run, from top to bottom: python blocks, and `longtail` lines of bash blocks.

A block whose first line is `# name.py` or `# name.toml` is also a file of that name.
"""

from __future__ import annotations

import re
import shlex
import sys
from pathlib import Path

import pytest

from longtail.cli import main

DOCS = Path(__file__).parent.parent / "docs"
PAGES = [*sorted((DOCS / "methods").glob("*.md")), DOCS / "bring_your_own.md", DOCS / "running.md"]
BLOCK = re.compile(r"^```(python|bash|toml)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\]\(([^)#]+)[^)]*\)")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_examples_run(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    before = set(sys.modules)
    namespace: dict = {"__name__": page.stem}
    text = page.read_text(encoding="utf-8")
    for match in BLOCK.finditer(text):
        kind, code = match.groups()
        name = re.match(r"# (\w+\.(?:py|toml))\n", code)
        if name:
            Path(name[1]).write_text(code, encoding="utf-8")
        if kind == "python":
            # Blank lines in front put the page's own line numbers into a traceback.
            lines = text[: match.start(2)].count("\n")
            exec(compile("\n" * lines + code, str(page), "exec", dont_inherit=True), namespace)
        elif kind == "bash":
            for line in code.splitlines():
                assert main(shlex.split(line)[1:]) == 0, line
    for name in set(sys.modules) - before:
        if name.startswith("my_"):  # the page's own modules
            del sys.modules[name]


def test_every_method_has_a_page_with_the_three_parts():
    from longtail.settings import method_names

    for name in method_names():
        text = (DOCS / "methods" / f"{name}.md").read_text(encoding="utf-8")
        assert "## What it costs" in text
        assert "## When to use it" in text
        assert re.search(r"^    .*(L\(θ\)|g̃) +=", text, re.MULTILINE), f"no equation in {name}.md"


@pytest.mark.parametrize("page", [*PAGES, DOCS / "README.md"], ids=lambda page: page.stem)
def test_links_lead_somewhere(page):
    for target in LINK.findall(page.read_text(encoding="utf-8")):
        if "://" not in target:
            assert (page.parent / target).exists(), f"{page.name} links to {target}"
