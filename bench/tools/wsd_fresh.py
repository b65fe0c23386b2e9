r"""How often a task of WSD-CL meets words that no earlier task has trained, from the data alone.

The embedding of a token gets a gradient where the token stands in a training pair, and no other. So
a task's coordinates with v_c = 0 are those of the tokens that occur in it for the first time, and
whatever is learned, Algorithm 1 makes their first step, at t = 1 after c earlier steps,

    (1 - β3) · sqrt((t + c) / t) = 0.1 · sqrt(1 + c)

times that of Adam (β3 = 0.9, the warm-up). This counts, by how many tasks have gone by: trained
tasks that have a fresh token, the share of their distinct tokens that are fresh, and that factor.

    python bench/tools/wsd_fresh.py --set data.cap=5 --set train.epochs=1 --out fresh.json
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import numpy as np
import torch

from longtail.runs.config import resolve
from longtail_bench.wsd import prepared_of
from longtail_bench.wsd.pairs import PairRows
from longtail_bench.wsd.tasks import WordTasks, word_tasks

CHUNK = 8192  # pairs laid out at once
BOUNDS = (1, 100, 1000, 4000, 8000, 12000, 16000, 20399)


def tokens_of(rows: PairRows) -> np.ndarray:
    """The distinct tokens of a task's training pairs, padding apart."""
    present: set[int] = set()
    for start in range(0, len(rows), CHUNK):
        ids, lengths = rows[torch.arange(start, min(start + CHUNK, len(rows)))][0]
        inside = torch.arange(ids.shape[-1]) < lengths[:, None]
        present.update(torch.unique(ids[inside]).tolist())
    return np.fromiter(present, np.int64, len(present))


def count(words: WordTasks, epochs: int, batch: int) -> list[dict[str, Any]]:
    """One row for each trained task: its place, earlier steps, its tokens, the fresh ones."""
    seen = np.zeros(words.prepared.template.vocab, bool)
    rows, steps = [], 0
    for task in range(len(words)):
        examples = words.train(task)
        if examples is None:
            continue
        tokens = tokens_of(examples)
        fresh = int((~seen[tokens]).sum())
        rows.append({"task": task, "past_steps": steps, "tokens": len(tokens), "fresh": fresh})
        seen[tokens] = True
        steps += epochs * -(-len(examples) // batch)
    return rows


def by_place(rows: list[dict[str, Any]], beta3: float) -> list[dict[str, Any]]:
    """The rows of each stretch of the sequence in one."""
    found, first = [], 0
    for last in BOUNDS:
        part = [row for row in rows if first <= row["task"] < last]
        if part:
            new = [row["fresh"] for row in part]
            share = [row["fresh"] / row["tokens"] for row in part]
            steps = part[-1]["past_steps"]
            found.append({
                "tasks": [first + 1, last], "trained": len(part),
                "with_fresh_tokens": float(np.mean(np.array(new) > 0)),
                "fresh_tokens_a_task": float(np.mean(new)), "fresh_share": float(np.mean(share)),
                "past_steps": steps, "first_step_factor": (1 - beta3) * (1 + steps) ** 0.5,
            })  # fmt: skip
        first = last
    return found


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE")
    parser.add_argument("--out", type=Path, help="JSON file (default: stdout)")
    args = parser.parse_args(argv)
    config = resolve("wsd", flags={"policy": "continual"}, sets=args.set)
    data: Any = config.data
    limits = {"tasks": data.tasks, "cap": data.cap, "longest": data.longest}
    words = word_tasks(prepared_of(data), data.seed, **limits)
    rows = count(words, config.train.epochs, config.train.batch_size)
    settings = {"epochs": config.train.epochs, "cap": data.cap, "seed": data.seed}
    total = {
        "trained": len(rows), "with_fresh_tokens": sum(row["fresh"] > 0 for row in rows),
        "tokens_ever": sum(row["fresh"] for row in rows),
    }  # fmt: skip
    content = {**settings, **total, "places": by_place(rows, config.moments.beta3)}
    text = json.dumps(content, indent=1) + "\n"
    if args.out:
        args.out.write_text(text, "utf-8")
    else:
        print(text, end="")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
