"""How long a step of ContinualAdamW takes, against torch.optim.AdamW(fused=True) in the same run.

    python perf/optimizer_step.py                   the CPU, imports, and CUDA where there is one
    python perf/optimizer_step.py --part cuda --json results/perf/optimizer_step_h200.json

Times are medians over rounds in which both optimizers take turns; a ratio is the median of the
rounds' ratios. Ours is measured in its second task, where it has a past to read, except where a
line says "first task". The script exits with 1 if a bar does not hold (`--no-fail`: it says so).
"""

import argparse
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

import provenance
import torch
from torch import Tensor

from longtail import ContinualAdamW

BYTES_PER_PARAMETER = 32  # p, m, v read and written, g and v_c read, float32
Shapes = list[tuple[int, ...]]


def bert(layers: int, hidden: int, vocabulary: int) -> Shapes:
    """The tensors of a BERT encoder with 512 positions and a pooler."""
    h = hidden
    embeddings: Shapes = [(vocabulary, h), (512, h), (2, h), (h,), (h,)]
    attention: Shapes = [(h, h), (h,)] * 4 + [(h,), (h,)]
    feed_forward: Shapes = [(4 * h, h), (4 * h,), (h, 4 * h), (h,), (h,), (h,)]
    return embeddings + (attention + feed_forward) * layers + [(h, h), (h,)]


MLP: Shapes = [(100, 784), (100,), (100, 100), (100,), (10, 100), (10,)]
CUDA_CASES: dict[str, Shapes] = {
    "BERT-base, 199 tensors, 109 M": bert(12, 768, 30522),
    "one tensor of 512 M": [(512 * 2**20,)],
    "80 tensors of 384 x 384": [(384, 384)] * 80,
    "MLP, 6 tensors, 90 k": MLP,
}
CPU_CASES: dict[str, tuple[Shapes, float]] = {
    "MiniLM, 22.7 M": (bert(6, 384, 30522), 1.2),
    "MLP, 6 tensors, 90 k": (MLP, 1.0),
}


class Report:
    """Lines of the table, and the bars among them."""

    def __init__(self) -> None:
        self.rows: list[dict[str, Any]] = []

    def add(
        self,
        name: str,
        *,
        torch_us: float | None = None,
        ours_us: float | None = None,
        value: float,
        unit: str = "x",
        at_most: float | None = None,
        at_least: float | None = None,
    ) -> None:
        holds = None
        if at_most is not None:
            holds = value <= at_most
        if at_least is not None:
            holds = value >= at_least
        row = {
            "name": name,
            "torch_us": torch_us,
            "ours_us": ours_us,
            "value": value,
            "unit": unit,
            "at_most": at_most,
            "at_least": at_least,
            "holds": holds,
        }
        self.rows.append(row)
        print(self.line(row), flush=True)

    @staticmethod
    def line(row: dict[str, Any]) -> str:
        def cell(x: float | None, width: int, digits: int) -> str:
            return f"{x:{width}.{digits}f}" if x is not None else " " * width

        bar = ""
        if row["holds"] is not None:
            sign = "<=" if row["at_most"] is not None else ">="
            limit = row["at_most"] if row["at_most"] is not None else row["at_least"]
            bar = f"{sign} {limit:<5g} {'holds' if row['holds'] else 'DOES NOT HOLD'}"
        times = f"{cell(row['torch_us'], 10, 1)} {cell(row['ours_us'], 10, 1)}"
        return f"{row['name']:<58} {times} {row['value']:9.3f} {row['unit']:<5} {bar}"

    def header(self, title: str) -> None:
        print(f"\n{title:<58} {'torch us':>10} {'ours us':>10} {'value':>9}       bar")

    @property
    def failed(self) -> list[str]:
        return [row["name"] for row in self.rows if row["holds"] is False]


def make(shapes: Shapes, device: str) -> list[Tensor]:
    params = [torch.randn(shape, device=device).requires_grad_() for shape in shapes]
    for p in params:
        p.grad = torch.randn_like(p)
    return params


def synchronize(device: str) -> None:
    if device == "cuda":
        torch.cuda.synchronize()


