"""Speed on split MNIST's shapes against hand-written loops. Ratios, all taken in one run.

    python perf/split_mnist.py [--no-fail] [--json FILE] [--steps N]

MLP 784-100-100-10 on bytes, batch 10, buffer 200, two tasks, one thread, CPU time (other programs
on the machine do not count). Each method against the plain PyTorch loop of the same method with
torch's fused AdamW; the Fisher pass of EWC over 10,000 images against one gradient pass over them;
ten replicas against one, and what that would be if only the optimizer's step and the matrix
products took ten times as long. Images are random: speed does not look at them.
"""

import argparse
import gc
import math
import sys
import time
from functools import partial
from pathlib import Path

import provenance
import torch
import torch.nn.functional as F  # noqa: N812
from torch import nn

from longtail.benchmarks.mlp import MLP
from longtail.methods import METHODS
from longtail.replicas import build_model
from longtail.tasks import CLASSIFICATION, from_tensors
from longtail.training import POLICIES, Run, TrainSettings, train
from longtail_bench.images.inputs import Pixels
from longtail_bench.images.mnist import METHOD_SETTINGS

B, BUFFER = 10, 200
BARS = {"method": 1.1, "fisher": 3.0, "ten replicas": 3.0, "at best": math.inf}


def make_model(_seed: int) -> nn.Module:
    return nn.Sequential(Pixels(), nn.Flatten(), MLP(784, (100, 100), 10))


def images(n: int) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(n)
    x = torch.randint(256, (n, 1, 28, 28), dtype=torch.uint8, generator=generator)
    return x, torch.randint(10, (n,), generator=generator)


class Bare:
    """What the hand-written loops share: data, model, optimizer."""

    def __init__(self, tasks) -> None:
        self.tasks = tasks
        torch.manual_seed(0)
        self.model = make_model(0)
        self.params = list(self.model.parameters())
        self.opt = torch.optim.AdamW(self.params, lr=1e-3, weight_decay=0.01, fused=True)

    def batches(self):
        for t, (x, y) in enumerate(self.tasks):
            order = torch.randperm(len(y))
            for rows in order.split(B):
                yield t, x[rows], y[rows]

    def step(self, loss) -> None:
        self.opt.zero_grad()
        loss.backward()
        self.opt.step()


def finetune(b: Bare) -> None:
    for _, x, y in b.batches():
        b.step(F.cross_entropy(b.model(x), y))


def _penalised(b: Bare, strength: float, decay: float | None) -> None:
    """EWC with the Fisher left out (it has its own bar), or EWC++."""
    fisher, anchor, running = ([torch.zeros_like(p) for p in b.params] for _ in range(3))
    for _, x, y in b.batches():
        b.opt.zero_grad()
        F.cross_entropy(b.model(x), y).backward()
        grads = [p.grad for p in b.params]
        with torch.no_grad():
            if decay is not None:
                torch._foreach_mul_(running, 1 - decay)
                torch._foreach_addcmul_(running, grads, grads, decay)
            torch._foreach_addcmul_(grads, fisher, b.params, 2 * strength)
            torch._foreach_add_(grads, anchor, alpha=-2 * strength)
        b.opt.step()


def ewc(b: Bare) -> None:
    _penalised(b, 200.0, None)


def ewcpp(b: Bare) -> None:
    _penalised(b, 1000.0, 0.9)


def _store(seen: int, fields, rows) -> int:
    """Algorithm R, row by row; once the buffer is full most rows are not kept."""
    slots = torch.randint(1 << 40, (B,)) % torch.arange(seen + 1, seen + B + 1)
    for i, slot in enumerate(slots.tolist()):
        slot = seen + i if seen + i < BUFFER else slot
        if slot < BUFFER:
            for field, row in zip(fields, rows, strict=True):
                field[slot] = row[i]
    return seen + B


def reservoir(b: Bare) -> None:
    bx, by = torch.zeros(BUFFER, 1, 28, 28, dtype=torch.uint8), torch.zeros(BUFFER).long()
    seen = 0
    for _, x, y in b.batches():
        if seen:
            i = torch.randint(min(seen, BUFFER), (B,))
            out = b.model(torch.cat([x, bx[i]]))
            loss = F.cross_entropy(out[:B], y) + F.cross_entropy(out[B:], by[i])
        else:
            loss = F.cross_entropy(b.model(x), y)
        b.step(loss)
        seen = _store(seen, (bx, by), (x, y))


def derpp(b: Bare) -> None:
    bx, by = torch.zeros(BUFFER, 1, 28, 28, dtype=torch.uint8), torch.zeros(BUFFER).long()
    bz, seen = torch.zeros(BUFFER, 10), 0
    for _, x, y in b.batches():
        if seen:
            i, j = torch.randint(min(seen, BUFFER), (2, B))
            new, matched, replayed = b.model(torch.cat([x, bx[i], bx[j]])).split(B)
            loss = F.cross_entropy(new, y) + F.mse_loss(matched, bz[i])
            loss = loss + F.cross_entropy(replayed, by[j])
        else:
            new = b.model(x)
            loss = F.cross_entropy(new, y)
        b.step(loss)
        seen = _store(seen, (bx, by, bz), (x, y, new.detach()))


