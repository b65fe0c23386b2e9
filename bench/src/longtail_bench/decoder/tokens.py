"""From text to token ids and back, by bytes or by a pretrained model's own tokeniser."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Protocol

from longtail_bench.encoder.weights import locate
from longtail_bench.tokens import load_tokenizer


class Tokens(Protocol):
    """What a benchmark needs of a tokeniser."""

    end: int  # ends an answer

    def encode(self, texts: list[str]) -> list[list[int]]: ...

    def decode(self, rows: list[list[int]]) -> list[str]: ...


class Bytes:
    """UTF-8 bytes, and one token more that ends an answer: needs no files."""

    end = 256
    vocabulary = 257

    def encode(self, texts: list[str]) -> list[list[int]]:
        return [list(text.encode()) for text in texts]

    def decode(self, rows: list[list[int]]) -> list[str]:
        return [bytes(t for t in row if t < 256).decode(errors="replace") for row in rows]


class Pretrained:
    """A pretrained model's own tokeniser, and the token that ends its texts."""

    def __init__(self, source: str) -> None:
        self._tokenizer = load_tokenizer(source)
        end = read_config(locate(source)).get("eos_token_id")
        if end is None:
            raise ValueError(f"model {source!r} names no token that ends a text (eos_token_id)")
        self.end = int(end[0] if isinstance(end, list) else end)

    def encode(self, texts: list[str]) -> list[list[int]]:
        return self._tokenizer.encode(texts)

    def decode(self, rows: list[list[int]]) -> list[str]:
        return self._tokenizer.decode(rows)


def read_config(folder: Path) -> dict[str, Any]:
    """config.json of a folder; {} where there is none."""
    path = folder / "config.json"
    try:
        found = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path} is not JSON: {error}") from None
    return found if isinstance(found, dict) else {}