def seconds(run: Callable[[], object], repeats: int, device: str) -> float:
    synchronize(device)
    start = time.perf_counter()
    for _ in range(repeats):
        run()
    synchronize(device)
    return (time.perf_counter() - start) / repeats


def compare(
    theirs: Callable[[], object], ours: Callable[[], object], device: str, rounds: int = 15
) -> tuple[float, float, float]:
    """Median microseconds of both, and the median of the rounds' ratios."""
    for run in (theirs, ours):
        seconds(run, 3, device)
    once = max(seconds(theirs, 3, device), seconds(ours, 3, device))
    repeats = max(3, min(1000, round(0.04 / once)))
    pairs = []
    for i in range(rounds):
        if i % 2:
            mine = seconds(ours, repeats, device)
            pairs.append((seconds(theirs, repeats, device), mine))
        else:
            other = seconds(theirs, repeats, device)
            pairs.append((other, seconds(ours, repeats, device)))
    ratio = statistics.median(mine / other for other, mine in pairs)
    return (*[statistics.median(side) * 1e6 for side in zip(*pairs, strict=True)], ratio)


def optimizers(
    shapes: Shapes, device: str, **settings: Any
) -> tuple[torch.optim.AdamW, ContinualAdamW]:
    theirs = torch.optim.AdamW(make(shapes, device), fused=True, **settings)
    ours = ContinualAdamW(make(shapes, device), fused=True, **settings)
    return theirs, ours


def state_bytes(optimizer: torch.optim.Optimizer) -> int:
    return sum(
        x.numel() * x.element_size() for state in optimizer.state.values() for x in state.values()
    )


def extra_buffers(theirs: torch.optim.Optimizer, ours: torch.optim.Optimizer) -> float:
    """State beyond AdamW's, as a multiple of the parameters (less a few bytes of counts each)."""
    params = [p for group in ours.param_groups for p in group["params"]]
    extra = state_bytes(ours) - state_bytes(theirs) - 4 * len(params)
    return extra / sum(p.numel() * p.element_size() for p in params)


def boundary_steps(ours: ContinualAdamW, device: str) -> tuple[float, float, float]:
    """A boundary costs this many steps: (step + end_task) - step, over step."""

    def both() -> None:
        ours.step()
        ours.end_task()

    step, with_end, ratio = compare(ours.step, both, device)
    return step, with_end - step, ratio - 1


def cpu_part(report: Report) -> None:
    torch.set_num_threads(1)
    report.header("CPU, one thread, second task")
    for name, (shapes, bar) in CPU_CASES.items():
        theirs, ours = optimizers(shapes, "cpu")
        for optimizer in (theirs, ours):
            optimizer.step()
        ours.end_task()
        other, mine, ratio = compare(theirs.step, ours.step, "cpu")
        report.add(f"step: {name}", torch_us=other, ours_us=mine, value=ratio, at_most=bar)
        step, end, ratio = boundary_steps(ours, "cpu")
        report.add(
            f"end_task against step: {name}", torch_us=step, ours_us=end, value=ratio, at_most=2
        )
        report.add(
            f"state beyond AdamW's: {name}",
            value=extra_buffers(theirs, ours),
            unit="param",
            at_most=1.0,
        )


def import_part(report: Report, rounds: int = 7) -> None:
    report.header("Import")

    def once(what: str) -> float:
        """CPU seconds: other work on the machine does not count."""
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run([sys.executable, "-c", what], check=True)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime

    ours = "from longtail import ContinualAdamW"  # `import longtail` alone is lazy
    once(ours)
    pairs = [(once("import torch"), once(ours)) for _ in range(rounds)]
    extra = statistics.median(mine - other for other, mine in pairs)
    report.add("import longtail beyond import torch", value=extra, unit="s", at_most=0.3)


def copy_bandwidth() -> float:
    """Bytes read and written per second by a copy of 4 GiB on the device."""
    source = torch.randn(2**30, device="cuda")
    target = torch.empty_like(source)
    times = []
    for _ in range(30):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        target.copy_(source)
        end.record()
        end.synchronize()
        times.append(start.elapsed_time(end) / 1e3)
    return 2 * source.numel() * source.element_size() / statistics.median(times)


