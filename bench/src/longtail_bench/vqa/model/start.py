"""Begin where another run ended: what it learned of regions and words, not its answers.

Oscar has seen millions of pictures before its first question. A text encoder with a fresh region
layer has not; a run on other pictures can stand in for that. Taken over are

    encoder        all layers; words and positions as far as both models have them
    region, norm   the layer that reads a region
    pooler

and nothing of the classifier, which starts fresh as Oscar's does: its answers are the task's.

Models of different data number their words differently, so a model carries the text of its words,
`words` (UTF-8 bytes, one word a line), into its weights.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from longtail_bench.vqa.model import VisionLanguage

log = logging.getLogger(__name__)

FILE = "model.safetensors"
WORDS, POSITIONS = "encoder.word_table", "encoder.position_table"


def remember_words(model: VisionLanguage, words: Sequence[str]) -> None:
    """Makes the words, in the order of the word table, part of the model's weights."""
    text = bytearray("\n".join(words).encode())
    model.register_buffer("words", torch.frombuffer(text, dtype=torch.uint8).clone())


def known_words(words: Tensor) -> list[str]:
    """The inverse of `remember_words`."""
    return bytes(words.tolist()).decode().split("\n")


def find_weights(source: str | Path) -> Path:
    """The weights of a finished run, of a study's only run, or the file itself."""
    path = Path(source).expanduser()
    if path.is_file():
        return path
    if not path.is_dir():
        raise ValueError(f"start: there is no run or file {path}")
    if (path / FILE).is_file():
        return path / FILE
    found = sorted(path.glob(f"runs/*/{FILE}"))
    if len(found) > 1:
        raise ValueError(f"start: {path} holds {len(found)} finished runs; give the folder of one")
    if not found:
        begun = (path / "config.toml").is_file() or (path / "plan.json").is_file()
        what = "is not finished" if begun else "is no run"
        raise ValueError(f"start: {path} {what}: it has no {FILE}")
    return found[0]


def read_start(source: str | Path) -> tuple[Path, dict[str, Tensor]]:
    """The file and its tensors; refused if they are not of a `VisionLanguage` with its words."""
    path = find_weights(source)
    try:
        tensors = load_file(path)
    except (SafetensorError, OSError) as error:
        raise ValueError(f"start: {path} cannot be read: {error}") from None
    missing = [name for name in ("words", WORDS, "region.weight") if name not in tensors]
    if missing:
        raise ValueError(f"start: {path} is not of a run of vqa: it has no {', '.join(missing)}")
    rows, words = len(tensors[WORDS]), len(known_words(tensors["words"]))
    if rows != words:
        raise ValueError(f"start: {path} has {rows} rows of words, but names {words}")
    return path, tensors


@torch.no_grad()
def start_from(model: VisionLanguage, path: Path, tensors: dict[str, Tensor]) -> None:
    """Copy what `read_start` gave into a model that remembers its words."""
    wrong: list[str] = []
    parameters = {n: p for n, p in model.named_parameters() if not n.startswith("classifier.")}
    taken = {n for n in tensors if n.startswith(("encoder.", "region", "pooler."))}
    taken -= dict(model.named_buffers()).keys()  # the encoder's own count of passes and its seed
    for name, target in parameters.items():
        given = tensors.get(name)
        table = name in (WORDS, POSITIONS)  # they may have other rows
        if given is None:
            wrong.append(f"{name} is missing")
        elif given.shape[table:] != target.shape[table:]:
            wrong.append(f"{name} is {list(given.shape)}, not {list(target.shape)}")
    wrong += [f"{name} has no place" for name in sorted(taken - parameters.keys())]
    if wrong:
        raise ValueError(f"start: {path} does not fit the data and backbone: {'; '.join(wrong)}")
    place = {word: row for row, word in enumerate(known_words(tensors["words"]))}
    ours = known_words(model.get_buffer("words"))
    shared = [(row, place[word]) for row, word in enumerate(ours) if word in place]
    if not shared:
        raise ValueError(f"start: {path} has not one word of the data: is it of another backbone?")
    here, there = torch.tensor(shared).T
    parameters[WORDS][here] = tensors[WORDS][there].to(parameters[WORDS])  # may be halves
    for name, target in parameters.items():
        if name != WORDS:
            both = min(len(tensors[name]), len(target)) if name == POSITIONS else len(target)
            target[:both].copy_(tensors[name][:both])
    if len(shared) < len(ours):
        log.info("%d of %d words are not in %s", len(ours) - len(shared), len(ours), path)
