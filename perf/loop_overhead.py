"""How much slower than a bare PyTorch loop is the library? Ratios, all taken in one run.

    python perf/loop_overhead.py [--no-fail] [--json FILE] [--quick]

1,000 tasks of 16 examples (100 features, MLP 100-100-10, batch 16, one epoch, buffer 500), every
method, one thread, CPU time (other programs on the machine do not count), against the loops in bare_loops.py with the same optimizer; without evaluation,
and with the score of each task once learned and of all seen tasks every 50. Then one run of 10,000
tasks per method: the time of a late task against an early one, and memory.
"""

import argparse
import gc
import itertools
import json
import statistics
import sys
import time
from pathlib import Path

import torch
from bare_loops import BATCH, LOOPS, Bare
from torch import nn

from longtail import ContinualAdamW
from longtail.methods import METHODS
from longtail.replicas import build_model
from longtail.tasks import CLASSIFICATION, from_tensors
from longtail.training import POLICIES, Run, TrainSettings, train

OPTIMIZERS = {
    "continual": lambda params: ContinualAdamW(params, lr=1e-3, weight_decay=0.0, fused=True),
    "carry": lambda params: torch.optim.AdamW(params, lr=1e-3, weight_decay=0.0, fused=True),
}
BARS = {"loop": 1.3, "late task": 1.1, "memory": 1.05}


def make_model(_seed: int) -> nn.Module:
    return nn.Sequential(nn.Linear(100, 100), nn.ReLU(), nn.Linear(100, 10))


def make_sequence(tasks: int):
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(tasks, BATCH, 100, generator=generator)
    y = torch.randint(10, (tasks, BATCH), generator=generator)
    return from_tensors(
        [(f"{i}", (x[i], y[i]), (x[i], y[i])) for i in range(tasks)], CLASSIFICATION
    )


def library_run(sequence, method: str, policy: str, every: int, evaluate: bool) -> Run:
    settings = TrainSettings(
        batch_size=BATCH, lr=1e-3, weight_decay=0.0, evaluate_every=every, fused=True
    )
    model = build_model(make_model, 0)
    options = {"buffer": 500} if method in ("reservoir", "derpp", "agem") else {}
    made = METHODS[method](model, CLASSIFICATION, seed=0, **options)
    policies = [POLICIES[policy]]
    return Run(sequence, model, made, policies, settings, 0, evaluate=None if evaluate else False)


def seconds(function) -> float:
    gc.collect()
    start = time.process_time()
    function()
    return time.process_time() - start


def overhead(tasks: int, repeats: int):
    sequence = make_sequence(tasks)
    for policy in OPTIMIZERS:
        for every in (0, 50):
            for method in METHODS:
                bare, ours = [], []
                for _ in range(repeats):  # in turn, so that both see the same noise
                    b = Bare(tasks, OPTIMIZERS[policy], every=every, own_scores=every > 0)
                    bare.append(seconds(lambda b=b, loop=LOOPS[method]: loop(b)))
                    run = library_run(sequence, method, policy, every, evaluate=every > 0)
                    ours.append(seconds(lambda run=run: train(run)))
                yield {
                    "bar": "loop",
                    "method": method,
                    "optimizer": policy,
                    "evaluation": "every 50" if every else "none",
                    "bare us/task": 1e6 * min(bare) / tasks,
                    "ours us/task": 1e6 * min(ours) / tasks,
                    "ratio": min(ours) / min(bare),
                }


def resident() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1])


def flatness(tasks: int):
    sequence = make_sequence(tasks)
    for method in METHODS:
        run = library_run(sequence, method, "continual", 0, evaluate=True)
        times, memory = [], {}

        def on_step(run: Run, times=times, memory=memory) -> None:
            if run.position.step == 0:  # a task is done
                times.append(time.process_time())
                if len(times) in (500, tasks - 1):
                    memory[len(times)] = resident()

        train(run, on_step=on_step)
        cost = [b - a for a, b in itertools.pairwise(times)]
        early = statistics.median(cost[100:200])
        late = statistics.median(cost[tasks - 101 : tasks - 2])
        yield {
            "bar": "late task",
            "method": method,
            "early us/task": 1e6 * early,
            "late us/task": 1e6 * late,
            "ratio": late / early,
        }
        yield {"bar": "memory", "method": method, "ratio": memory[tasks - 1] / memory[500]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--no-fail", action="store_true", help="exit 0 whatever was measured")
    parser.add_argument("--json", metavar="FILE", help="write the numbers there")
    parser.add_argument("--quick", action="store_true", help="fewer repeats and tasks")
    options = parser.parse_args()
    torch.set_num_threads(1)
    rows = []
    for part in (
        overhead(300 if options.quick else 1000, 2 if options.quick else 5),
        flatness(2000 if options.quick else 10_000),
    ):
        for row in part:
            row["holds"] = row["ratio"] <= BARS[row["bar"]]
            rows.append(row)
            text = [f"{k} {v:.0f}" if "us/" in k else str(v) for k, v in row.items()]
            text = [
                f"{v:.3f}" if k == "ratio" else t
                for (k, v), t in zip(row.items(), text, strict=True)
            ]
            print("  ".join(text[:-1]), "  holds" if row["holds"] else "  MISSED", flush=True)
    missed = [row for row in rows if not row["holds"]]
    print(f"{len(rows) - len(missed)} of {len(rows)} bars hold: {BARS}")
    if options.json:
        Path(options.json).write_text(json.dumps(rows, indent=1) + "\n")
    sys.exit(1 if missed and not options.no_fail else 0)


if __name__ == "__main__":
    main()
