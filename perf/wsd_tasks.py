"""What a WSD-CL task costs outside its steps: order of batches, rates, boundary, bookkeeping.

    python perf/wsd_tasks.py --prepared DIR [--json FILE] [--no-fail]

Trains a stretch of the real sequence (MiniLM's shape, four epochs) with the training loop, then
takes the very same steps again in a bare loop:

    overhead of a task = (time of the loop - time of the bare steps) / tasks
    share = overhead * 20,399 / (overhead * 20,399 + bare step * 620,632)

The share of the whole sequence is what counts, as tasks of a late stretch are small and come fast.
Bar: at most 5%. Beside it, the same with each task's own test set evaluated after it. DIR holds
token tables (`python -m longtail_bench.wsd`); without it the miniature is used, as a test of this.
"""

import argparse
import json
import sys
import time
from pathlib import Path
from typing import Any

import provenance
import torch

from longtail.methods import Finetune
from longtail.names import POLICIES
from longtail.training import Position, Run, train
from longtail.training.settings import TrainSettings
from longtail_bench.encoder.plain import Encoder, EncoderConfig
from longtail_bench.wsd.evaluation import Evaluation
from longtail_bench.wsd.miniature import miniature, tiny_encoder
from longtail_bench.wsd.model import SentencePairs
from longtail_bench.wsd.prepared import load
from longtail_bench.wsd.tasks import WordTasks, word_tasks

TASKS, STEPS, BAR = 20_399, 620_632, 0.05
MINILM = EncoderConfig(30522, 384, 6, 12, 1536, 512)


def build(prepared: Path | None, first: int, count: int, device: str) -> tuple[Run, WordTasks]:
    tables = load(prepared) if prepared else miniature()
    words = word_tasks(tables, 0)
    stop = min(first + count, len(words))
    words = words.select(range(first if prepared else 0, stop)).to(device)
    encoder = Encoder(MINILM) if prepared else tiny_encoder(tables.template, 96, 0.0)
    model = SentencePairs(encoder, tables.template.middle[0]).to(device)
    settings = TrainSettings(
        epochs=4, batch_size=12, lr=1e-6, weight_decay=0.01, schedule="linear", warmup=0.1,
        autocast="bf16" if device == "cuda" else "none", cuda_graph=device == "cuda",
    )  # fmt: skip
    method = Finetune(model, words.objective, seed=0)
    run = Run(words, model, method, [POLICIES["continual"]], settings, 0, evaluate=Evaluation())
    return run, words


def once(run: Run, evaluate: bool) -> float:
    """Seconds for the whole stretch, from its first task."""
    run.position = Position()
    run.evaluate = Evaluation() if evaluate else None
    wait(run)
    begin = time.perf_counter()
    train(run)
    wait(run)
    return time.perf_counter() - begin


def recorded(run: Run) -> list[tuple[Any, Any]]:
    """What each step of the stretch is given."""
    calls, take = [], run.take_step

    def note(run: Run, examples: Any, index: Any) -> None:
        calls.append((examples, index))
        take(run, examples, index)

    run.take_step = note  # pyright: ignore[reportAttributeAccessIssue]
    once(run, False)
    run.take_step = take
    return calls


def bare(run: Run, calls: list[tuple[Any, Any]]) -> float:
    wait(run)
    begin = time.perf_counter()
    for examples, index in calls:
        run.take_step(run, examples, index)
    wait(run)
    return time.perf_counter() - begin


def wait(run: Run) -> None:
    if run.device.type == "cuda":
        torch.cuda.synchronize()


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--prepared", type=Path, help="token tables of MiniLM's tokeniser")
    parser.add_argument("--first", type=int, default=6000, help="first task of the stretch")
    parser.add_argument("--tasks", type=int, default=200, help="tasks of the stretch")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the numbers there")
    parser.add_argument("--no-fail", action="store_true", help="exit 0 whatever was measured")
    options = parser.parse_args()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.manual_seed(0)
    run, words = build(options.prepared, options.first, options.tasks, device)
    once(run, True)  # captures what there is to capture
    calls = recorded(run)
    looped = min(once(run, False) for _ in range(2))
    steps = min(bare(run, calls) for _ in range(2))
    evaluated = once(run, True)
    task = (looped - steps) / len(words)
    share = task * TASKS / (task * TASKS + steps / len(calls) * STEPS)
    result = {
        "bare step, ms": 1e3 * steps / len(calls), "overhead of a task, ms": 1e3 * task,
        "own test set of a task, ms": 1e3 * (evaluated - looped) / len(words),
        "share of the sequence": share,
    }  # fmt: skip
    holds = share <= BAR
    print(json.dumps(result, indent=1), f"bar {BAR}: {'holds' if holds else 'MISSED'}", sep="\n")
    if options.json:
        settings, what = {"tasks": len(words), "steps": len(calls)}, "share of the sequence"
        parts = {"settings": settings, "bars": {what: BAR}, "holds": {what: holds}}
        provenance.write(options.json, [result], device, **parts)
    sys.exit(0 if holds or options.no_fail else 1)


if __name__ == "__main__":
    main()
