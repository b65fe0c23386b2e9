"""How long a step of ContinualAdamW takes, against torch.optim.AdamW(fused=True) in the same run.

    python perf/optimizer_step.py                   the CPU, imports, and CUDA where there is one
    python perf/optimizer_step.py --part cuda --json bench/results/perf/optimizer_step_h200.json
    python perf/optimizer_step.py --past uint8 --part cuda --part eight_bit --part model

Times are medians over rounds in which both optimizers take turns; a ratio is the median of the
rounds' ratios. Ours is measured in its second task, where it has a past to read, except where a
line says "first task". `--past` is the optimizer's `past_dtype`; each has bars of its own. The part
`eight_bit` measures other people's 8-bit AdamW where it is installed, and `model` a training step
of a billion parameters, whose memory it predicts. The script exits with 1 if a bar does not hold
(`--no-fail`: it says so).
"""

import argparse
import importlib
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import provenance
import torch
from torch import Tensor, nn

from longtail import ContinualAdamW

PAST_BYTES = {"float32": 4, "uint8": 1}
Shapes = list[tuple[int, ...]]


@dataclass(frozen=True)
class Bars:
    """What a step may cost: times against torch's, by case where that is not 1."""

    past: str
    step: dict[str, float]
    captured: dict[str, float]
    cpu: dict[str, float]
    bandwidth: float

    @property
    def moved(self) -> int:
        """Bytes a parameter: p, m, v read and written, g and v_c read."""
        return 28 + PAST_BYTES[self.past]

    @property
    def state(self) -> float:
        """State beyond AdamW's, in float32 parameters."""
        return PAST_BYTES[self.past] / 4


def bert(layers: int, hidden: int, vocabulary: int) -> Shapes:
    """The tensors of a BERT encoder with 512 positions and a pooler."""
    h = hidden
    embeddings: Shapes = [(vocabulary, h), (512, h), (2, h), (h,), (h,)]
    attention: Shapes = [(h, h), (h,)] * 4 + [(h,), (h,)]
    feed_forward: Shapes = [(4 * h, h), (4 * h,), (h, 4 * h), (h,), (h,), (h,)]
    return embeddings + (attention + feed_forward) * layers + [(h, h), (h,)]


BERT, LARGE = "BERT-base, 199 tensors, 109 M", "one tensor of 512 M"
SEVERAL = "80 tensors of 384 x 384"
MINI_LM, SMALL = "MiniLM, 22.7 M", "MLP, 6 tensors, 90 k"
MLP: Shapes = [(100, 784), (100,), (100, 100), (100,), (10, 100), (10,)]
CUDA_CASES: dict[str, Shapes] = {
    BERT: bert(12, 768, 30522),
    LARGE: [(512 * 2**20,)],
    SEVERAL: [(384, 384)] * 80,
    SMALL: MLP,
}
CPU_CASES: dict[str, Shapes] = {MINI_LM: bert(6, 384, 30522), SMALL: MLP}
BARS = {
    "float32": Bars(
        "float32",
        step={BERT: 0.95, LARGE: 0.92, SEVERAL: 0.42, SMALL: 0.44},
        captured={BERT: 0.99, LARGE: 0.94, SEVERAL: 0.68, SMALL: 0.27},
        cpu={MINI_LM: 1.2},
        bandwidth=0.85,
    ),
    "uint8": Bars(
        "uint8",
        step={BERT: 0.88, LARGE: 0.84},
        captured={LARGE: 0.90, BERT: 0.90},
        cpu={MINI_LM: 1.04, SMALL: 0.57},  # what float32 takes
        bandwidth=0.97,
    ),
}
# Modules that have an AdamW8bit, newest names first.
EIGHT_BIT = {
    "bitsandbytes": ("bitsandbytes.optim",),
    "torchao": ("torchao.optim", "torchao.prototype.low_bit_optim"),
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


def make(shapes: Shapes, device: str, dtype: torch.dtype = torch.float32) -> list[Tensor]:
    params = [torch.randn(shape, device=device, dtype=dtype).requires_grad_() for shape in shapes]
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
    shapes: Shapes, device: str, past: str, dtype: torch.dtype = torch.float32, **settings: Any
) -> tuple[torch.optim.AdamW, ContinualAdamW]:
    theirs = torch.optim.AdamW(make(shapes, device, dtype), fused=True, **settings)
    mine = make(shapes, device, dtype)
    return theirs, ContinualAdamW(mine, fused=True, past_dtype=past, **settings)


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


def cpu_part(report: Report, bars: Bars) -> None:
    torch.set_num_threads(1)
    report.header(f"CPU, one thread, second task, past {bars.past}")
    for name, shapes in CPU_CASES.items():
        theirs, ours = optimizers(shapes, "cpu", bars.past)
        for optimizer in (theirs, ours):
            optimizer.step()
        ours.end_task()
        other, mine, ratio = compare(theirs.step, ours.step, "cpu")
        bar = bars.cpu.get(name, 1.0)
        report.add(f"step: {name}", torch_us=other, ours_us=mine, value=ratio, at_most=bar)
        if bars.past != "float32":
            against_float32(report, name, shapes, ours)
        step, end, ratio = boundary_steps(ours, "cpu")
        report.add(
            f"end_task against step: {name}", torch_us=step, ours_us=end, value=ratio, at_most=2
        )
        report.add(
            f"state beyond AdamW's: {name}",
            value=extra_buffers(theirs, ours),
            unit="param",
            at_most=bars.state,
        )


