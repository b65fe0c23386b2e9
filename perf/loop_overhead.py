"""How much slower than a bare PyTorch loop is the library? Ratios, all taken in one run.

    python perf/loop_overhead.py [--no-fail] [--json FILE] [--quick]

1,000 tasks of 16 examples (100 features, MLP 100-100-10, batch 16, one epoch, buffer 500), every
method, one thread, against the loops in bare_loops.py with the same optimizer; without evaluation,
and with the score of each task once learned and of all seen tasks every 50. Then one run of 10,000
tasks per method: the time of a late task against an early one, and memory. Last, EWC's Fisher pass
over 10,000 examples (MLP 784-100-100-10) against a plain gradient pass over them. Times are CPU
time, so that other programs on the machine hardly count.
"""

import argparse
import contextlib
import gc
import statistics
import sys
import time
from pathlib import Path

import provenance
import torch
from bare_loops import BATCH, LOOPS, Bare
from torch import nn
from torch.nn.functional import cross_entropy

from longtail import ContinualAdamW
from longtail.methods import METHODS
from longtail.methods.fisher import Fisher
from longtail.replicas import build_model
from longtail.tasks import CLASSIFICATION, TensorExamples, from_tensors
from longtail.training import POLICIES, Interrupted, Run, TrainSettings, train

OPTIMIZERS = {
    "continual": lambda params: ContinualAdamW(params, lr=1e-3, weight_decay=0.0, fused=True),
    "kept": lambda params: torch.optim.AdamW(params, lr=1e-3, weight_decay=0.0, fused=True),
}
BARS = {"loop": 1.3, "late task": 1.1, "memory": 1.05, "fisher": 3.0}


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
            for method in LOOPS:
                bare, ours = [], []
                for _ in range(repeats):  # in turn, so that both see the same noise
                    b = Bare(tasks, OPTIMIZERS[policy], every=every, own_scores=every > 0)
                    bare.append(seconds(lambda b=b, loop=LOOPS[method]: loop(b)))
                    run = library_run(sequence, method, policy, every, evaluate=every > 0)
                    ours.append(seconds(lambda run=run: train(run)))
                yield {
                    "bar": "loop",
                    "method": method,
                    "policy": policy,
                    "evaluation": "every 50" if every else "none",
                    "bare us/task": 1e6 * min(bare) / tasks,
                    "ours us/task": 1e6 * min(ours) / tasks,
                    "ratio": min(ours) / min(bare),
                }


def resident() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1])


def advance(run: Run, task: int) -> None:
    """Train until so many tasks are done."""

    def on_step(run: Run) -> None:
        if run.position.task == task:
            raise Interrupted

    with contextlib.suppress(Interrupted):
        train(run, on_step=on_step)


def flatness(tasks: int):
    sequence = make_sequence(tasks)
    for method in LOOPS:
        late = library_run(sequence, method, "continual", 0, evaluate=True)
        advance(late, 500)
        before = resident()
        advance(late, tasks - 101)
        memory = resident() / before
        early = library_run(sequence, method, "continual", 0, evaluate=True)
        advance(early, 100)
        costs = {"early": [], "late": []}
        for _ in range(20):  # five tasks of each in turn, so that both see the same noise
            for name, run in (("early", early), ("late", late)):
                target = run.position.task + 5
                costs[name].append(seconds(lambda run=run, target=target: advance(run, target)))
        first, last = (statistics.median(costs[name]) / 5 for name in ("early", "late"))
        yield {
            "bar": "late task",
            "method": method,
            "early us/task": 1e6 * first,
            "late us/task": 1e6 * last,
            "ratio": last / first,
        }
        yield {"bar": "memory", "method": method, "ratio": memory}


def fisher_pass(repeats: int):
    x, y = torch.randn(10_000, 784), torch.randint(10, (10_000,))
    model = nn.Sequential(
        nn.Linear(784, 100), nn.ReLU(), nn.Linear(100, 100), nn.ReLU(), nn.Linear(100, 10)
    )
    fisher, examples = Fisher(model, CLASSIFICATION), TensorExamples(x, y)

    def plain() -> None:
        model.zero_grad()
        for a, b in zip(x.split(1024), y.split(1024), strict=True):
            cross_entropy(model(a), b).backward()

    bare, ours = [], []
    for _ in range(repeats):
        bare.append(seconds(plain))
        ours.append(seconds(lambda: fisher(examples)))
    yield {"bar": "fisher", "method": "ewc", "ratio": min(ours) / min(bare)}


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
        fisher_pass(5),
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
        provenance.write(options.json, rows, "cpu")
    sys.exit(1 if missed and not options.no_fail else 0)


if __name__ == "__main__":
    main()
