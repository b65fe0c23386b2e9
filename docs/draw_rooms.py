"""Draws docs/figures/rooms.svg: the rooms of the package and who imports whom, as it really is.

    python docs/draw_rooms.py            write it
    python docs/draw_rooms.py --check    exit with 1 where it is no longer true

The order of the rooms is that of the contract in pyproject.toml, the lines are the import graph.
A line leaves the room that imports from below, turns right and ends at the room that is imported.
Its width says how many import statements there are, in three classes, so that the picture becomes
stale when a dependency appears or goes and not with every line of code.
"""

from __future__ import annotations

import argparse
import sys
import tomllib
from collections import Counter
from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path

import grimp

ROOT = Path(__file__).parents[1]
FILE = ROOT / "docs" / "figures" / "rooms.svg"
CONTRACT = "A room imports only from rooms below it"
PURPOSE = {
    "cli": "one file a command",
    "integrations": "hf, lightning, peft, ...: for users alone",
    "study": "a file of settings becomes runs",
    "report": "tables, figures, claims; no torch",
    "runs": "settings to a run, its folder, its snapshots",
    "training": "THE loop, one step, evaluation",
    "methods": "one file each, the equation on top",
    "benchmarks": "each a sequence and a model",
    "replicas": "many small models as one program",
    "memory": "what Continual Adam knows, as a file",
    "tasks": "sequences, examples, objectives",
    "optim": "Continual Adam and AdamW; cpu/ and cuda/ kernels",
    "metrics": "RP, LP, BWT, FGT",
    "support": "random numbers, files, machine",
    "names": "what things are called; imports nothing",
}
COLOURS = ("#4c78a8", "#c8702f", "#4f9a5b", "#b5505f", "#8566b0", "#8a7a3f", "#3a97a3")
WIDTHS = ((15, 5.0), (5, 3.0), (1, 1.3))  # so many imports or more, and the width of their line

STEP_X, STEP_Y, BOX_X, BOX_Y, MARGIN = 66, 54, 112, 34, 14
STYLE = """
  text { font: 13px system-ui, sans-serif; fill: #24292f }
  .room { font-weight: 600 }
  .purpose, .legend { font-size: 12px; fill: #6e7781 }
  .box { fill: #ffffff; stroke-width: 1.6 }
  .layer { fill: #8c959f; fill-opacity: 0.10 }
  .line { fill: none; stroke-linecap: round }
  @media (prefers-color-scheme: dark) {
    text { fill: #e6edf3 }
    .purpose, .legend { fill: #9aa4af }
    .box { fill: #161b22 }
  }
"""

Links = Mapping[tuple[str, str], int]


def layers() -> list[list[str]]:
    """The rooms of each layer, from the top, as import-linter is told."""
    with open(ROOT / "pyproject.toml", "rb") as file:
        contracts = tomllib.load(file)["tool"]["importlinter"]["contracts"]
    [found] = [contract["layers"] for contract in contracts if contract["name"] == CONTRACT]
    package = ROOT / "src" / "longtail"
    named = [[room.strip(" ()") for room in layer.split("|")] for layer in found]
    there = {path.stem for path in package.iterdir() if path.suffix in ("", ".py")}
    kept = [[room for room in layer if room in there and room[0] != "_"] for layer in named]
    return [layer for layer in kept if layer]


def links() -> Links:
    """How many import statements lead from one room into another; those in functions count."""
    graph = grimp.build_graph("longtail")
    counts: Counter[tuple[str, str]] = Counter()
    for importer in graph.modules:
        for imported in graph.find_modules_directly_imported_by(importer):
            ends = [module.split(".")[1:2] for module in (importer, imported)]
            if all(ends) and ends[0] != ends[1] and ends[0] != ["__main__"]:
                details = graph.get_import_details(importer=importer, imported=imported)
                counts[ends[0][0], ends[1][0]] += len(details)
    return counts


