"""`longtail wsd`: disambiguate a sentence with a trained run; prepare a corpus for another machine.

longtail wsd predict RUN "A cat is chasing a mouse." mouse
longtail wsd prepare DIR --semcor PATH --wordnet PATH --backbone NAME
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

EXAMPLES = """examples:
  longtail run wsd --miniature --lr 1e-3 --out runs/mini
  longtail wsd predict runs/mini "He wants to tell the boy a story ." tell
  longtail wsd predict RUN "Two mice were there." mice --lemma mouse --top 3
  longtail wsd prepare prepared --semcor SEMCOR --wordnet WORDNET --backbone bert-base-uncased
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.epilog = EXAMPLES
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    kinds = parser.add_subparsers(dest="kind", metavar="KIND", required=True)
    predict = kinds.add_parser(
        "predict",
        help="rank the senses of a word in a sentence",
        description="Rank the senses of a word in a sentence. A score is the model's logit for the "
        "match of the sentence with a sense's definition: its sigmoid is the probability.",
    )
    predict.add_argument("run", metavar="RUN", type=Path, help="folder of a finished run of wsd")
    predict.add_argument("sentence", metavar="SENTENCE")
    predict.add_argument("word", metavar="WORD", help="the word, as it stands in the sentence")
    predict.add_argument("--lemma", help="its dictionary form, where that is another")
    predict.add_argument(
        "--occurrence",
        type=int,
        metavar="N",
        help="which one is meant, where the word stands there several times (default: the first)",
    )
    predict.add_argument("--top", type=int, metavar="N", help="only the N best senses")
    predict.add_argument(
        "--wordnet",
        metavar="DIR",
        help="WordNet, for words not in the corpus (default: what `longtail data wsd` fetched)",
    )
    predict.add_argument("--device", default="cpu", help="cpu, cuda, ... (default: cpu)")
    predict.add_argument("--json", action="store_true", help="JSON on stdout")
    prepare = kinds.add_parser("prepare", help="write token tables for a machine without the files")
    prepare.add_argument("folder", metavar="DIR", type=Path, help="where to write them")
    prepare.add_argument("--semcor", default="", metavar="PATH", help="SemCor 3.0")
    prepare.add_argument("--wordnet", default="", metavar="PATH", help="WordNet 3.0, nltk or wn")
    prepare.add_argument("--backbone", default="bert-base-uncased", metavar="NAME")


def main(args: argparse.Namespace) -> int:
    if args.kind == "prepare":
        return _prepare(args)
    from longtail.benchmarks.wsd.predict import occurrences, rank_senses
    from longtail.runs.files import RunFiles

    if args.top is not None and args.top < 1:
        raise ValueError(f"Invalid --top: {args.top}, should be 1 or more")
    found = rank_senses(
        _settings(args.run),
        RunFiles(args.run).weights,
        args.sentence,
        args.word,
        args.lemma,
        occurrence=1 if args.occurrence is None else args.occurrence,
        wordnet=args.wordnet,
        device=args.device,
    )
    shown = found[: args.top]
    times = len(occurrences(args.sentence, args.word))
    if args.occurrence is None and times > 1:
        text = f"{args.word!r} stands in the sentence {times} times: this is the first"
        print(f"longtail: {text} (--occurrence N for another)", file=sys.stderr)
    if args.json:
        print(json.dumps([vars(sense) for sense in shown]))
        return 0
    width = max(len(sense.key) for sense in shown)
    print(f"{'':3}  {'logit':>8}  {'sense key':<{width}}  definition")
    for place, sense in enumerate(shown, 1):
        print(f"{place:>3}  {sense.score:+8.3f}  {sense.key:<{width}}  {sense.gloss}")
    return 0


def _settings(run: Path) -> Any:
    """The benchmark's settings of a finished run."""
    from longtail.runs.config import read_toml, resolve
    from longtail.runs.files import RunFiles

    files = RunFiles(run)
    for path in (files.settings, files.weights):
        if not path.is_file():
            text = f"{run} has no {path.name}: give the folder of a finished `longtail run`"
            raise ValueError(text)
    settings = read_toml(files.settings)
    if settings.get("benchmark") != "wsd":
        raise ValueError(f"{run} is a run of {settings.get('benchmark')}, not of wsd")
    # Not its method, which may name a module: the folder is data, and nothing in it is imported.
    return resolve("wsd", {"data": settings.get("data", {})}).data


def _prepare(args: argparse.Namespace) -> int:
    from longtail.benchmarks.wsd.corpus import read_corpus
    from longtail.benchmarks.wsd.data import locate
    from longtail.benchmarks.wsd.prepared import check_replaceable, prepare, save
    from longtail.benchmarks.wsd.tokens import load_tokenizer

    check_replaceable(args.folder)  # before the minute that the rest takes
    corpus = read_corpus(*locate(args.semcor, args.wordnet))
    tokenizer = load_tokenizer(args.backbone)  # after the files: it may be asked of the network
    prepared = prepare(corpus, tokenizer)
    save(prepared, args.folder, tokenizer)
    size = sum(file.stat().st_size for file in args.folder.iterdir())
    facts: dict[str, Any] = prepared.meta["facts"]
    print(
        f"{facts['pairs']:,} pairs of {facts['tasks']:,} tasks, {size / 1e6:.0f} MB: {args.folder}"
    )
    return 0
