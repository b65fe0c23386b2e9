"""What do many replicas in one program cost, against one? Ratios, all taken in one run.

    python perf/replicas.py [--no-fail] [--json FILE]

One CPU thread, CPU time, the whole training loop without evaluation: 100 replicas of a linear model
of 100 features at batch 16, and ten of an MLP 784-100-100-10 at batch 10, each against one replica.
"""

import argparse
import gc
import sys
import time

import provenance
import torch
from torch import nn

from longtail.methods import Finetune
from longtail.replicas import build_model
from longtail.tasks import CLASSIFICATION, REGRESSION, from_tensors
from longtail.training import POLICIES, Run, TrainSettings, train


def linear(_seed: int) -> nn.Module:
    return nn.Sequential(nn.Linear(100, 1), nn.Flatten(-2))


def mlp(_seed: int) -> nn.Module:
    return nn.Sequential(
        nn.Linear(784, 100), nn.ReLU(), nn.Linear(100, 100), nn.ReLU(), nn.Linear(100, 10)
    )


CASES = {
    "linear, 100 replicas": (linear, 100, 16, 100, REGRESSION, 5.0),
    "MLP, 10 replicas": (mlp, 784, 10, 10, CLASSIFICATION, 3.0),
}


def make_sequence(features: int, batch: int, objective):
    generator = torch.Generator().manual_seed(0)
    n = 20 * batch
    x = torch.randn(10, n, features, generator=generator)
    if objective is REGRESSION:
        y = torch.randn(10, n, generator=generator)
    else:
        y = torch.randint(10, (10, n), generator=generator)
    return from_tensors([(f"{i}", (x[i], y[i]), (x[i], y[i])) for i in range(10)], objective)


def seconds_per_step(make, sequence, batch: int, objective, seeds) -> float:
    model = build_model(make, seeds)
    seed = torch.tensor(seeds) if isinstance(seeds, list) else seeds
    settings = TrainSettings(batch_size=batch)
    method = Finetune(model, objective, seed=seed)
    run = Run(sequence, model, method, [POLICIES["continual"]], settings, seed, evaluate=False)
    gc.collect()
    start = time.process_time()
    train(run)
    return (time.process_time() - start) / 200


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--no-fail", action="store_true", help="exit 0 whatever was measured")
    parser.add_argument("--json", metavar="FILE", help="write the numbers there")
    options = parser.parse_args()
    torch.set_num_threads(1)
    rows = []
    for name, (make, features, batch, count, objective, bar) in CASES.items():
        sequence = make_sequence(features, batch, objective)
        one, many = [], []
        for _ in range(7):  # in turn, so that both see the same noise
            one.append(seconds_per_step(make, sequence, batch, objective, 0))
            many.append(seconds_per_step(make, sequence, batch, objective, list(range(count))))
        ratio = min(many) / min(one)
        rows.append(
            {
                "case": name,
                "one us/step": 1e6 * min(one),
                "all us/step": 1e6 * min(many),
                "ratio": ratio,
                "bar": bar,
                "holds": ratio <= bar,
            }
        )
        verdict = "holds" if ratio <= bar else "MISSED"
        print(
            f"{name}: one {1e6 * min(one):.0f} us/step, all {1e6 * min(many):.0f} us/step, "
            f"ratio {ratio:.2f}, at most {bar}: {verdict}",
            flush=True,
        )
    if options.json:
        provenance.write(options.json, rows, "cpu")
    sys.exit(1 if not all(row["holds"] for row in rows) and not options.no_fail else 0)


if __name__ == "__main__":
    main()
