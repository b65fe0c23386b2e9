"""The members of a huge JSON object one by one.

    for name, value in members(path): ...

A question file of GQA has a gigabyte, in one line; a few megabytes of it are in memory at a time.
"""

from codecs import BOM_UTF8
from collections.abc import Iterator
from pathlib import Path
from typing import Any


def members(path: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """Names and objects; `ValueError` names the file where it breaks."""
    try:
        import ijson
    except ModuleNotFoundError:
        raise ValueError(
            f"{path.name} is read through ijson, which is not installed: "
            "pip install 'longtail[vqa]'"
        ) from None

    with open(path, "rb") as file:
        start = file.read(64)
        if not start.removeprefix(BOM_UTF8).lstrip().startswith(b"{"):
            raise ValueError(f"{path}: broken JSON: it holds no object")
        file.seek(len(BOM_UTF8) if start.startswith(BOM_UTF8) else 0)
        try:
            for name, value in ijson.kvitems(file, "", use_float=True):
                if not isinstance(value, dict):
                    raise ValueError(f"{name} is a {type(value).__name__}, not an object")
                yield name, value
        except (ijson.JSONError, ValueError, ArithmeticError) as error:
            raise ValueError(
                f"{path}, before byte {file.tell():,}: broken JSON: {_reason(error)}"
            ) from None


def _reason(error: Exception) -> str:
    """What the parser says, and the text that it says it of, with nothing in it unprintable."""
    message = error.args[0]
    if isinstance(message, bytes):  # where the text is no UTF-8
        message = message.decode(errors="replace")
    what, *beside = str(message).splitlines()
    return f"{what} {beside[0].strip()!r}" if beside else what
