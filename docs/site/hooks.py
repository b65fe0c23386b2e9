"""What the site needs beyond the pages of `docs/`: pages from elsewhere, notebooks, and links.

A page lies where GitHub shows it, and its links are those that work there. On the site, `docs/` is
the root; pages of the repository's root and the README of every folder of `bench/results/`
keep their paths, a notebook becomes a page, and a link to any other file leads to the repository.
"""

from __future__ import annotations

import json
import os
import posixpath
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parents[2]
OUTSIDE = ("CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md", "bench/REPRODUCIBILITY.md")
PICTURES = (".png", ".svg")
LINK = re.compile(r"(?<=\]\()([^)#\s]+)(#[^)\s]*)?(?=\))")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Adds the pages and pictures that lie outside `docs/`, and a page for every notebook."""
    results = ROOT / "bench" / "results"
    found = [ROOT / name for name in OUTSIDE] + sorted(results.glob("*/README.md"))
    found += sorted(p for p in results.glob("*/figures/*") if p.suffix in PICTURES)
    for path in found:
        name = path.relative_to(ROOT).as_posix()
        files.append(File.generated(config, name, abs_src_path=str(path)))
    for path in sorted((ROOT / "docs" / "notebooks").glob("*.ipynb")):
        page = as_markdown(json.loads(path.read_text(encoding="utf-8")), path.name)
        files.append(File.generated(config, f"notebooks/{path.stem}.md", content=page))
    complete(config["nav"], [file.src_uri for file in files.documentation_pages()])
    return files


def complete(nav: list[Any], pages: list[str]) -> None:
    """Adds each page that `mkdocs.yml` leaves out to the first section with one of its folder."""
    sections = list(sections_of(nav))
    named = {page for section in sections for page in pages_of(section)}
    for page in sorted(set(pages) - named):
        near = [s for s in sections[1:] if folder(page) in {folder(other) for other in pages_of(s)}]
        if near:
            near[0].append(page)


def sections_of(nav: list[Any]) -> Iterator[list[Any]]:
    """The list itself and those within it."""
    yield nav
    for entry in nav:
        for value in entry.values() if isinstance(entry, dict) else ():
            if isinstance(value, list):
                yield from sections_of(value)


def pages_of(section: list[Any]) -> Iterator[str]:
    """The pages that a section names itself."""
    for entry in section:
        for value in entry.values() if isinstance(entry, dict) else (entry,):
            if isinstance(value, str):
                yield value


def folder(page: str) -> str:
    """A page's folder; a README of `bench/results/` stands for its own."""
    own = posixpath.dirname(page)
    return posixpath.dirname(own) if page.startswith("bench/results/") else own


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    known = {file.src_uri for file in files}
    return LINK.sub(lambda m: site_link(m, page.file.src_uri, known, config["repo_url"]), markdown)


def in_repository(place: str) -> str:
    """Where the repository has what the site has at `place`."""
    own = place in OUTSIDE or place.startswith("bench/")
    return place if own else f"docs/{place}"


def site_link(match: re.Match[str], place: str, known: set[str], repository: str) -> str:
    """A page's relative link, as the site has it; `place` is the page's own on the site."""
    target, anchor = match[1], match[2] or ""
    if "://" in target or target.startswith(("mailto:", "data:")):
        return match[0]
    path = posixpath.normpath(posixpath.join(posixpath.dirname(in_repository(place)), target))
    if not (ROOT / path).exists():
        return match[0]  # code that looks like a link, or a mistake, which the build then reports
    for name in (path, f"{path}/README.md", f"{path.removesuffix('.ipynb')}.md"):
        there = name.removeprefix("docs/")
        if there in known and in_repository(there) == name:
            return posixpath.relpath(there, posixpath.dirname(place) or ".") + anchor
    kind = "tree" if os.path.isdir(ROOT / path) else "blob"
    return f"{repository}/{kind}/main/{path}{anchor}"


def as_markdown(notebook: dict[str, Any], name: str) -> str:
    """A notebook's cells with what they printed and drew, as a page."""
    parts: list[str] = []
    for cell in notebook["cells"]:
        source = "".join(cell["source"])
        if cell["cell_type"] == "markdown":
            parts.append(source)
            continue
        parts.append(fenced("python", source))
        for out in cell["outputs"]:
            if "text" in out:
                parts.append(fenced("text", "".join(out["text"]).rstrip("\n")))
            picture = out.get("data", {}).get("image/png")
            if picture:
                said = out.get("metadata", {}).get("alt", "")
                parts.append(f"![{said}](data:image/png;base64,{picture})")
    parts.append(f"[This page as a notebook]({name}){{ download }}")
    return "\n\n".join(parts) + "\n"


def fenced(kind: str, text: str) -> str:
    return f"````{kind}\n{text}\n````"
