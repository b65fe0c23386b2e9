"""From text to token ids and back, by bytes or by a pretrained model's own tokeniser."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Protocol


class Tokens(Protocol):
    """What a benchmark needs of a tokeniser."""

    end: int  # ends an answer
    vocabulary: int

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
    """tokenizer.json of a folder (through `tokenizers`), or a name (through transformers)."""

    def __init__(self, tokenizer: Any, end: int) -> None:
        self._tokenizer, self.end = tokenizer, end
        self.vocabulary = tokenizer.get_vocab_size()

    def encode(self, texts: list[str]) -> list[list[int]]:
        return [e.ids for e in self._tokenizer.encode_batch(texts, add_special_tokens=False)]

    def decode(self, rows: list[list[int]]) -> list[str]:
        return self._tokenizer.decode_batch(rows, skip_special_tokens=True)


def load_tokens(name: str) -> Pretrained:
    """The tokeniser of a folder with tokenizer.json and config.json, or of a hub's name."""
    folder = Path(name).expanduser()
    end = read_config(folder).get("eos_token_id")
    file = folder / "tokenizer.json"
    if file.exists() and end is not None:
        tokenizers = import_tokenizers(name)
        try:
            found = tokenizers.Tokenizer.from_file(str(file))
        except Exception as error:  # the package raises no narrower one
            raise ValueError(f"{file} is no tokeniser: {error}") from None
        return Pretrained(found, _first(end))
    try:
        from transformers import AutoTokenizer
    except ImportError:
        raise ValueError(f"model {name!r} needs transformers: pip install 'longtail[hf]'") from None
    try:
        found = AutoTokenizer.from_pretrained(name, local_files_only=True)
    except (OSError, ValueError, TypeError) as error:
        raise not_here(name, error) from None
    backend = getattr(found, "backend_tokenizer", None)
    if backend is None:
        raise ValueError(f"the tokeniser of {name!r} has no fast form (tokenizer.json)")
    if found.eos_token_id is None:
        raise ValueError(f"model {name!r} names no token that ends a text (eos_token_id)")
    return Pretrained(backend, _first(found.eos_token_id))


def read_config(folder: Path) -> dict[str, Any]:
    """config.json of a folder; {} where there is none."""
    path = folder / "config.json"
    try:
        found = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path} is not JSON: {error}") from None
    return found if isinstance(found, dict) else {}


def not_here(name: str, error: Exception) -> ValueError:
    """What to raise where a model is neither a folder nor in the Hugging Face cache."""
    why = str(error).split("\n")[0]
    return ValueError(
        f"model {name!r} cannot be loaded: it must be a folder, a .gguf file, or in the Hugging "
        f"Face cache (`hf download {name}` fetches it); {why}"
    )


def _first(end: Any) -> int:
    return int(end[0] if isinstance(end, list) else end)


def import_tokenizers(what: str) -> Any:
    try:
        import tokenizers
    except ImportError:
        raise ValueError(
            f"{what} needs the package tokenizers: pip install 'longtail[hf]'"
        ) from None
    return tokenizers
