"""VQA-CL: visual question answering, one object after the other, over 1,000 overlapping tasks.

A task is an object, its examples the questions that mention it, with the regions of their image;
the answer is chosen from all answers there are. Data come from GQA's files or from a generated
world (`sources.py`), the model is Oscar's (`model/`).
"""

import functools
import logging
from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import nn

from longtail.benchmarks import Benchmark, BenchmarkSpec
from longtail.names import option
from longtail.tasks import CLASSIFICATION, Segments, TableSequence
from longtail_bench.encoder.plain import Encoder, EncoderConfig
from longtail_bench.vqa.model import NORM, VisionLanguage
from longtail_bench.vqa.options import DataOptions
from longtail_bench.vqa.prepared import PreparedVQA, Regions, geometry
from longtail_bench.vqa.problems import Problems
from longtail_bench.vqa.sources import prepare
from longtail_bench.vqa.table import QuestionTable
from longtail_bench.vqa.tokens import (
    ROUND,
    OwnWords,
    Words,
    compact,
    encode,
    pretrained_words,
)

log = logging.getLogger(__name__)

TINY: dict[str, Any] = {"hidden": 32, "layers": 2, "heads": 2, "intermediate": 64}


@dataclass(frozen=True)
class Settings(DataOptions):
    """What is asked, and the model that answers."""

    prepared: str = option("", "folder of prepared tables, used as it is in place of a source")
    tokens: int = option(64, "tokens of a question with its tags at most")
    backbone: str = option(
        "tiny", "encoder: a folder, a Hugging Face name, or tiny: a small one without weights"
    )
    start: str = option(
        "", "run of vqa whose weights to begin with, but its classifier: a folder or a file"
    )
    align: bool = option(False, "start a fresh region layer from the tags' words, as Oscar does")
    dropout: float = option(0.1, "dropout in training")
    placement: Literal["auto", "memory", "storage"] = option(
        "auto", "regions on the device, or read from storage batch by batch; auto: if they fit"
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.tokens < ROUND:
            raise ValueError(f"Invalid tokens: {self.tokens}, should be at least {ROUND}")
        if not 0 <= self.dropout < 1:
            raise ValueError(f"Invalid dropout: {self.dropout}, not in [0, 1)")


def build(settings: Settings, seed: int) -> Benchmark:
    """The sequence and the model; only the model depends on the seed."""
    data = replace(settings, dropout=0.0, align=False, start="")
    content = read_content(data)
    table, kept = _table(data)
    sequence = TableSequence(
        table,
        Segments(content.train_offsets, torch.from_numpy(content.train_rows)),
        Segments(content.test_offsets, torch.from_numpy(content.test_rows)),
        CLASSIFICATION,
        content.task_names,
    )
    width, answers = table.stored.width, len(content.answer_names)
    make = make_model(settings, width, answers, kept, table.width)
    if settings.align and not settings.start:  # a start brings its region layer with it
        make = _aligned(make, data, kept)
    words = _words(data)
    names = [words.name(number) for number in kept.tolist()]
    return Benchmark(sequence, _begun(make, names, settings.start))


@functools.lru_cache(maxsize=2)
def read_content(settings: Settings) -> PreparedVQA:
    """Questions, answers, tasks and regions."""
    if settings.prepared:
        return PreparedVQA.load(Path(settings.prepared).expanduser())
    problems = Problems(settings.strict)
    content = prepare(settings, problems)
    for line in problems.lines():
        log.warning("%s", line)
    return content


@functools.lru_cache(maxsize=2)
def _table(settings: Settings) -> tuple[QuestionTable, np.ndarray]:
    """The questions with their regions, and the tokens in use by their number in the backbone."""
    content, words = read_content(settings), _words(settings)
    images, answers = content.images, content.answers
    tags = tag_texts(content.regions)
    ids, cuts = encode(words, content.questions, tags, images, settings.tokens)
    ids, kept = compact(ids, words.pad)
    most = int(np.diff(content.regions.offsets).max(initial=1))
    limit = min(settings.regions or most, most)
    table = QuestionTable.of(ids, cuts, answers, images, content.regions, limit, settings.placement)
    return table, kept


@functools.lru_cache(maxsize=2)
def _words(settings: Settings) -> Words:
    """The words of the backbone."""
    if settings.backbone == "tiny":
        content = read_content(settings)
        return OwnWords([*content.questions, *content.regions.tag_names])
    return pretrained_words(settings.backbone)


def _aligned(
    make: Callable[[int], nn.Module], settings: Settings, kept: np.ndarray
) -> Callable[[int], nn.Module]:
    """Models whose region layer starts from the tags of the training images' regions."""
    from longtail_bench.vqa.model.align import align

    regions, tags = tagged_regions(read_content(settings))
    place = {int(old): new for new, old in enumerate(kept)}
    words = []
    for numbers in _words(settings).encode(read_content(settings).regions.tag_names):
        words.append([place[number] for number in numbers if number in place])
    known = np.array([bool(row) for row in words])[tags]
    regions, tags = regions[torch.from_numpy(known)], torch.from_numpy(tags[known])

    def start(seed: int) -> nn.Module:
        model = make(seed)
        assert isinstance(model, VisionLanguage)
        table = model.encoder.get_parameter("word_table").detach()
        found = [table[row].mean(0) if row else table[0] for row in words]
        align(model, regions, torch.stack(found)[tags])
        return model

    return start


def _begun(
    make: Callable[[int], nn.Module], words: list[str], source: str
) -> Callable[[int], nn.Module]:
    """Models that know their words and, where a source is given, begin with its weights."""
    from longtail_bench.vqa.model.start import read_start, remember_words, start_from

    given = read_start(source) if source else None

    def begin(seed: int) -> nn.Module:
        model = make(seed)
        assert isinstance(model, VisionLanguage)
        remember_words(model, words)
        if given:
            start_from(model, *given)
        return model

    return begin


def tagged_regions(content: PreparedVQA, most: int = 20_000) -> tuple[torch.Tensor, np.ndarray]:
    """Regions [n, F + 6] of training images with their tags [n]: all, or `most` evenly chosen."""
    stored = content.regions
    seen = np.zeros(len(stored.image_names), bool)
    seen[content.images[content.train_rows]] = True
    tags = stored.tags
    rows = np.flatnonzero(np.repeat(seen, np.diff(stored.offsets)) & (tags >= 0))
    if not len(rows):
        raise ValueError("align = true, but no region of a training image has a tag")
    rows = rows[np.linspace(0, len(rows) - 1, min(most, len(rows))).astype(np.int64)]
    boxes = geometry(stored.boxes[rows])
    values = np.concatenate([stored.features[rows].astype(np.float32), boxes], axis=1)
    return torch.from_numpy(values), tags[rows]


def tag_texts(regions: Regions) -> list[str]:
    """The distinct tags of each image's regions, in their order."""
    found = []
    for start, stop in pairwise(regions.offsets.tolist()):
        tags = regions.tags[start:stop].tolist()
        numbers = dict.fromkeys(tag for tag in tags if tag >= 0)
        found.append(" ".join(regions.tag_names[number] for number in numbers))
    return found


def make_model(
    settings: Settings, width: int, answers: int, kept: np.ndarray, tokens: int
) -> Callable[[int], nn.Module]:
    """Seed -> a fresh model for regions of `width` numbers and the tokens `kept`."""

    def make(seed: int) -> nn.Module:
        if settings.backbone == "tiny":
            config = EncoderConfig(
                vocab=len(kept), positions=tokens, dropout=settings.dropout, **TINY
            )
            return VisionLanguage(Encoder(config), width, answers, region_norm=NORM)
        from longtail_bench.vqa.model.weights import from_pretrained

        return from_pretrained(settings.backbone, width, answers, kept.tolist(), settings.dropout)

    return make


SPEC = BenchmarkSpec(
    Settings,
    build,
    # The paper's; where it is silent, weight decay as in Oscar's commands for GQA, the rest ours.
    train={
        "epochs": 4,
        "batch_size": 32,
        "lr": 5e-5,
        "schedule": "linear",
        "warmup": 0.1,
        "weight_decay": 0.05,
        "clip": 1.0,
        "validation": 0.05,
        "evaluate_every": 50,
    },
    method_train={"multitask": {"evaluate_every": 0}},  # the model is done after task 1
    method_settings={
        "ewc": {"strength": 2.0, "fisher": "batch"},  # by example it takes a pass an example
        "cofima": {"fisher": "batch"},
        "ewcpp": {"strength": 0.1, "decay": 0.9},
        "reservoir": {"buffer": 1400},
        "derpp": {"buffer": 1400, "alpha": 1.0, "beta": 1.0},
        "agem": {"buffer": 1400},
    },
    stackable=True,  # the data depend on world_seed, not on the run's seed
)