def captured(optimizer: torch.optim.Optimizer) -> Callable[[], object]:
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(3):
            optimizer.step()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        optimizer.step()
    return graph.replay


def cuda_part(report: Report) -> None:
    report.header("CUDA, second task")
    bandwidth = copy_bandwidth()
    report.add("copy bandwidth", value=bandwidth / 1e12, unit="TB/s")
    for name, shapes in CUDA_CASES.items():
        cuda_case(report, name, shapes, bandwidth)
        torch.cuda.empty_cache()


def cuda_case(report: Report, name: str, shapes: Shapes, bandwidth: float) -> None:
    count = sum(torch.Size(shape).numel() for shape in shapes)
    theirs, ours = optimizers(shapes, "cuda")
    for optimizer in (theirs, ours):
        optimizer.step()
    other, mine, ratio = compare(theirs.step, ours.step, "cuda")
    report.add(f"step, first task: {name}", torch_us=other, ours_us=mine, value=ratio)
    ours.end_task()
    other, mine, ratio = compare(theirs.step, ours.step, "cuda")
    report.add(f"step: {name}", torch_us=other, ours_us=mine, value=ratio, at_most=1.0)
    if count > 1e8:
        report.add(
            f"share of copy bandwidth: {name}",
            value=BYTES_PER_PARAMETER * count / (mine / 1e6) / bandwidth,
            unit="",
            at_least=0.85,
        )
    if count < 1e8:
        new_addresses(report, name, theirs, ours)
    step, end, ratio = boundary_steps(ours, "cuda")
    report.add(f"end_task against step: {name}", torch_us=step, ours_us=end, value=ratio, at_most=2)
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    ours.step()
    torch.cuda.synchronize()
    report.add(
        f"memory taken during a step: {name}",
        value=torch.cuda.max_memory_allocated() - before,
        unit="bytes",
        at_most=0,
    )
    report.add(
        f"state beyond AdamW's: {name}",
        value=extra_buffers(theirs, ours),
        unit="param",
        at_most=1.0,
    )
    del theirs, ours, optimizer
    theirs, ours = optimizers(shapes, "cuda", capturable=True)
    ours.step()
    ours.end_task()
    other, mine, ratio = compare(captured(theirs), captured(ours), "cuda")
    report.add(
        f"step in a CUDA graph: {name}", torch_us=other, ours_us=mine, value=ratio, at_most=1.0
    )


def new_addresses(
    report: Report, name: str, theirs: torch.optim.Optimizer, ours: torch.optim.Optimizer
) -> None:
    """Gradients that are somewhere else at every step, beyond what any table remembers."""
    sets = [[torch.randn_like(p) for p in ours.param_groups[0]["params"]] for _ in range(20)]
    at = 0

    def move(optimizer: torch.optim.Optimizer) -> None:
        nonlocal at
        at += 1
        params = optimizer.param_groups[0]["params"]
        for p, grad in zip(params, sets[at % len(sets)], strict=True):
            p.grad = grad
        optimizer.step()

    other, mine, ratio = compare(lambda: move(theirs), lambda: move(ours), "cuda")
    report.add(f"step, new gradients assigned: {name}", torch_us=other, ours_us=mine, value=ratio)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--part", choices=("cpu", "cuda", "import"), action="append")
    parser.add_argument("--json", metavar="FILE", help="write the numbers and where they are from")
    parser.add_argument("--no-fail", action="store_true", help="exit with 0 whatever the bars say")
    arguments = parser.parse_args()
    available = ["cuda", "cpu", "import"] if torch.cuda.is_available() else ["cpu", "import"]
    report = Report()
    torch.manual_seed(0)
    parts = {"cuda": cuda_part, "cpu": cpu_part, "import": import_part}
    for part in arguments.part or available:
        parts[part](report)
    if arguments.json:
        device = "cuda" if "cuda" in (arguments.part or available) else "cpu"
        provenance.write(arguments.json, report.rows, device)
    failed = report.failed
    print(f"\n{len(failed)} bars do not hold" + "".join(f"\n  {name}" for name in failed))
    return 1 if failed and not arguments.no_fail else 0


if __name__ == "__main__":
    sys.exit(main())
