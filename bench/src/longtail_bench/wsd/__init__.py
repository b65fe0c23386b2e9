"""WSD-CL: 20,399 words of SemCor, each a task: which of its WordNet senses does it have here?

The model matches sentences: a target in its sentence against the gloss of one candidate sense,

    [CLS] A cat is chasing a " mouse " . [SEP] mouse : any of numerous small rodents ... [SEP]

and its answer is the sense with the highest score. Rows are such pairs, scores count targets. The
order of the tasks and the split of their targets, nine to one, follow ``data.seed``; the run's seed
sets the classifier's first weights, the order of batches and the validation share.

================= ==========================================================================
semcor, wordnet   the publishers' files, as they are
data              where these files are, fetching them, checking them (`longtail data wsd`)
corpus            targets, tasks and candidates: the corpus before any tokeniser
tokens            how a pair of sentences is laid out, and a tokeniser that needs nothing
prepared          sentences and glosses as token tables, each once
miniature         the built-in sentences
pairs             pairs put together on the device from these tables
tasks             split, order and cap: the sequence of tasks
evaluation        accuracy of targets, from scores of pairs
baselines         what a run has to beat, and its results by kind of task
================= ==========================================================================
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from torch import nn

from longtail.benchmarks import Benchmark, BenchmarkSpec
from longtail.names import option
from longtail.support.cache import cache_folder
from longtail_bench import prepared as tables
from longtail_bench.encoder.auto import can_stack
from longtail_bench.tokens import digest_of
from longtail_bench.wsd.corpus import read_corpus
from longtail_bench.wsd.data import files_of, find, locate
from longtail_bench.wsd.evaluation import Evaluation
from longtail_bench.wsd.miniature import miniature, tiny_encoder
from longtail_bench.wsd.model import SentencePairs
from longtail_bench.wsd.prepared import (
    FORM,
    Prepared,
    check_backbone,
    find_prepared,
    load,
    prepare,
    save,
)
from longtail_bench.wsd.tasks import word_tasks
from longtail_bench.wsd.tokens import load_tokenizer

PAPER_POINTS = (100, *range(1000, 20001, 1000))  # and after the last task


@dataclass(frozen=True)
class Settings:
    """Where the words come from, how many of them, and what reads them."""

    tasks: int = option(0, "only so many tasks, the first of the order; 0: all 20,399")
    cap: int = option(0, "training targets of a task at most; 0: all of them")
    test_cap: int = option(0, "test targets of a task at most; 0: all of them")
    seed: int = option(0, "seed of the split and of the order of the tasks")
    semcor: str = option("", "SemCor 3.0, folder or archive; empty: where `longtail data` puts it")
    wordnet: str = option("", "WordNet 3.0's dict folder; empty: as for semcor")
    prepared: str = option("", "folder of prepared token tables, in place of semcor and wordnet")
    backbone: str = option("bert-base-uncased", "encoder: folder, or Hugging Face name")
    longest: int = option(96, "tokens of a pair; longer sentences are cut around their target")
    dropout: float = option(0.0, "dropout of encoder and classifier")
    freeze_embeddings: bool = option(False, "leave word, position and type embeddings untrained")
    miniature: bool = option(False, "the built-in sentences and a tiny encoder: needs no files")

    def __post_init__(self) -> None:
        for name in ("tasks", "cap", "test_cap", "seed"):
            if getattr(self, name) < 0:
                raise ValueError(f"Invalid {name}: {getattr(self, name)}")
        if not 32 <= self.longest <= 512:
            raise ValueError(f"Invalid longest: {self.longest}, should be from 32 to 512")
        if not 0 <= self.dropout < 1:
            raise ValueError(f"Invalid dropout: {self.dropout}, should be in [0, 1)")
        for name in ("semcor", "wordnet", "prepared", "backbone"):
            if self.miniature and getattr(self, name) != getattr(type(self), name):
                raise ValueError(
                    f"miniature and {name} = {getattr(self, name)!r} exclude each other: the "
                    "miniature has sentences and an encoder of its own"
                )


def stackable(settings: Settings) -> bool:
    """Encoders that run through transformers have no program for several runs."""
    return settings.miniature or can_stack(settings.backbone)


def build(settings: Settings, seed: int) -> Benchmark:
    """The tasks and the model; only the model's classifier depends on the run's seed."""
    prepared = prepared_of(settings)
    if settings.tasks > len(prepared.lemmas):
        raise ValueError(
            f"Invalid tasks: {settings.tasks}, there are {len(prepared.lemmas)} words in the corpus"
        )
    sequence = word_tasks(
        prepared,
        settings.seed,
        tasks=settings.tasks,
        cap=settings.cap,
        test_cap=settings.test_cap,
        longest=settings.longest,
    )
    return Benchmark(sequence, make_model(settings, prepared), Evaluation())


def make_model(settings: Settings, prepared: Prepared) -> Callable[[int], nn.Module]:
    separator = prepared.template.middle[0]
    # once, however many seeds a stack has
    check = functools.cache(lambda: check_backbone(prepared, settings.backbone))

    def make(seed: int) -> nn.Module:
        if settings.miniature:
            encoder = tiny_encoder(prepared.template, settings.longest, settings.dropout)
            if settings.freeze_embeddings:
                encoder.freeze_embeddings()
            return SentencePairs(encoder, separator, settings.dropout)
        check()
        model = SentencePairs.from_pretrained(
            settings.backbone, separator, settings.dropout, settings.freeze_embeddings
        )
        shape = model.encoder.config
        if shape.vocab < prepared.template.vocab:
            raise ValueError(
                f"the backbone {settings.backbone!r} knows {shape.vocab} tokens, the data were "
                f"prepared with {prepared.template.vocab}: give the backbone they were prepared for"
            )
        if shape.longest < settings.longest:
            raise ValueError(
                f"Invalid longest: {settings.longest}, {settings.backbone!r} reads at most "
                f"{shape.longest} tokens"
            )
        return model

    return make


def prepared_of(settings: Settings) -> Prepared:
    """The token tables: built in, from a folder, from the cache, or made from the corpus now."""
    if settings.miniature:
        return miniature()
    if settings.prepared:
        return load(settings.prepared)
    return _from_corpus(settings.semcor, settings.wordnet, settings.backbone)


@functools.lru_cache(maxsize=1)
def _from_corpus(semcor: str, wordnet: str, backbone: str) -> Prepared:
    cache = cache_folder("wsd")
    if not semcor and not wordnet and None in find(cache) and tables.find(FORM, cache):
        # a machine that was given the tables and not the corpus
        made = find_prepared(
            cache, digest_of(Path(backbone).expanduser()) or load_tokenizer(backbone).digest
        )
        if made is not None:
            return made
    places = locate(semcor, wordnet)
    tokenizer = load_tokenizer(backbone)
    key = tables.key(FORM, tables.fingerprint(files_of(*places)), tokenizer.digest)
    folder = cache / f"prepared-{key}"
    if not tables.complete(folder):
        print(f"longtail: preparing {places[0]} for {backbone}, once", file=sys.stderr)
        save(prepare(read_corpus(*places), tokenizer), folder)
    return load(folder)


SPEC = BenchmarkSpec(
    Settings,
    build,
    train={
        "epochs": 4,
        "batch_size": 12,
        "lr": 1e-6,
        "weight_decay": 0.01,
        "schedule": "linear",
        "warmup": 0.1,
        "validation": 0.05,
        "evaluate_at": PAPER_POINTS,
        "cuda_graph": True,
    },
    method_settings={
        # one backward pass a batch: a pair at a time would take longer than training
        "ewc": {"strength": 2.0, "fisher": "batch"},
        "cofima": {"fisher": "batch"},
        "ewcpp": {"strength": 0.1, "decay": 0.9},
        "reservoir": {"buffer": 20_000},
        "derpp": {"buffer": 20_000, "alpha": 1.0, "beta": 1.0},
        "agem": {"buffer": 20_000},
    },
    stackable=stackable,  # the data depend on data.seed, not on the run's
    captured_fisher=True,  # 11,833 tasks end with EWC's pass: launch by launch it takes minutes
)