def against_float32(report: Report, name: str, shapes: Shapes, ours: ContinualAdamW) -> None:
    """The same step with v_c in float32, which stands where torch's time does: not to be slower."""
    _, whole = optimizers(shapes, "cpu", "float32")
    whole.step()
    whole.end_task()
    other, mine, ratio = compare(whole.step, ours.step, "cpu", rounds=31)
    report.add(
        f"step against past float32: {name}",
        torch_us=other,
        ours_us=mine,
        value=ratio,
        at_most=1,
    )


def import_part(report: Report, bars: Bars, rounds: int = 7) -> None:
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


def cuda_part(report: Report, bars: Bars) -> None:
    report.header(f"CUDA, second task, past {bars.past}")
    bandwidth = copy_bandwidth()
    report.add("copy bandwidth", value=bandwidth / 1e12, unit="TB/s")
    for name, shapes in CUDA_CASES.items():
        cuda_case(report, name, shapes, bandwidth, bars)
        torch.cuda.empty_cache()
    half_case(report, bandwidth, bars)
    torch.cuda.empty_cache()
    for name in (BERT, SMALL):
        groups_case(report, name, bars)
        torch.cuda.empty_cache()


def cuda_case(report: Report, name: str, shapes: Shapes, bandwidth: float, bars: Bars) -> None:
    count = sum(torch.Size(shape).numel() for shape in shapes)
    theirs, ours = optimizers(shapes, "cuda", bars.past)
    for optimizer in (theirs, ours):
        optimizer.step()
    other, mine, ratio = compare(theirs.step, ours.step, "cuda")
    report.add(f"step, first task: {name}", torch_us=other, ours_us=mine, value=ratio)
    ours.end_task()
    other, mine, ratio = compare(theirs.step, ours.step, "cuda")
    bar = bars.step.get(name, 1.0)
    report.add(f"step: {name}", torch_us=other, ours_us=mine, value=ratio, at_most=bar)
    if count > 1e8:
        report.add(
            f"share of copy bandwidth: {name}",
            value=bars.moved * count / (mine / 1e6) / bandwidth,
            unit="",
            at_least=bars.bandwidth,
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
        at_most=bars.state,
    )
    del theirs, ours, optimizer
    theirs, ours = optimizers(shapes, "cuda", bars.past, capturable=True)
    ours.step()
    ours.end_task()
    other, mine, ratio = compare(captured(theirs), captured(ours), "cuda")
    bar = bars.captured.get(name, 1.0)
    report.add(
        f"step in a CUDA graph: {name}", torch_us=other, ours_us=mine, value=ratio, at_most=bar
    )


def half_case(report: Report, bandwidth: float, bars: Bars) -> None:
    """bfloat16 parameters and gradients; our moments are float32, torch's are bfloat16 too."""
    shapes = CUDA_CASES[BERT]
    count = sum(torch.Size(shape).numel() for shape in shapes)
    theirs, ours = optimizers(shapes, "cuda", bars.past, torch.bfloat16)
    for optimizer in (theirs, ours):
        optimizer.step()
    ours.end_task()
    other, mine, ratio = compare(theirs.step, ours.step, "cuda")
    name = f"bf16 parameters, {BERT}"
    report.add(f"step, torch's state bf16: {name}", torch_us=other, ours_us=mine, value=ratio)
    moved = bars.moved - 6  # p is read and written, g read, with two bytes less each time
    report.add(
        f"share of copy bandwidth: {name}", value=moved * count / (mine / 1e6) / bandwidth, unit=""
    )


def groups_case(report: Report, name: str, bars: Bars) -> None:
    """Vectors without weight decay, as most people train: against one group of all parameters.

    Beside it the same two groups as an optimizer each, which is a launch each.
    """

    def optimizer(*choices: bool) -> ContinualAdamW:
        made = make(CUDA_CASES[name], "cuda")
        groups = []
        for decayed in choices:
            own = [p for p in made if (p.dim() > 1) is decayed or len(choices) == 1]
            groups.append({"params": own, "weight_decay": 0.01 * decayed})
        result = ContinualAdamW(groups, fused=True, past_dtype=bars.past)
        result.step()
        result.end_task()
        return result

    one, two = optimizer(True), optimizer(True, False)
    alone, together, ratio = compare(one.step, two.step, "cuda")
    report.add(
        f"decayed and undecayed against one group (as torch): {name}",
        torch_us=alone,
        ours_us=together,
        value=ratio,
        at_most=1.05,
    )
    apart = optimizer(True, False)
    parts = [
        ContinualAdamW([group], fused=True, past_dtype=bars.past) for group in apart.param_groups
    ]
    for part in parts:
        part.step()
        part.end_task()

    def each() -> None:
        for part in parts:
            part.step()

    other, mine, ratio = compare(each, two.step, "cuda")
    report.add(
        f"one launch for both against one each (as torch): {name}",
        torch_us=other,
        ours_us=mine,
        value=ratio,
    )


