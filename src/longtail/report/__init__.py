"""From a folder of runs to tables, figures and a page. Nothing here imports torch.

frames = longtail.report.read("runs/my")     # three tables of pandas: runs, curves, tasks
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from longtail.report.frame import Frames

INSTALL = "pip install 'longtail[report]'"

__all__ = ["read"]


def read(folder: str | Path) -> Frames:
    """Reads every run and stack below `folder`, at any depth, into three tables.

    What cannot be read becomes a sentence in `problems`, not an error.

    Args:
        folder: of runs, of a study, or of several.

    Returns:
        `runs`, a row a run with its labels and its scores in the unit of tables; `curves`, a row a
        run and evaluation; `tasks`, a row a run and task.

    Raises:
        ValueError: there is no such folder, or the extra `report` is not installed.

    Example:
        >>> frames = read("runs/my")  # doctest: +SKIP
        >>> frames.runs.groupby(["method", "policy"])["RP"].mean()  # doctest: +SKIP
    """
    require()
    from longtail.report.frame import read as read_frames

    return read_frames(folder)


def require() -> None:
    """Refuses to go on without what the extra `report` brings."""
    from importlib.util import find_spec

    missing = [name for name in ("pandas", "jinja2", "altair", "vl_convert") if not find_spec(name)]
    if missing:
        raise ValueError(f"Reports need {', '.join(missing)}: {INSTALL}")
