"""What each rival of Continual Adam costs: time a step against AdamW, bytes a parameter beyond it.

    python perf/rival_step.py [--json FILE] [--device cuda] [--rounds N] [--width N]

An MLP of two hidden layers on batches of 16, tasks of 40 steps, in the library's own loop: the time
of a whole run by its steps, so that what happens at a task's end (a Fisher pass, an average) counts
with a fortieth. Rounds of all rows take turns, and a row's time is the median of its ratios to the
AdamW of the same round: CPU time on a CPU, wall time on a GPU. Bytes are those of the tensors that
the optimizer and the method keep from step to step; what a buffer of examples holds is not counted.
The rows are those of `studies/rivals_*.toml`; plain AdamW is torch's, so that nothing of Continual
Adam's state is counted where it is not used, and fused as ours is.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Iterator
from typing import Any, Literal, NamedTuple

import provenance
import torch
from torch import Tensor, nn

from longtail import methods
from longtail.methods import Method
from longtail.tasks import CLASSIFICATION, Segments, TableSequence, TensorExamples
from longtail.training import Run, TrainSettings, train
from longtail.training.boundary import policy_for
from longtail.training.optimizer_class import find_optimizer
from longtail_bench.claims.rivals import extra_bytes

BATCH, STEPS, TASKS, INPUTS, CLASSES = 16, 40, 3, 784, 10
ADAMW = "torch.optim:AdamW"


class Rival(NamedTuple):
    """A row, as the studies call it, and how it is made."""

    method: str
    row: str
    optimizer: str
    policy: str
    average: Literal["none", "task", "ema"] = "none"


def rivals() -> list[Rival]:
    """Every method with AdamW kept and with MC, then the optimizers."""
    found = []
    for method in methods.names():
        # what reads Adam's moments finds them in torch's AdamW as well
        found.append(Rival(method, "kept", ADAMW, "kept"))
        found.append(Rival(method, "continual", "adamw", "continual"))
    for method in ("finetune", "reservoir"):
        found += [
            Rival(method, "new", ADAMW, "new"),
            Rival(method, "MoFO", "longtail_bench.rivals.mofo:MoFO", "kept"),
            Rival(method, "MoFO with MC", "longtail_bench.rivals.mofo:MoFO", "continual"),
            Rival(method, "Adam-Rel", ADAMW, "longtail_bench.rivals.adam_rel:restart_time"),
            Rival(method, "UPGD", "longtail_bench.rivals.upgd:UPGD", "kept"),
            Rival(method, "BAdam", "longtail_bench.rivals.badam:BAdam", "kept"),
        ]
        found += [
            Rival(method, "kept, task average", ADAMW, "kept", "task"),
            Rival(method, "continual, task average", "adamw", "continual", "task"),
            Rival(method, "kept, ema", ADAMW, "kept", "ema"),
            Rival(method, "continual, ema", "adamw", "continual", "ema"),
        ]
    return found


def make_run(rival: Rival, device: torch.device, width: int, steps: int = STEPS) -> Run:
    """A fresh run of a few tasks."""
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Linear(INPUTS, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(),
        nn.Linear(width, CLASSES),
    ).to(device)  # fmt: skip
    rows = BATCH * steps
    x, y = torch.randn(rows * TASKS, INPUTS), torch.randint(CLASSES, (rows * TASKS,))
    parts = Segments([rows * t for t in range(TASKS + 1)])
    table = TensorExamples(x.to(device), y.to(device))
    sequence = TableSequence(table, parts, parts, CLASSIFICATION)
    method = methods.find(rival.method)(model, CLASSIFICATION, seed=0)
    graphs = device.type == "cuda"
    settings = TrainSettings(
        batch_size=BATCH, optimizer=rival.optimizer, cuda_graph=graphs, average=rival.average
    )
    policy = policy_for(rival.policy, find_optimizer(rival.optimizer))
    optim = {"fused": True} if rival.optimizer == ADAMW else {}  # as Continual Adam is by itself
    return Run(sequence, model, method, [policy], settings, 0, evaluate=False, optim=optim)


def seconds(rival: Rival, device: torch.device, width: int) -> float:
    """Of a whole run."""
    run = make_run(rival, device, width)
    if device.type == "cuda":
        torch.cuda.synchronize()
        begin = time.perf_counter()
        train(run)
        torch.cuda.synchronize()
        return time.perf_counter() - begin
    begin = time.process_time()
    train(run)
    return time.process_time() - begin


def kept_bytes(rival: Rival, width: int = 32) -> float:
    """Bytes a parameter that optimizer and method keep, beyond AdamW's two moments; at most."""
    run = make_run(rival, torch.device("cpu"), width, steps=4)
    seen: list[int] = []
    train(run, on_step=lambda run: seen.append(_held(run)))
    beyond = max(seen) / sum(p.numel() for p in run.model.parameters()) - 8
    unused = 4 if rival.optimizer.endswith("MoFO") and rival.policy == "kept" else 0
    return beyond - unused  # v_c, which MoFO has as a subclass of Continual AdamW and never reads


def _held(run: Run) -> int:
    """Bytes of all that is as large as a parameter and is none; counts are a few numbers."""
    own = {p.untyped_storage().data_ptr() for p in run.model.parameters()}
    held: dict[int, int] = {}
    average = [] if run.average is None else list(vars(run.average).values())
    found = _tensors([*run.optimizer.state.values(), *average])
    for tensor in (*found, *_of_method(run.method)):
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in own and tensor.numel() > 1:
            held[storage.data_ptr()] = storage.nbytes()
    return sum(held.values())


def _of_method(method: Method) -> Iterator[Tensor]:
    """What it holds between steps, without its examples and what it can make anew."""
    passing = ("buffer", "outputs", "optimizer", "model", "fisher", "objective", "reference")
    return _tensors([value for name, value in vars(method).items() if name not in passing])


def _tensors(value: Any) -> Iterator[Tensor]:
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, dict):
        yield from _tensors(list(value.values()))
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _tensors(item)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--json", help="write the rows to this file")
    parser.add_argument("--device", default="cpu", help="cpu or cuda")
    parser.add_argument("--rounds", type=int, default=5, help="times each row is run")
    parser.add_argument("--width", type=int, default=400, help="of both hidden layers")
    args = parser.parse_args()
    torch.set_num_threads(1)
    device, rows = torch.device(args.device), rivals()
    base = Rival("finetune", "kept", ADAMW, "kept")
    ratios: dict[Rival, list[float]] = {rival: [] for rival in rows}
    for number in range(args.rounds + 1):
        usual = seconds(base, device, args.width)
        for rival in rows:
            ratio = seconds(rival, device, args.width) / usual
            if number:  # the first round warms up
                ratios[rival].append(ratio)
    found = []
    for rival in rows:
        row = {"method": rival.method, "policy": rival.row}
        spread = (min(ratios[rival]), max(ratios[rival]))
        row |= {"time": statistics.median(ratios[rival]), "time_range": spread}
        row |= {"bytes": round(kept_bytes(rival), 2), "bytes_by_name": extra_bytes(row)}
        print(f"{rival.method:20} {rival.row:23} time {row['time']:5.2f}  bytes {row['bytes']}")
        found.append(row)
    settings = {"batch": BATCH, "steps": STEPS, "tasks": TASKS, "width": args.width}
    if args.json:
        provenance.write(args.json, found, device, settings={**settings, "rounds": args.rounds})


if __name__ == "__main__":
    main()
