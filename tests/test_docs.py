"""Every python block of these pages runs, in order, in one namespace per page."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

DOCS = Path(__file__).parent.parent / "docs"
PAGES = [*sorted((DOCS / "methods").glob("*.md")), DOCS / "bring_your_own.md", DOCS / "running.md"]
BLOCK = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\]\(([^)#]+)[^)]*\)")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_examples_run(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    namespace: dict = {"__name__": page.stem}
    text = page.read_text(encoding="utf-8")
    for match in BLOCK.finditer(text):
        # Blank lines in front put the page's own line numbers into a traceback.
        lines = text[: match.start(1)].count("\n")
        exec(compile("\n" * lines + match[1], str(page), "exec"), namespace)


def test_every_method_has_a_page_with_the_three_parts():
    from longtail.settings import method_names

    for name in method_names():
        text = (DOCS / "methods" / f"{name}.md").read_text(encoding="utf-8")
        assert "## What it costs" in text
        assert "## When to use it" in text
        assert re.search(r"^    .*(L\(θ\)|g̃) = ", text, re.MULTILINE), f"no equation in {name}.md"


@pytest.mark.parametrize("page", [*PAGES, DOCS / "README.md"], ids=lambda page: page.stem)
def test_links_lead_somewhere(page):
    for target in LINK.findall(page.read_text(encoding="utf-8")):
        if "://" not in target:
            assert (page.parent / target).exists(), f"{page.name} links to {target}"
