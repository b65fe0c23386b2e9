"""docs/architecture.md is true: its picture is the import graph, its files and names are there."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from helpers.scripts import ROOT, load

PACKAGE = ROOT / "src" / "longtail"
PAGE = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
CODE = re.compile(r"`([^`]+)`")

pytest.importorskip("grimp")  # which reads the import graph, and is there with the dev extra
rooms = load("docs/draw_rooms.py")


def part(title: str) -> str:
    """The text under a heading."""
    return PAGE.split(f"\n## {title}\n")[1].split("\n## ")[0]


def table(text: str) -> list[list[str]]:
    """The cells of a table's rows, without its head."""
    lines = [line.strip("|").split(" | ") for line in text.splitlines() if line.startswith("|")]
    return lines[2:]


def is_path(word: str) -> bool:
    """A file or folder, not a command that has one among its words."""
    return len(word.split()) == 1 and (word.endswith(".py") or "/" in word)


def defined(path: Path) -> set[str]:
    """The classes, functions, methods and constants of a file."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            found.add(node.name)
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            found |= {target.id for target in targets if isinstance(target, ast.Name)}
    return found


def test_the_picture_is_the_import_graph():
    stale = "docs/figures/rooms.svg is stale: run `python docs/draw_rooms.py`"
    assert rooms.main(["--check"]) == 0, stale


def test_a_new_dependency_makes_the_picture_stale():
    order, links = rooms.layers(), dict(rooms.links())
    known = rooms.draw(order, links)
    assert links[("runs", "training")] > 0  # those in functions count as well
    assert rooms.draw(order, {**links, ("metrics", "optim"): 1}) != known
    assert rooms.draw(order, {k: v for k, v in links.items() if k != ("runs", "training")}) != known
    # one import more or less is nothing that a reader would see
    assert rooms.draw(order, {**links, ("metrics", "optim"): 2}) == rooms.draw(
        order, {**links, ("metrics", "optim"): 1}
    )


def test_every_room_is_drawn_and_says_its_purpose():
    there = {path.stem for path in PACKAGE.iterdir() if not path.name.startswith(("_", "."))}
    drawn = [room for layer in rooms.layers() for room in layer]
    assert sorted(drawn) == sorted(there - {"py"})
    assert [room for room in drawn if room not in rooms.PURPOSE] == []


def test_every_file_of_the_page_is_there():
    words = [word for word in CODE.findall(PAGE) if is_path(word)]
    assert len(words) > 40
    for word in words:
        assert (ROOT / word).exists() or (PACKAGE / word).exists(), word


@pytest.mark.parametrize("row", table(part("The way of one batch")), ids=lambda row: row[1])
def test_the_way_of_one_batch_leads_through_names_that_are_there(row):
    _, file, names = row
    [path] = CODE.findall(file)
    there = defined(PACKAGE / path)
    words = CODE.findall(names)
    assert words
    assert [word for word in words if word not in there] == [], f"not in {path}"


def test_other_names_of_the_page_are_somewhere():
    known = {room for layer in rooms.layers() for room in layer} | {"integrations"}
    for path in PACKAGE.rglob("*.py"):
        known |= defined(path)
    words = [word for word in CODE.findall(PAGE) if word.isidentifier()]
    assert [word for word in words if word not in known] == []