def draw(order: list[list[str]], found: Links) -> str:
    """The picture: rooms on a staircase, so that every line has a way of its own."""
    rooms = [room for layer in order for room in layer]
    place = {room: (MARGIN + STEP_X * i, MARGIN + STEP_Y * i) for i, room in enumerate(rooms)}
    width = MARGIN * 2 + STEP_X * (len(rooms) - 1) + BOX_X + 260
    height = MARGIN * 2 + STEP_Y * len(rooms)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" '
        f'width="{width}" height="{height}" role="img" aria-labelledby="title">',
        '<title id="title">The rooms of longtail and their imports</title>',
        f"<style>{STYLE}</style>",
        *_bands(order, place, width),
        *_lines(rooms, place, found),
    ]
    for i, room in enumerate(rooms):
        parts += _room(room, place[room], COLOURS[i % len(COLOURS)])
    return "\n".join([*parts, *_legend(width), "</svg>", ""])


def _bands(order: list[list[str]], place: dict[str, tuple[int, int]], width: int) -> list[str]:
    """Every other layer has a ground of its own."""
    bands = []
    for layer in order[::2]:
        if layer:
            top = place[layer[0]][1] - (STEP_Y - BOX_Y) // 2
            bands.append(
                f'<rect class="layer" x="0" y="{top}" width="{width}" '
                f'height="{STEP_Y * len(layer)}"/>'
            )
    return bands


def _lines(rooms: list[str], place: dict[str, tuple[int, int]], found: Links) -> list[str]:
    """Lanes are ordered so that no two lines of a room cross: the longest way is outermost."""
    lines = []
    for i, room in enumerate(rooms):
        down = [other for other in reversed(rooms[i + 1 :]) if (room, other) in found]
        for lane, other in enumerate(down):
            sources = [r for r in reversed(rooms) if (r, other) in found]
            x = place[room][0] + (lane + 1) * (STEP_X - 4) / (len(down) + 1)
            y0 = place[room][1] + BOX_Y
            y = place[other][1] + (sources.index(room) + 1) * BOX_Y / (len(sources) + 1)
            count = found[room, other]
            thick = next(width for least, width in WIDTHS if count >= least)
            lines.append(
                f'<path class="line" d="M{x:.1f} {y0}V{y - 5:.1f}q0 5 5 5H{place[other][0]}" '
                f'stroke="{COLOURS[i % len(COLOURS)]}" stroke-width="{thick}">'
                f"<title>{room} imports {other}</title></path>"
            )
    return lines


def _room(room: str, at: tuple[int, int], colour: str) -> list[str]:
    x, y = at
    middle = y + BOX_Y / 2 + 4.5
    return [
        f'<rect class="box" x="{x}" y="{y}" width="{BOX_X}" height="{BOX_Y}" rx="7" '
        f'stroke="{colour}"/>',
        f'<text class="room" x="{x + BOX_X / 2}" y="{middle}" text-anchor="middle">{room}</text>',
        f'<text class="purpose" x="{x + BOX_X + 10}" y="{middle}">'
        f"{escape(PURPOSE.get(room, ''))}</text>",
    ]


def _legend(width: int) -> list[str]:
    """In the upper right corner, which the staircase leaves empty."""
    parts, below = [], None
    for i, (least, thick) in enumerate(WIDTHS):
        x, y = width - 190, MARGIN + 17 + 22 * i
        text = f"{least} to {below - 1} imports" if below else f"{least} imports or more"
        parts.append(
            f'<path class="line" d="M{x} {y}h30" stroke="#8c959f" stroke-width="{thick}"/>'
        )
        parts.append(f'<text class="legend" x="{x + 40}" y="{y + 4}">{text}</text>')
        below = least
    return parts


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--check", action="store_true", help="exit with 1 where it is stale")
    args = parser.parse_args(arguments)
    picture = draw(layers(), links())
    if not args.check:
        FILE.write_text(picture, encoding="utf-8")
        return 0
    fresh = FILE.is_file() and FILE.read_text(encoding="utf-8") == picture
    print("rooms.svg is true" if fresh else "rooms.svg is stale: run python docs/draw_rooms.py")
    return 0 if fresh else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
