"""The first hour with a clone: the page one reads, and the commands it names."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.skipif(os.name == "nt", reason="no make")
@pytest.mark.parametrize(("link", "code"), [("index.md", 0), ("no_such_page.md", 1)])
def test_make_docs_fails_on_a_warning(link, code, tmp_path):
    """The command of `make docs`, over a page that has a link."""
    pytest.importorskip("mkdocs")
    steps = subprocess.run(
        ["make", "--dry-run", "docs"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    build = next(line for line in steps.stdout.splitlines() if "mkdocs build" in line)
    arguments = shlex.split(build.partition("mkdocs ")[2])
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "index.md").write_text(f"[a page]({link})\n")
    (tmp_path / "mkdocs.yml").write_text("site_name: one page\n")
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", *arguments], cwd=tmp_path, capture_output=True, text=True
    )
    assert done.returncode == code, done.stderr


def test_the_readme_is_short_and_leads_somewhere():
    """What a newcomer reads: a page of a screen's width, and links that work in a clone."""
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    assert len(text.split()) <= 550
    assert max(len(line) for line in text.splitlines()) <= 100
    links = re.findall(r"\]\(([^)]+)\)", text) + re.findall(r"^\[.+\]: (\S+)$", text, re.MULTILINE)
    elsewhere = [link for link in links if "://" in link]
    assert [link for link in elsewhere if "github" in link] == []
    files = [link.partition("#")[0] for link in links if link not in elsewhere]
    assert len(files) > 10
    assert [name for name in files if not (ROOT / name).exists()] == []
    names = re.findall(r"\[([\w' ]+)\](?![(:])", text)
    assert [name for name in names if f"\n[{name}]: " not in text] == []


def test_the_readme_installs_from_a_clone_and_says_what_make_does():
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    code = "\n".join(re.findall(r"^```\w*\n(.*?)^```$", text, re.MULTILINE | re.DOTALL))
    assert "git clone " in code
    assert "pip install ." in code
    assert "pip install longtail" not in code
    steps = [line.split("#") for line in code.splitlines() if line.startswith("make ")]
    assert {command.strip() for command, what in steps if what} == {"make demo", "make test"}
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    assert {"demo", "test"} <= set(re.findall(r"^([\w-]+):", makefile, re.MULTILINE))
