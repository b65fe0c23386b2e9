"""rich's console, where only styles made here command the terminal."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import IO, Any

import rich.console
from rich.console import ConsoleOptions, RenderableType
from rich.segment import Segment

from longtail.support.terminal import printable, unguarded


class Console(rich.console.Console):
    """As rich's, but what commands a terminal within a text is written out (`printable`)."""

    def __init__(self, *, file: IO[str] | None = None, **settings: Any) -> None:
        super().__init__(file=file or unguarded(sys.stdout), **settings)

    def render(
        self, renderable: RenderableType, options: ConsoleOptions | None = None
    ) -> Iterable[Segment]:
        for segment in super().render(renderable, options):
            text, style, control = segment
            yield segment if control else Segment(printable(text), style)
