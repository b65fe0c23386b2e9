"""Draws docs/figures/past_rounding.svg: the past in one byte over 20,399 boundaries.

    python docs/draw_past_rounding.py

A weight whose squared gradients are 1 in the first 1,000 tasks and 4 later, one step a task.
Its past v_c is the average over all tasks so far. Three ways to keep it are drawn: in float64,
rounded at random as the optimizer does (the mean of 256 weights, and one of them), and rounded to
the nearest, which stands still. Then it prints how far a weight's past is off where squared
gradients are steady, and where they differ from task to task.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Sequence
from pathlib import Path

import torch

from longtail.optim import past

FILE = Path(__file__).parent / "figures" / "past_rounding.svg"
TASKS, CHANGE, WEIGHTS = 20399, 1000, 256
WIDTH, HEIGHT, LEFT, TOP = 620, 240, 44, 34
LOW, HIGH = 0.8, 4.4
COLOURS = {"exact": "#111111", "mean": "#1f77b4", "one": "#a6cbe8", "nearest": "#d62728"}
NAMES = {
    "exact": "float64",
    "one": "rounded at random: one weight",
    "mean": "rounded at random: mean of 256 weights",
    "nearest": "rounded to the nearest",
}


def points() -> list[int]:
    """The tasks after which a curve has a point: all of the first, then ever fewer."""
    steps = 160
    return sorted({round(math.exp(math.log(TASKS) * i / steps)) for i in range(steps + 1)})


def curves() -> dict[str, list[float]]:
    """v_c after each of the `points`, by each of the ways to keep it."""
    found: dict[str, list[float]] = {name: [] for name in NAMES}
    kept = torch.zeros(WEIGHTS, dtype=torch.uint8)
    nearest = torch.zeros(1, dtype=torch.uint8)
    exact, shown = 0.0, set(points())
    for c in range(TASKS):
        now = 1.0 if c < CHANGE else 4.0
        a, b = c / (c + 1), 1 / (c + 1)
        exact = a * exact + b * now
        gradient = torch.full((WEIGHTS,), now)
        past.fold_coded([kept], [gradient], [a], [b], [torch.tensor(float(c))], [past.Draw(1, 0)])
        value = a * past.read_past(nearest, torch.float32) + b * now
        nearest = past.converted(value, torch.uint8)
        if c + 1 in shown:
            values = past.read_past(kept, torch.float64)
            for name, value in (
                ("exact", exact),
                ("mean", values.mean()),
                ("one", values[0]),
                ("nearest", past.read_past(nearest, torch.float64)[0]),
            ):
                found[name].append(float(value))
    return found


def panel() -> list[str]:
    def x(task: int) -> float:
        return LEFT + WIDTH * math.log(task) / math.log(TASKS)

    def y(value: float) -> float:
        return TOP + HEIGHT * (HIGH - value) / (HIGH - LOW)

    lines = [
        f'<text x="{LEFT}" y="{TOP - 12}" font-weight="bold">past_dtype="uint8"</text>',
        f'<rect x="{LEFT}" y="{TOP}" width="{WIDTH}" height="{HEIGHT}" fill="none" stroke="#888"/>',
    ]
    for value in (1, 2, 3, 4):
        lines.append(
            f'<text x="{LEFT - 6}" y="{y(value) + 4:.1f}" text-anchor="end">{value}</text>'
        )
    for task in (1, 10, 100, 1000, 10000):
        at = f'x="{x(task):.1f}" y="{TOP + HEIGHT + 16}" text-anchor="middle"'
        lines.append(f"<text {at}>{task:,}</text>")
    for name, values in curves().items():
        path = " ".join(f"{x(t):.1f},{y(v):.1f}" for t, v in zip(points(), values, strict=True))
        look = 'stroke-dasharray="5 4"' if name == "exact" else 'stroke-width="1.6"'
        lines.append(f'<polyline points="{path}" fill="none" stroke="{COLOURS[name]}" {look}/>')
    return lines


def noise(steady: bool) -> tuple[float, float]:
    """Of v_c over the exact average: its standard deviation over weights, the mean of 1 / root."""
    generator = torch.Generator().manual_seed(0)
    kept, exact = torch.zeros(4096, dtype=torch.uint8), torch.zeros(4096, dtype=torch.float64)
    for c in range(2000):
        now = torch.full((4096,), 1.05)
        if not steady:
            now.exponential_(generator=generator)
        a, b = c / (c + 1), 1 / (c + 1)
        exact = a * exact + b * now.double()
        past.fold_coded([kept], [now], [a], [b], [torch.tensor(float(c))], [past.Draw(1, 0)])
    ratio = past.read_past(kept, torch.float64) / exact
    return ratio.std().item(), ratio.rsqrt().mean().item()


def main(arguments: Sequence[str]) -> None:
    argparse.ArgumentParser(description=__doc__.partition("\n")[0]).parse_args(arguments)
    for steady in (True, False):
        deviation, step = noise(steady)
        kind = "steady" if steady else "exponential"
        print(f"{kind}: v_c is off by {deviation:.1%}, a step is {step:.4f} as large")
    lines = panel()
    width, bottom = LEFT + WIDTH + 12, TOP + HEIGHT + 34
    lines.append(f'<text x="{width / 2}" y="{bottom}" text-anchor="middle">tasks</text>')
    for i, (name, text) in enumerate(NAMES.items()):
        at = LEFT + (0, 75, 260, 475)[i]
        lines.append(
            f'<line x1="{at}" x2="{at + 22}" y1="{bottom + 18}" y2="{bottom + 18}" '
            f'stroke="{COLOURS[name]}" stroke-width="2"/>'
            f'<text x="{at + 28}" y="{bottom + 22}">{text}</text>'
        )
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {bottom + 34}" '
        'font-family="sans-serif" font-size="12">\n'
        "<title>The past second moment over 20,399 tasks, rounded at random and to the nearest"
        '</title>\n<rect width="100%" height="100%" fill="white"/>\n'
    )
    FILE.write_text(head + "\n".join(lines) + "\n</svg>\n", encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
