"""Builds every_week.ipynb from the cells below, runs them, and keeps what they print and draw.

    python docs/notebooks/build.py

A notebook is JSON: no more than that is needed to write one. `tests/test_notebooks.py` runs the
cells of the file that is checked in.
"""

from __future__ import annotations

import base64
import contextlib
import io
import json
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent

CELLS: list[tuple[str, str]] = [
    (
        "markdown",
        "# Fine-tune every week\n\nThree weeks, three processes, and in the third one new words. "
        "Each week's words have their own meaning: the class of a sentence is decided by them. "
        "After every week we ask what the model still knows of the first.",
    ),
    (
        "code",
        '''# week.py: what runs once a week, in a process of its own
WEEK = """
import json, sys
from pathlib import Path
import torch
from torch import nn
from longtail import ContinualAdamW, load_memory, save_memory

week, policy, folder = int(sys.argv[1]), sys.argv[2], Path(sys.argv[3])
folder.mkdir(parents=True, exist_ok=True)
tokens = 40 if week < 3 else 60
meaning = torch.randn(60, generator=torch.Generator().manual_seed(0))

def data(w, n, seed):
    generator = torch.Generator().manual_seed(1000 * w + seed)
    first, last = {1: (0, 24), 2: (16, 40), 3: (36, 60)}[w]      # words of the week, some of them shared
    x = torch.randint(first, last, (n, 5), generator=generator)
    return x, (meaning[x].sum(1) > 0).long()

torch.manual_seed(0)
model = nn.Sequential(nn.EmbeddingBag(tokens, 16), nn.Linear(16, 32), nn.Tanh(), nn.Linear(32, 2))
if week > 1:
    saved = torch.load(folder / "model.pt", weights_only=True)
    with torch.no_grad():
        for name, value in saved.items():
            model.state_dict()[name][tuple(map(slice, value.shape))] = value

kept = {"reset": "reset", "continual": "task"}[policy]
optimizer = ContinualAdamW(model.parameters(), lr=5e-3, second_moment=kept, beta3=0.9 if kept == "task" else 0.0)
if week > 1 and policy == "continual":
    load_memory(optimizer, folder, model)
x, y = data(week, 480, seed=1)
for step in range(120):
    rows = slice(step * 16 % 480, step * 16 % 480 + 16)
    optimizer.zero_grad()
    nn.functional.cross_entropy(model(x[rows]), y[rows]).backward()
    optimizer.step()
optimizer.end_task()
torch.save(model.state_dict(), folder / "model.pt")
if policy == "continual":
    save_memory(optimizer, folder, model)
with torch.no_grad():
    scores = {w: (model(a).argmax(1) == b).float().mean().item() for w in range(1, week + 1) for a, b in [data(w, 1000, seed=2)]}
print(json.dumps(scores))
"""''',
    ),
    (
        "code",
        """import json
import subprocess
import sys
import tempfile

scores = {}
for policy in ("reset", "continual"):
    folder = tempfile.mkdtemp()
    for week in (1, 2, 3):
        done = subprocess.run([sys.executable, "-c", WEEK, str(week), policy, folder], capture_output=True, text=True, check=True)
        *report, last = done.stdout.splitlines()
        scores[policy, week] = {int(w): s for w, s in json.loads(last).items()}
        print(policy, "week", week, {w: round(s, 3) for w, s in scores[policy, week].items()}, *(line.partition(": ")[2] for line in report))""",
    ),
    (
        "markdown",
        "The third week's memory has grown with the vocabulary: `1 grown (0.weight 40x16 -> "
        "60x16)`. What is left of the first week, with a new AdamW every week (reset) and with "
        "the memory (continual):",
    ),
    (
        "code",
        """import matplotlib.pyplot as plt

figure, axes = plt.subplots(figsize=(5, 3))
for policy in ("reset", "continual"):
    axes.plot((1, 2, 3), [scores[policy, week][1] for week in (1, 2, 3)], marker="o", label=policy)
axes.set(xlabel="after week", ylabel="accuracy on week 1", xticks=(1, 2, 3))
axes.legend()
figure.tight_layout()""",
    ),
]


def run(cells: list[tuple[str, str]]) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """The cells as the notebook has them, with their outputs, and the names they left."""
    import matplotlib

    matplotlib.use("agg")
    namespace: dict[str, Any] = {"__name__": "notebook"}
    found: list[dict[str, Any]] = []
    for number, (kind, source) in enumerate(cells):
        cell: dict[str, Any] = {
            "cell_type": kind,
            "id": f"cell-{number}",
            "metadata": {},
            "source": source.splitlines(keepends=True),
        }
        if kind == "code":
            printed = io.StringIO()
            with contextlib.redirect_stdout(printed):
                exec(compile(source, f"cell {number}", "exec"), namespace)
            cell |= {"execution_count": number, "outputs": outputs(printed.getvalue(), namespace)}
        found.append(cell)
    return found, namespace


def outputs(printed: str, namespace: dict[str, Any]) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    if printed:
        lines = printed.splitlines(keepends=True)
        found.append({"output_type": "stream", "name": "stdout", "text": lines})
    figure = namespace.pop("figure", None)
    if figure is not None:
        picture = io.BytesIO()
        figure.savefig(picture, format="png", dpi=80, metadata={"Software": None})
        data = {"image/png": base64.b64encode(picture.getvalue()).decode()}
        found.append({"output_type": "display_data", "data": data, "metadata": {}})
    return found


def notebook(cells: list[dict[str, Any]]) -> dict[str, Any]:
    kernel = {"display_name": "Python 3", "language": "python", "name": "python3"}
    return {
        "cells": cells,
        "metadata": {"kernelspec": kernel, "language_info": {"name": "python"}},
        "nbformat": 4,
        "nbformat_minor": 5,
    }


def main() -> int:
    with tempfile.TemporaryDirectory() as folder:
        before = os.getcwd()
        os.chdir(folder)
        try:
            cells, _ = run(CELLS)
        finally:
            os.chdir(before)
    path = HERE / "every_week.ipynb"
    path.write_text(json.dumps(notebook(cells), indent=1) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