def agem(b: Bare) -> None:
    bx, by = b.tasks[0][0][:BUFFER], b.tasks[0][1][:BUFFER]
    for t, x, y in b.batches():
        b.opt.zero_grad()
        F.cross_entropy(b.model(x), y).backward()
        if t:
            i = torch.randint(BUFFER, (METHOD_SETTINGS["agem"]["draw"],))
            r = torch.autograd.grad(F.cross_entropy(b.model(bx[i]), by[i]), b.params)
            g = [p.grad for p in b.params]
            inner = sum((x * y).sum() for x, y in zip(g, r, strict=True))
            if inner < 0:
                scale = inner / sum((x * x).sum() for x in r)
                torch._foreach_sub_(g, torch._foreach_mul(r, scale))
        b.opt.step()


LOOPS = {f.__name__: f for f in (finetune, ewc, ewcpp, reservoir, derpp, agem)}


def library_run(tasks, method: str, seeds: int | list[int] = 0) -> Run:
    parts = [(f"{i}", task, (task[0][:B], task[1][:B])) for i, task in enumerate(tasks)]
    sequence = from_tensors(parts, CLASSIFICATION)
    model = build_model(make_model, seeds)
    options = dict(METHOD_SETTINGS.get(method, {}))
    if method == "ewc":
        options["fisher_cap"] = 1  # its pass over the task is measured on its own
    seed = seeds if isinstance(seeds, int) else torch.tensor(seeds)
    made = METHODS[method](model, CLASSIFICATION, seed=seed, **options)
    settings = TrainSettings(batch_size=B, lr=1e-3, weight_decay=0.01)
    return Run(sequence, model, made, [POLICIES["continual"]], settings, seed, evaluate=False)


def seconds(function) -> float:
    gc.collect()
    start = time.process_time()
    function()
    return time.process_time() - start


def against(ours, theirs, repeats: int) -> tuple[float, float]:
    """The least time of each, taken in turn so that both see the same noise.

    `ours` and `theirs` prepare something and return the function whose time counts.
    """
    found = [(seconds(ours()), seconds(theirs())) for _ in range(repeats)]
    return min(a for a, _ in found), min(b for _, b in found)


def measure(steps: int, repeats: int):
    tasks = [images(steps * B // 2) for _ in range(2)]

    def library(method: str, seeds: int | list[int] = 0):
        return lambda: partial(train, library_run(tasks, method, seeds))

    for method, loop in LOOPS.items():
        times = against(library(method), lambda loop=loop: partial(loop, Bare(tasks)), repeats)
        yield "method", method, *(1000 / steps * t for t in times)

    x, y = images(10_000)
    model = make_model(0)
    examples = from_tensors([("all", (x, y), (x, y))], CLASSIFICATION).test(0)
    ewc_method = METHODS["ewc"](model, CLASSIFICATION)

    def gradient_pass() -> None:
        for a, b in zip(x.split(1024), y.split(1024), strict=True):
            F.cross_entropy(model(a), b, reduction="sum").backward()

    fisher = partial(ewc_method.end_task, examples)
    yield "fisher", "10,000 images", *against(lambda: fisher, lambda: gradient_pass, 2 * repeats)
    ten, one = library("finetune", list(range(10))), library("finetune")
    times = against(ten, one, repeats)
    yield "ten replicas", "finetune", *times
    work = min(seconds(shared_work(tasks, steps)) for _ in range(repeats))
    yield "at best", "ten replicas", times[1] + 9 * work, times[1]


def shared_work(tasks, steps: int):
    """The optimizer's steps and the matrix products of one run, which ten runs have ten times."""
    run = library_run(tasks, "finetune")
    x, y = tasks[0][0][:B], tasks[0][1][:B]
    F.cross_entropy(run.model(x), y).backward()
    layers = [layer for layer in run.model.modules() if isinstance(layer, nn.Linear)]
    sides = [(torch.rand(B, m.in_features), m.weight.detach(), torch.rand(B, m.out_features))
             for m in layers]  # fmt: skip

    def work() -> None:
        for _ in range(steps):
            for k, (h, weight, delta) in enumerate(sides):
                torch.mm(h, weight.t())
                torch.mm(delta.t(), h)
                if k:
                    torch.mm(delta, weight)
            run.optimizer.step()

    return work


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--steps", type=int, default=1000, help="steps of each measurement")
    parser.add_argument("--repeats", type=int, default=5, help="the least of so many counts")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the numbers there")
    parser.add_argument("--no-fail", action="store_true", help="exit with 0 in any case")
    args = parser.parse_args()
    torch.set_num_threads(1)
    rows, failed = [], False
    print(f"{'bar':14}{'what':16}{'ours s':>9}{'other s':>9}{'ratio':>8}{'bar':>6}")
    for bar, what, ours, other in measure(args.steps, args.repeats):
        ratio = ours / other
        failed |= ratio > BARS[bar]
        rows.append({"bar": bar, "what": what, "ours": ours, "other": other, "ratio": ratio})
        print(f"{bar:14}{what:16}{ours:9.3f}{other:9.3f}{ratio:8.2f}{BARS[bar]:6.1f}", flush=True)
    if args.json:
        provenance.write(args.json, rows, "cpu")
    sys.exit(1 if failed and not args.no_fail else 0)


if __name__ == "__main__":
    main()
