"""A built-in miniature of WSD-CL: 200 short sentences of SemCor, 52 words, and a tiny encoder.

It needs no file, no tokeniser and no network; `miniature.json` holds the sentences, the senses
and the notices of SemCor and WordNet. The encoder starts from random weights, so what it learns in
seconds says nothing about a pretrained one.
"""

from __future__ import annotations

import functools
import json
from importlib import resources

import numpy as np

from longtail_bench.encoder.plain import Encoder, EncoderConfig
from longtail_bench.wsd.corpus import TaggedCorpus
from longtail_bench.wsd.prepared import Prepared, prepare
from longtail_bench.wsd.tokens import HashingTokenizer, Template
from longtail_bench.wsd.wordnet import Sense


def sentences() -> TaggedCorpus:
    """The miniature as `read_corpus` would give it."""
    file = resources.files("longtail_bench.wsd").joinpath("miniature.json")
    tree = json.loads(file.read_text("utf-8"))
    senses = [
        [Sense(lemma, *fields) for fields in found]
        for lemma, found in zip(tree["lemmas"], tree["senses"], strict=True)
    ]
    targets = sorted(tree["targets"], key=lambda target: target[0])
    task, sentence, position = (np.array([t[i] for t in targets], np.int32) for i in range(3))
    gold = [tuple(target[3]) for target in targets]
    return TaggedCorpus(tree["lemmas"], senses, tree["sentences"], task, sentence, position, gold)


@functools.cache
def miniature() -> Prepared:
    return prepare(sentences(), HashingTokenizer())


def tiny_encoder(template: Template, longest: int, dropout: float = 0.0) -> Encoder:
    """Two layers of width 64 with random weights."""
    config = EncoderConfig(
        vocab=template.vocab,
        hidden=64,
        layers=2,
        heads=4,
        intermediate=128,
        positions=longest,
        pad=template.pad,
        dropout=dropout,
    )
    return Encoder(config)
