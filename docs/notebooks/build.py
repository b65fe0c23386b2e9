"""Builds every notebook from the script of its name, runs it, and keeps what it prints and draws.

    python docs/notebooks/build.py [NAME ...]

A script is cells between lines of `# %%`; those of `# %% [markdown]` are comments. A notebook is
JSON: no more than that is needed to write one. `tests/test_notebooks.py` runs the cells of the files
that are checked in.
"""

from __future__ import annotations

import base64
import contextlib
import io
import json
import os
import re
import sys
import tempfile
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
NAMES = sorted(path.stem for path in HERE.glob("*.py") if path.stem != "build")
CELL = re.compile(r"^# %%( \[markdown\])?\n", re.MULTILINE)


def cells_of(name: str) -> list[tuple[str, str]]:
    """The cells of a script, as (kind, source)."""
    _, *parts = CELL.split((HERE / f"{name}.py").read_text(encoding="utf-8"))
    found: list[tuple[str, str]] = []
    for marked, source in zip(parts[::2], parts[1::2], strict=True):
        text = source.strip("\n")
        if marked:
            text = "\n".join(line.removeprefix("#").removeprefix(" ") for line in text.splitlines())
        found.append(("markdown" if marked else "code", text))
    return found


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
    """What a cell printed, and the picture it left as `figure`; its name tells what it shows."""
    import matplotlib.pyplot as plt

    found: list[dict[str, Any]] = []
    if printed:
        lines = printed.splitlines(keepends=True)
        found.append({"output_type": "stream", "name": "stdout", "text": lines})
    figure = namespace.pop("figure", None)
    if figure is not None:
        picture = io.BytesIO()
        figure.savefig(picture, format="png", dpi=80, metadata={"Software": None})
        data = {"image/png": base64.b64encode(picture.getvalue()).decode()}
        said = {"alt": figure.get_label()}
        found.append({"output_type": "display_data", "data": data, "metadata": said})
        plt.close(figure)
    return found


def notebook(cells: list[dict[str, Any]]) -> dict[str, Any]:
    kernel = {"display_name": "Python 3", "language": "python", "name": "python3"}
    return {
        "cells": cells,
        "metadata": {"kernelspec": kernel, "language_info": {"name": "python"}},
        "nbformat": 4,
        "nbformat_minor": 5,
    }


def main(names: list[str]) -> int:
    before = os.getcwd()
    for name in names or NAMES:
        with tempfile.TemporaryDirectory() as folder:
            os.chdir(folder)
            try:
                cells, _ = run(cells_of(name))
            finally:
                os.chdir(before)
        path = HERE / f"{name}.ipynb"
        path.write_text(json.dumps(notebook(cells), indent=1) + "\n", encoding="utf-8")
        print(path.name)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
