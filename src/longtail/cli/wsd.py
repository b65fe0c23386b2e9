"""`longtail wsd prepare`: token tables of WSD-CL for a machine without its files."""

from __future__ import annotations

import argparse
from pathlib import Path

EXAMPLES = """examples:
  longtail wsd prepare prepared --semcor SEMCOR --wordnet WORDNET --backbone bert-base-uncased
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.epilog = EXAMPLES
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    kinds = parser.add_subparsers(dest="kind", metavar="KIND", required=True)
    prepare = kinds.add_parser("prepare", help="write token tables for a machine without the files")
    prepare.add_argument("folder", metavar="DIR", type=Path, help="where to write them")
    prepare.add_argument("--semcor", default="", metavar="PATH", help="SemCor 3.0")
    prepare.add_argument("--wordnet", default="", metavar="PATH", help="WordNet 3.0's dict folder")
    prepare.add_argument("--backbone", default="bert-base-uncased", metavar="NAME")


def main(args: argparse.Namespace) -> int:
    from longtail.benchmarks.prepared import check_free
    from longtail.benchmarks.wsd.corpus import read_corpus
    from longtail.benchmarks.wsd.data import locate
    from longtail.benchmarks.wsd.prepared import prepare, save
    from longtail.benchmarks.wsd.tokens import load_tokenizer

    check_free(args.folder)  # before the minute that the rest takes
    corpus = read_corpus(*locate(args.semcor, args.wordnet))
    tokenizer = load_tokenizer(args.backbone)  # after the files: it may be asked of the network
    prepared = prepare(corpus, tokenizer)
    save(prepared, args.folder)
    size = sum(file.stat().st_size for file in args.folder.iterdir())
    pairs, tasks = prepared.facts["pairs"], prepared.facts["tasks"]
    print(f"{pairs:,} pairs of {tasks:,} tasks, {size / 1e6:.0f} MB: {args.folder}")
    return 0
