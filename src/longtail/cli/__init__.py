"""The command line: one file a command, and a parser that knows no torch."""

from longtail.cli.entry import main

__all__ = ["main"]
