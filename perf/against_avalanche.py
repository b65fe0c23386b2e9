"""The work of loop_overhead.py in Avalanche 0.6, against a bare PyTorch loop and against longtail.

    python perf/against_avalanche.py [--tasks 1000] [--json FILE] [--no-fail]

Needs `avalanche-lib` beside longtail, in an environment of its own (it is no dependency); without
it this says so and does nothing. Naive, EWC (online) and reservoir replay over tasks of 16 examples
with evaluation of all seen tasks every 50 and of each task once learned; one thread, CPU time.
"""

import argparse
import sys
import time
import warnings

import provenance
import torch
from bare_loops import BATCH, LOOPS, Bare
from loop_overhead import OPTIMIZERS, library_run, make_model, make_sequence, seconds
from torch import nn

from longtail.training import train

BAR = 1.3


def avalanche_seconds(method: str, sequence, every: int) -> float:
    from avalanche.benchmarks import benchmark_from_datasets
    from avalanche.benchmarks.utils import _make_taskaware_tensor_classification_dataset as dataset
    from avalanche.evaluation.metrics import accuracy_metrics
    from avalanche.training.plugins import EvaluationPlugin, ReplayPlugin
    from avalanche.training.storage_policy import ReservoirSamplingBuffer
    from avalanche.training.supervised import EWC, Naive

    torch.manual_seed(0)
    model = make_model(0)
    options = {
        "model": model,
        "optimizer": torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True),
        "criterion": nn.CrossEntropyLoss(),
        "train_mb_size": BATCH,
        "train_epochs": 1,
        "eval_mb_size": 1024,
        "evaluator": EvaluationPlugin(accuracy_metrics(experience=True), loggers=[]),
    }
    if method == "ewc":
        strategy = EWC(ewc_lambda=1.0, mode="online", decay_factor=1.0, **options)
    elif method == "reservoir":
        replay = ReplayPlugin(500, storage_policy=ReservoirSamplingBuffer(max_size=500))
        strategy = Naive(plugins=[replay], **options)
    else:
        strategy = Naive(**options)
    parts = [dataset(*sequence.train(i)[:]) for i in range(len(sequence))]
    benchmark = benchmark_from_datasets(train=parts, test=parts)
    test = list(benchmark.test_stream)
    start = time.process_time()
    for i, experience in enumerate(benchmark.train_stream):
        strategy.train(experience)
        strategy.eval(test[: i + 1] if (i + 1) % every == 0 else [test[i]])
    return time.process_time() - start


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tasks", type=int, default=1000)
    parser.add_argument("--json", metavar="FILE", help="write the numbers there")
    parser.add_argument("--no-fail", action="store_true", help="exit 0 whatever was measured")
    options = parser.parse_args()
    try:
        import avalanche  # noqa: F401
    except ImportError:
        print("avalanche-lib is not installed here: nothing to compare with")
        return
    warnings.simplefilter("ignore")  # it tells of its own deprecations at every step
    torch.set_num_threads(1)
    sequence = make_sequence(options.tasks)
    rows = []
    for method in ("finetune", "ewc", "reservoir"):
        bare, ours = [], []
        for _ in range(3):
            b = Bare(options.tasks, OPTIMIZERS["kept"], every=50)
            bare.append(seconds(lambda b=b, loop=LOOPS[method]: loop(b)))
            run = library_run(sequence, method, "kept", 50, evaluate=True)
            ours.append(seconds(lambda run=run: train(run)))
        theirs = avalanche_seconds(method, sequence, 50)
        row = {
            "method": method,
            "bare s": min(bare),
            "longtail / bare": min(ours) / min(bare),
            "avalanche / bare": theirs / min(bare),
        }
        row["holds"] = row["longtail / bare"] <= BAR
        rows.append(row)
        print("  ".join(f"{k} {v:.2f}" if isinstance(v, float) else str(v) for k, v in row.items()))
    if options.json:
        provenance.write(options.json, rows, "cpu")
    sys.exit(1 if not all(row["holds"] for row in rows) and not options.no_fail else 0)


if __name__ == "__main__":
    main()