def eight_bit_part(report: Report, bars: Bars) -> None:
    """Our step and state against those of 8-bit AdamW elsewhere, on one tensor and on BERT-base."""
    report.header(f"8-bit AdamW elsewhere (as torch), past {bars.past}")
    cases: dict[str, Shapes] = {"one tensor of 128 M": [(128 * 2**20,)], BERT: CUDA_CASES[BERT]}
    for name, shapes in cases.items():
        count = sum(torch.Size(shape).numel() for shape in shapes)
        ours, size = with_state(ContinualAdamW, shapes, fused=True, past_dtype=bars.past)
        ours.end_task()
        report.add(f"state of ContinualAdamW: {name}", value=size / count, unit="B/par")
        for package, kind in eight_bit():
            theirs, size = with_state(kind, shapes)
            other, mine, ratio = compare(theirs.step, ours.step, "cuda")
            report.add(f"step against {package}: {name}", torch_us=other, ours_us=mine, value=ratio)
            report.add(f"state of {package}: {name}", value=size / count, unit="B/par")
            del theirs
            torch.cuda.empty_cache()


def eight_bit() -> Iterator[tuple[str, Any]]:
    """The packages that are installed and their optimizers."""
    for package, modules in EIGHT_BIT.items():
        for module in modules:
            try:
                yield package, importlib.import_module(module).AdamW8bit
                break
            except (ImportError, AttributeError):
                continue
        else:
            print(f"{package} is not installed", flush=True)


def with_state(kind: Any, shapes: Shapes, **settings: Any) -> tuple[Any, int]:
    """An optimizer that has taken a step, and the bytes that its state takes."""
    optimizer = kind(make(shapes, "cuda"), lr=1e-3, **settings)
    before = torch.cuda.memory_allocated()
    optimizer.step()
    torch.cuda.synchronize()
    return optimizer, torch.cuda.memory_allocated() - before


def model_part(report: Report, bars: Bars, layers: int = 20, width: int = 2048) -> None:
    """A training step of a transformer in bfloat16: the memory that it takes, and was to take."""
    report.header(f"A training step of a transformer in bfloat16, past {bars.past}")
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    layer = nn.TransformerEncoderLayer(
        width, width // 128, 4 * width, dropout=0.0, batch_first=True, device="cuda"
    )
    model = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False).bfloat16()
    del layer
    ours = ContinualAdamW(model.parameters(), lr=1e-4, fused=True, past_dtype=bars.past)
    inputs = torch.randn(2, 128, width, device="cuda", dtype=torch.bfloat16)

    def step() -> None:
        ours.zero_grad()
        model(inputs).square().mean().backward()
        ours.step()

    step()
    ours.end_task()
    step()
    torch.cuda.synchronize()
    count = sum(p.numel() for p in model.parameters())
    taken = torch.cuda.memory_allocated() - before - inputs.numel() * inputs.element_size()
    # Parameter and gradient have two bytes, each moment has four.
    predicted = (2 + 2 + 8 + PAST_BYTES[bars.past]) * count
    report.add("parameters", value=count / 1e9, unit="G")
    report.add("memory predicted: weights, gradients, state", value=predicted / 1e9, unit="GB")
    report.add("memory after the step", value=taken / 1e9, unit="GB")
    report.add("measured against predicted", value=taken / predicted, at_most=1.01)
    peak = torch.cuda.max_memory_allocated() - before
    report.add("most memory within the step, activations too", value=peak / 1e9, unit="GB")
    with_adamw = predicted - PAST_BYTES[bars.past] * count
    report.add("the same with AdamW's two moments in float32", value=with_adamw / 1e9, unit="GB")


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
    parts = {
        "cuda": cuda_part,
        "eight_bit": eight_bit_part,
        "model": model_part,
        "cpu": cpu_part,
        "import": import_part,
    }
    parser.add_argument("--part", choices=tuple(parts), action="append")
    parser.add_argument(
        "--past", choices=tuple(BARS), default="float32", help="past_dtype (default: float32)"
    )
    parser.add_argument("--json", metavar="FILE", help="write the numbers and where they are from")
    parser.add_argument("--no-fail", action="store_true", help="exit with 0 whatever the bars say")
    arguments = parser.parse_args()
    available = ["cuda", "cpu", "import"] if torch.cuda.is_available() else ["cpu", "import"]
    report = Report()
    torch.manual_seed(0)
    for part in arguments.part or available:
        parts[part](report, BARS[arguments.past])
    if arguments.json:
        on_gpu = {"cuda", "eight_bit", "model"} & set(arguments.part or available)
        provenance.write(
            arguments.json,
            report.rows,
            "cuda" if on_gpu else "cpu",
            settings={"past_dtype": arguments.past},
        )
    failed = report.failed
    print(f"\n{len(failed)} bars do not hold" + "".join(f"\n  {name}" for name in failed))
    return 1 if failed and not arguments.no_fail else 0


if __name__ == "__main__":
    sys.exit(main())
