"""Where files go that can be fetched or made again."""

import os
from pathlib import Path

import platformdirs

__all__ = ["cache_folder"]


def cache_folder(*parts: str) -> Path:
    """A folder of `LONGTAIL_CACHE`, or of `longtail` in the platform's cache folder."""
    if chosen := os.environ.get("LONGTAIL_CACHE"):
        root = Path(chosen).expanduser()
    else:  # neither an author's folder above it nor, on Windows, one named Cache below it
        root = platformdirs.user_cache_path("longtail", appauthor=False, opinion=False)
    return root.joinpath(*parts)
