"""Which token tables are these, and are they a backbone's?

A run notes the digest of the tables it was trained on (`tables` in summary.json), so that whoever
uses the run finds them again wherever the corpus has gone.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np

from longtail.benchmarks.wsd.prepared import ARRAYS, Prepared, load
from longtail.benchmarks.wsd.tokens import Template, Tokenizer, digest_of, load_tokenizer
from longtail.models.encoder.weights import locate

SAMPLE = 256  # glosses that are encoded to tell two tokenisers apart


def tables_digest(prepared: Prepared) -> str:
    """Sixteen digits for all that is in the tables; where they lie does not matter."""
    total = hashlib.sha256()
    known = [prepared.meta["rule"], prepared.meta.get("tokenizer"), prepared.template.as_dict()]
    total.update(json.dumps([*known, prepared.lemmas, prepared.senses]).encode())
    for name in (*ARRAYS, "numbers", "counts"):
        array = np.ascontiguousarray(getattr(prepared, name))
        total.update(f"{name} {array.dtype} {array.shape}".encode())
        total.update(array.data)
    return total.hexdigest()[:16]


def find_tables(cache: Path, digest: str) -> Path | None:
    """The folder of the cache whose tables have this digest."""
    for folder, prepared in _readable(cache):
        if tables_digest(prepared) == digest:
            return folder
    return None


def _readable(cache: Path) -> Iterator[tuple[Path, Prepared]]:
    for path in sorted(cache.glob("prepared-*/meta.json")):
        try:
            yield path.parent, load(path.parent)
        except ValueError:  # damaged, or of another version's rule: not what is looked for
            continue


def check_backbone(prepared: Prepared, backbone: str) -> None:
    """Refuse a backbone whose tokeniser gives other tokens than the tables hold.

    A tokeniser that was saved again has another digest and the same tokens, so where digests differ
    some glosses are encoded. A backbone that comes without a tokeniser is taken at its word:
    tables are there for machines that have none.
    """
    folder = str(locate(backbone))
    if digest_of(folder) in (None, prepared.meta.get("tokenizer")):
        return
    tokenizer = load_tokenizer(folder)
    same = _specials(tokenizer.template) == _specials(prepared.template)
    if not same or not _encodes_alike(prepared, tokenizer):
        raise ValueError(
            f"the tables hold the tokens of another tokeniser than that of {backbone!r}: give the "
            "backbone they were prepared for, or prepare them for this one (longtail wsd prepare)"
        )


def _specials(template: Template) -> Template:
    return replace(template, vocab=0)  # a token that was added later changes no text's tokens


def _encodes_alike(prepared: Prepared, tokenizer: Tokenizer) -> bool:
    chosen = np.unique(np.linspace(0, len(prepared.senses) - 1, SAMPLE).astype(np.int64))
    tasks = np.searchsorted(prepared.tasks, chosen, "right") - 1
    lemmas = [prepared.lemmas[task].replace("_", " ") for task in tasks]
    texts = [f"{x} : {prepared.senses[i][1]}" for x, i in zip(lemmas, chosen, strict=True)]
    ends = prepared.gloss_ends
    held = [prepared.glosses[ends[i] : ends[i + 1]].tolist() for i in chosen]
    return held == [ids for ids, _ in tokenizer.encode(texts)]
