"""Token tables of WSD-CL for a machine without its files.

python -m longtail_bench.wsd prepared/bert --semcor SEMCOR --wordnet WORDNET --backbone NAME
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path


def arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m longtail_bench.wsd",
        description="Token tables of WSD-CL for a machine without its files.",
    )
    parser.add_argument("folder", metavar="DIR", type=Path, help="where to write them")
    parser.add_argument("--semcor", default="", metavar="PATH", help="SemCor 3.0")
    parser.add_argument("--wordnet", default="", metavar="PATH", help="WordNet 3.0's dict folder")
    parser.add_argument("--backbone", default="bert-base-uncased", metavar="NAME")
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> int:
    try:
        return prepare_tables(arguments(argv))
    except ValueError as error:
        print(f"longtail: {error}", file=sys.stderr)
        return 2


def prepare_tables(args: argparse.Namespace) -> int:
    from longtail_bench.prepared import check_free
    from longtail_bench.wsd.corpus import read_corpus
    from longtail_bench.wsd.data import locate
    from longtail_bench.wsd.prepared import prepare, save
    from longtail_bench.wsd.tokens import load_tokenizer

    check_free(args.folder)  # before the minute that the rest takes
    corpus = read_corpus(*locate(args.semcor, args.wordnet))
    tokenizer = load_tokenizer(args.backbone)  # after the files: it may be asked of the network
    prepared = prepare(corpus, tokenizer)
    save(prepared, args.folder)
    size = sum(file.stat().st_size for file in args.folder.iterdir())
    pairs, tasks = prepared.facts["pairs"], prepared.facts["tasks"]
    print(f"{pairs:,} pairs of {tasks:,} tasks, {size / 1e6:.0f} MB: {args.folder}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
