"""Speed on FS-Mol's shapes against a bare torch loop with the same fused optimizer.

    python perf/fsmol.py [--no-fail] [--json FILE] [--tasks N] [--prepared FOLDER]

A perceptron 2048-256-128 with one head a task, batch 16, one thread, CPU time (other programs on
the machine do not count). One epoch of Finetune over all tasks, each scored once it is learned, by
the library and by a loop written out by hand: packed bits unpacked by a table, forward, backward,
Continual AdamW's fused step, a fresh state for each head. Then ten seeds as one stack against one
run. Molecules are made up, with sizes like FS-Mol's (Pareto, median 46 of which 37 are for
training), unless a prepared folder is given; `--tasks 0 --prepared FOLDER` is the whole benchmark.
"""

import argparse
import math
import sys
import time
from pathlib import Path

import numpy as np
import provenance
import torch
from torch.nn.functional import binary_cross_entropy_with_logits, embedding, linear, rms_norm

from longtail import ContinualAdamW
from longtail.methods import METHODS
from longtail.replicas import build_model
from longtail.support.random import permutation
from longtail.training import POLICIES, Run, TrainSettings, train
from longtail_bench.fsmol.evaluation import Evaluation
from longtail_bench.fsmol.model import MoleculeNet
from longtail_bench.fsmol.prepared import Prepared, load
from longtail_bench.fsmol.tasks import assay_tasks

BATCH, HIDDEN, LR = 16, (256, 128), 1e-3
BARS = {"finetune": 1.15, "ten seeds": 4.0}


def made_up(tasks: int) -> Prepared:
    """Molecules of 49 random bits; speed does not look at them."""
    rng = np.random.default_rng(0)
    sizes = np.minimum(32 * (1 - rng.random(tasks)) ** (-1 / 1.9), 3594).astype(np.int64)
    molecules = int(sizes.sum())
    bits = np.sort(rng.integers(0, 2048 // 49, (molecules, 49)) + np.arange(49) * (2048 // 49), 1)
    return Prepared(
        [f"MADE{i}" for i in range(tasks)],
        ["train"] * tasks,
        np.cumsum([0, *sizes]),
        np.arange(molecules, dtype=np.int32),
        rng.integers(0, 2, molecules).astype(np.uint8),
        np.arange(molecules + 1) * 49,
        bits.astype(np.uint16).ravel(),
        np.ones(bits.size, np.uint8),
    )


def bare(sequence) -> None:
    """The same run by hand."""
    torch.manual_seed(0)
    model = MoleculeNet(len(sequence), HIDDEN)
    trunk, table = list(model.trunk.parameters()), model.heads
    trunk[0] = torch.nn.Parameter(trunk[0].detach().t().contiguous())  # as nn.Linear has it
    head = torch.nn.Parameter(table[0].clone())
    fresh = {"params": [head], "second_moment": "reset", "beta3": 0.0}
    opt = ContinualAdamW([{"params": trunk}, fresh], lr=LR, weight_decay=0.0, fused=True)
    data = sequence.table
    byte = torch.arange(256)[:, None] >> torch.arange(7, -1, -1) & 1
    lookup = byte.float()

    def logits(rows, weights):
        x = embedding(data.fingerprints[data.molecule[rows]].int(), lookup).flatten(1)
        h = linear(x, trunk[0], trunk[1]).relu()
        h = rms_norm(linear(h, trunk[2], trunk[3]).relu(), (HIDDEN[-1],))
        return linear(h, weights[None, :-1], weights[-1:]).squeeze(1)

    train_rows, test_rows = (sequence.segments(kind) for kind in ("train", "test"))
    right = torch.zeros(len(sequence))
    params = [*trunk, head]
    for t in range(len(sequence)):
        with torch.no_grad():
            head.copy_(table[t])
        rows = train_rows.rows[train_rows.offsets[t] : train_rows.offsets[t + 1]]
        order = rows[permutation(len(rows), 0, t)]
        for part in order.split(BATCH):
            for p in params:
                p.grad = None
            binary_cross_entropy_with_logits(logits(part, head), data.targets[part]).backward()
            opt.step()
        opt.end_task()
        table[t] = head.detach()
        with torch.no_grad():
            rows = test_rows.rows[test_rows.offsets[t] : test_rows.offsets[t + 1]]
            right[t] = ((logits(rows, head) > 0) == (data.targets[rows] > 0.5)).float().mean()


def library(sequence, seeds: int | None) -> None:
    seed = 0 if seeds is None else list(range(seeds))
    model = build_model(lambda _: MoleculeNet(len(sequence), HIDDEN), seed)
    seeds_of = 0 if seeds is None else torch.arange(seeds)
    method = METHODS["finetune"](model, sequence.objective, seed=seeds_of)
    settings = TrainSettings(batch_size=BATCH, lr=LR)
    policies = [POLICIES["continual"]]
    train(Run(sequence, model, method, policies, settings, seeds_of, evaluate=Evaluation()))


def seconds(function, *arguments) -> float:
    begin = time.process_time()
    function(*arguments)
    return time.process_time() - begin


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--no-fail", action="store_true", help="exit with 0 in any case")
    parser.add_argument("--json", type=Path, help="write the numbers to this file")
    parser.add_argument("--tasks", type=int, default=150, help="tasks; 0: all of --prepared")
    parser.add_argument("--prepared", help="a prepared FS-Mol in place of made-up molecules")
    parser.add_argument("--repeat", type=int, default=3, help="how often each of two is timed")
    args = parser.parse_args()
    torch.set_num_threads(1)
    prepared = load(args.prepared) if args.prepared else made_up(args.tasks)
    sequence = assay_tasks(prepared, 0, tasks=args.tasks)
    warm = assay_tasks(made_up(3), 0)
    bare(warm), library(warm, None), library(warm, 2)
    times = {"bare": math.inf, "finetune": math.inf}
    for _ in range(args.repeat):  # in turns, the best of each
        times["bare"] = min(times["bare"], seconds(bare, sequence))
        times["finetune"] = min(times["finetune"], seconds(library, sequence, None))
    times["ten seeds"] = seconds(library, sequence, 10)
    ratios = {"finetune": times["finetune"] / times["bare"]}
    ratios["ten seeds"] = times["ten seeds"] / times["finetune"]
    failed = []
    for name, ratio in ratios.items():
        bad = ratio > BARS[name]
        failed += [name] * bad
        print(f"{name:12}{times[name]:8.1f} s {ratio:6.2f}x  bar {BARS[name]:.2f}x  {'FAIL' * bad}")
    print(f"bare loop   {times['bare']:8.1f} s, {len(sequence)} tasks")
    if args.json:
        rows = [{"what": name, "seconds": value} for name, value in times.items()]
        settings = {"tasks": len(sequence), "repeat": args.repeat}
        provenance.write(args.json, rows, "cpu", settings=settings, ratios=ratios, bars=BARS)
    return 0 if args.no_fail or not failed else 1


if __name__ == "__main__":
    sys.exit(main())
