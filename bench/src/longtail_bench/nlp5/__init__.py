"""Five NLP tasks as question answering: SQuAD, WikiSQL, SST, QA-SRL, WOZ.

The paper's honest table: five tasks that have little in common, learned one after another by a
language model (LAMOL's setting, Sun et al., 2020). Beside it a variant of our own, `long_tail = N`:
the same five cut into N small tasks whose sizes follow a long tail, drawn one by one with
probability proportional to size. Tasks are then numerous and resemble one another, which the paper
conjectures to be what Continual AdamW needs.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from torch import nn

from longtail.benchmarks import Benchmark, BenchmarkSpec
from longtail.names import option
from longtail.support.cache import cache_folder
from longtail.tasks import Segments, TableSequence
from longtail_bench.decoder.answers import ANSWERS
from longtail_bench.decoder.llama import Llama, LlamaConfig
from longtail_bench.decoder.load import load, model_folder, with_adapters
from longtail_bench.decoder.tokens import Bytes, Pretrained, Tokens
from longtail_bench.nlp5.cut import QuestionRows, long_tail, subset
from longtail_bench.nlp5.evaluation import Evaluate
from longtail_bench.nlp5.examples import Example
from longtail_bench.nlp5.files import TASKS, read_task
from longtail_bench.nlp5.miniature import miniature
from longtail_bench.nlp5.table import AnswerTable
from longtail_bench.nlp5.text import Texts, tokenise

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Settings:
    """What the sequence is made of, and the model that learns it."""

    order: tuple[str, ...] = option(TASKS, "the tasks, in the order they are learned")
    per_task: int = option(0, "training questions of each task, of WOZ whole dialogues; 0: all")
    test_per_task: int = option(0, "test questions of each task, of WOZ whole dialogues; 0: all")
    sizes: tuple[int, ...] = option((), "training questions, one number a task of `order`")
    long_tail: int = option(0, "cut the tasks into so many small ones, drawn in long-tail order")
    model: str = option("gpt2", "folder, .gguf file or hub name of a causal LM, or `tiny`")
    lora: int = option(0, "rank of LoRA adapters, which alone are trained; 0: train all weights")
    max_tokens: int = option(512, "tokens of a row; longer contexts are cut around the answer")
    generate_batch: int = option(256, "test questions answered at once")
    miniature: bool = option(False, "made-up questions and the model `tiny`: needs no files")
    folder: str = option("", "folder of the files; empty: where `longtail data` puts them")

    def __post_init__(self) -> None:
        for name in self.order:
            if name not in TASKS:
                raise ValueError(f"Invalid order: unknown task {name!r}; known: {', '.join(TASKS)}")
        if not self.order or len(set(self.order)) != len(self.order):
            raise ValueError(f"Invalid order: {', '.join(self.order) or 'empty'}, each task once")
        for name in ("per_task", "test_per_task", "long_tail", "lora"):
            if getattr(self, name) < 0:
                raise ValueError(f"Invalid {name}: {getattr(self, name)}")
        for name in ("max_tokens", "generate_batch"):
            if getattr(self, name) < 1:
                raise ValueError(f"Invalid {name}: {getattr(self, name)}")
        if self.sizes and len(self.sizes) != len(self.order):
            raise ValueError(f"Invalid sizes: {len(self.sizes)} for {len(self.order)} tasks")
        if min(self.sizes, default=0) < 0:
            raise ValueError(f"Invalid sizes: {min(self.sizes)}")


TINY = LlamaConfig(Bytes.vocabulary, 32, 2, 4, 2, 64)


def build(settings: Settings, seed: int) -> Benchmark:
    """The sequence and the model; the seed draws the long-tail order and cuts its tasks."""
    for task in settings.order:  # missing files are named before a model is looked for
        _examples(settings, task)
    tokens = _tokens(settings)
    parts = [_part(settings, task, tokens) for task in settings.order]
    names, train, test = list(settings.order), [], []
    kinds: list[str] = []
    examples: list[Example] = []
    prompts: list[list[int]] = []
    answers: list[list[int]] = []
    limits: dict[str, int] = {}
    for task, part in zip(settings.order, parts, strict=True):
        for rows, (found, texts) in ((train, part[0]), (test, part[1])):
            rows.append(list(range(len(examples), len(examples) + len(found))))
            kinds += [task] * len(found)
            examples += found
            prompts += texts.prompts
            answers += texts.answers
        # no answer is longer than the longest one that was learned, its end token included
        limits[task] = max(map(len, part[0][1].answers))
    groups = [example.group for example in examples]
    if settings.long_tail:
        names, train, test = long_tail(settings.long_tail, names, train, test, groups, seed)
    table = AnswerTable(prompts, answers)
    sequence = TableSequence(
        table, QuestionRows.of(train, groups), Segments.from_lists(test), ANSWERS, names
    )
    evaluate = Evaluate(kinds, examples, prompts, limits, tokens, settings.generate_batch)
    return Benchmark(sequence, _make_model(settings), evaluate)


def _tokens(settings: Settings) -> Tokens:
    if settings.miniature or settings.model == "tiny":
        return Bytes()
    return Pretrained(str(model_folder(settings.model)))


def _make_model(settings: Settings) -> Callable[[int], nn.Module]:
    def make(seed: int) -> nn.Module:
        if settings.miniature or settings.model == "tiny":
            tiny = Llama(TINY)
            return with_adapters(tiny, settings.lora) if settings.lora else tiny
        return load(settings.model, settings.lora)

    return make


Part = tuple[tuple[Sequence[Example], Texts], tuple[Sequence[Example], Texts]]


def _part(settings: Settings, task: str, tokens: Tokens) -> Part:
    """The chosen training and test questions of a task, as text and as token ids."""
    read = _examples(settings, task)
    count = settings.per_task
    if settings.sizes:
        count = settings.sizes[settings.order.index(task)]
    found = []
    for examples, number, kind in (
        (read[0], count, "train"),
        (read[1], settings.test_per_task, "test"),
    ):
        chosen = subset(examples, number, f"{task} {kind}")
        texts = tokenise(chosen, tokens, settings.max_tokens)
        if texts.truncated:
            log.warning(
                "%s: %d of %d %s contexts are longer than %d tokens and cut around the answer",
                task, texts.truncated, len(chosen), kind, settings.max_tokens,
            )  # fmt: skip
        found.append((chosen, texts))
    return found[0], found[1]


def _examples(settings: Settings, task: str) -> tuple[list[Example], list[Example]]:
    if settings.miniature:
        return miniature(task)
    folder = Path(settings.folder).expanduser() if settings.folder else cache_folder("nlp5")
    return _read(folder, task)


@functools.lru_cache(maxsize=len(TASKS))
def _read(folder: Path, task: str) -> tuple[list[Example], list[Example]]:
    return read_task(folder, task)


SPEC = BenchmarkSpec(
    Settings,
    build,
    train={
        "batch_size": 32,
        "lr": 6.25e-5,
        "schedule": "linear",
        "warmup": 0.05,
        "weight_decay": 0.01,
        "clip": 1.0,
        "evaluate_every": 1,
    },
    method_settings={
        # one backward pass per 16 examples: the gradients of single ones would be 135 M numbers
        "ewc": {"strength": 2.0, "fisher": "batch", "fisher_cap": 256},
        "cofima": {"fisher": "batch"},
        "ewcpp": {"strength": 1.0, "decay": 0.9},
        "reservoir": {"buffer": 500},
        "derpp": {"buffer": 500, "alpha": 1.0, "beta": 1.0},
        "agem": {"buffer": 500},
    },
)
