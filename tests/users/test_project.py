"""The first hour with a clone: the page one reads, and the commands it names."""

from __future__ import annotations

import os
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
