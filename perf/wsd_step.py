"""Speed of a WSD-CL step on a GPU: MiniLM-L6, 12 pairs, bf16 with fp32 masters, AdamW.

    python perf/wsd_step.py [--json FILE] [--no-fail] [--quick] [--profile]

Rows, all of one run and on the same made-up pairs (widths 64, 80 and 96 in the proportions of
SemCor's batches), each with batch assembly, forward, backward, optimizer and the schedule's rate:

1. transformers' BertModel, eager, autocast, torch's fused AdamW
2. the same, captured as one CUDA graph per width
3. `SentencePairs` on our encoder, through the training loop's own captured step, Continual AdamW
4. as 3, four runs (two policies, two learning rates) stacked; then 3 and 4 with padding
5. forward and backward alone, captured: `torch.compile`d BertModel, and our encoder
6. as 5 with torch's fused AdamW

Bars: row 3 at least 18 times row 1's steps per second, row 4 at most 2.2 times row 3's time a step.
Rows 5 and 6 ask what our encoder is worth against the best that transformers gives; without
transformers, rows 1, 2, 5 and 6 are skipped.
"""

import argparse
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from importlib.util import find_spec
from typing import Any

import numpy as np
import provenance
import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

from longtail.methods import Finetune
from longtail.names import POLICIES
from longtail.replicas import build_model
from longtail.tasks import Objective, Score, Segments, TableSequence
from longtail.tasks.examples import Packable, Ragged
from longtail.training import Run
from longtail.training.optimizer import set_learning_rate
from longtail.training.settings import TrainSettings
from longtail_bench.encoder.fused import packed_rows
from longtail_bench.encoder.plain import Encoder, EncoderConfig
from longtail_bench.wsd.model import SentencePairs
from longtail_bench.wsd.pairs import Shape

B, SEP, STEPS = 12, 102, 620_632  # pairs a step; [SEP]; steps of the whole sequence, four epochs
WIDTHS, SHARES = (64, 80, 96), (0.21, 0.41, 0.38)
MINILM = EncoderConfig(30522, 384, 6, 12, 1536, 512)
BARS = {"speed-up": 18.0, "four stacked": 2.2}
DEVICE = "cuda"


def pair_loss(outputs: Tensor, targets: Tensor) -> Tensor:
    targets = targets.expand_as(outputs)
    return F.binary_cross_entropy_with_logits(outputs, targets, reduction="none")


RIGHT = Score("accuracy", lambda z, y: ((z > 0) == (y > 0.5)).float(), "percent", True)
PAIRS = Objective(pair_loss, (RIGHT,))


class Pairs:
    """Made-up pairs; consecutive twelves are batches of one width."""

    host_index = full_batches = True
    packs = True  # False: with their padding

    def __init__(self, batches: int, seed: int = 0) -> None:
        rng = np.random.default_rng(seed)
        self.widths = np.repeat(rng.choice(WIDTHS, batches, p=SHARES), B)
        lengths = (self.widths * rng.uniform(0.25, 0.9, len(self.widths))).astype(np.int64)
        lengths[::B] = self.widths[::B]
        ids = rng.integers(1000, 30000, (len(lengths), WIDTHS[-1]))
        ids[:, 0] = 101
        at = np.arange(WIDTHS[-1])
        ends = (at == lengths[:, None] // 2) | (at == lengths[:, None] - 1)
        ids = np.where(at < lengths[:, None], np.where(ends, SEP, ids), 0)
        self.known = lengths
        self.ids, self.lengths = torch.from_numpy(ids), torch.from_numpy(lengths)
        self.labels = torch.from_numpy((rng.random(len(lengths)) < 0.2).astype(np.float32))

    def __len__(self) -> int:
        return len(self.labels)

    def to(self, device: torch.device | str) -> "Pairs":
        self.ids, self.lengths, self.labels = (
            x.to(device) for x in (self.ids, self.lengths, self.labels)
        )
        return self

    def narrow(self, start: int, stop: int) -> "Pairs":
        return self

    def __getitem__(self, index: Tensor) -> tuple[Ragged, Tensor]:
        shape, numbers = self.stage(index)
        return self.assemble(shape, numbers.pin_memory().to(self.ids.device, non_blocking=True))

    def sizes(self, numbers: Tensor) -> np.ndarray:
        return self.known[numbers.numpy()]

    def stage(self, index: Tensor, packed: int = 0) -> tuple[Shape, Tensor]:
        if packed:
            tokens = int(self.sizes(index).sum(-1).max())
            return Shape(WIDTHS[-1], packed_rows(tokens, packed)), index
        return Shape(int(self.widths[index.numpy()].max()), None), index

    def assemble(self, shape: Shape, numbers: Tensor) -> tuple[Ragged, Tensor]:
        ids, lengths = self.ids[numbers][..., : shape.width], self.lengths[numbers]
        return Packable.of(Ragged(ids, lengths), shape.room), self.labels[numbers]


class Theirs(nn.Module):
    """transformers' BertModel with the same classifier."""

    def __init__(self) -> None:
        super().__init__()
        from transformers import BertConfig, BertModel

        config = BertConfig(
            vocab_size=MINILM.vocab,
            hidden_size=MINILM.hidden,
            num_hidden_layers=MINILM.layers,
            num_attention_heads=MINILM.heads,
            intermediate_size=MINILM.intermediate,
            hidden_dropout_prob=0.0,
            attention_probs_dropout_prob=0.0,
        )
        self.encoder = BertModel(config, add_pooling_layer=False)
        self.inner = nn.Linear(MINILM.hidden, MINILM.hidden)
        self.outer = nn.Linear(MINILM.hidden, 1)

    def forward(self, inputs: Ragged) -> Tensor:
        ids, mask = inputs.padded, inputs.mask()
        ends = (ids == SEP).long()
        given = {"token_type_ids": (ends.cumsum(-1) > ends).long()}
        hidden = self.encoder(input_ids=ids, attention_mask=mask, **given).last_hidden_state
        return self.outer(torch.tanh(self.inner(hidden[:, 0])))[:, 0]


def timed(step: Callable[[int], None], steps: int, repeats: int = 3) -> float:
    """Seconds a step: the median of some repeats."""
    found, done = [], 0
    for _ in range(repeats):
        torch.cuda.synchronize()
        start = time.perf_counter()
        for i in range(done, done + steps):
            step(i)
        torch.cuda.synchronize()
        found.append((time.perf_counter() - start) / steps)
        done += steps
    return statistics.median(found)


def their_step(pairs: Pairs, graphs: bool) -> Callable[[int], None]:
    torch.manual_seed(0)
    model = Theirs().to(DEVICE).train()
    lr = torch.tensor(1e-6, device=DEVICE) if graphs else 1e-6
    optimizer = torch.optim.AdamW(model.parameters(), lr, fused=True, capturable=graphs)
    numbers = torch.zeros(B, dtype=torch.long, device=DEVICE)
    captured: dict[Shape, torch.cuda.CUDAGraph] = {}

    def one(shape: Shape) -> None:
        inputs, labels = pairs.assemble(shape, numbers)
        with torch.autocast(DEVICE, torch.bfloat16, cache_enabled=not graphs):
            loss = F.binary_cross_entropy_with_logits(model(inputs).float(), labels)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()

    def step(i: int) -> None:
        rows = torch.arange(i * B, i * B + B) % len(pairs)
        shape, _ = pairs.stage(rows)
        numbers.copy_(rows, non_blocking=True)
        if not graphs:
            for group in optimizer.param_groups:
                group["lr"] = 1e-6 * (1 - i / STEPS)
            one(shape)
            return
        lr.fill_(1e-6 * (1 - i / STEPS))
        if shape not in captured:
            stream = torch.cuda.Stream()
            stream.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(stream):
                for _ in range(3):
                    one(shape)
            torch.cuda.current_stream().wait_stream(stream)
            captured[shape] = torch.cuda.CUDAGraph()
            optimizer.zero_grad(set_to_none=True)
            with torch.cuda.graph(captured[shape]):
                one(shape)
        captured[shape].replay()

    return step


def bare_step(pairs: Pairs, ours: bool, optimise: bool) -> Callable[[int], None]:
    """A step captured per width, of our encoder or of transformers' compiled one.

    Both have the same batches, loss and precision; where they optimise, the same AdamW.
    """
    torch.manual_seed(0)
    net = SentencePairs(Encoder(MINILM), SEP) if ours else Theirs()
    net = net.to(DEVICE).train()
    model: Any = net if ours else torch.compile(net, dynamic=False)
    optimizer = torch.optim.AdamW(net.parameters(), 1e-6, fused=True, capturable=True)

    def one(shape: Shape, numbers: Tensor) -> None:
        inputs, labels = pairs.assemble(shape, numbers)
        with torch.autocast(DEVICE, torch.bfloat16, cache_enabled=False):
            loss = F.binary_cross_entropy_with_logits(model(inputs).float(), labels)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        if optimise:
            optimizer.step()

    return replayed(pairs, one, lambda: optimizer.zero_grad(set_to_none=True))


def replayed(
    pairs: Pairs, one: Callable[[Shape, Tensor], None], forget: Callable[[], None]
) -> Callable[[int], None]:
    """The step `one` as a CUDA graph per width; `forget` drops the warm-up's gradients."""
    numbers = torch.zeros(B, dtype=torch.long, device=DEVICE)
    captured: dict[Shape, torch.cuda.CUDAGraph] = {}

    def step(i: int) -> None:
        rows = torch.arange(i * B, i * B + B) % len(pairs)
        shape, _ = pairs.stage(rows)
        numbers.copy_(rows, non_blocking=True)
        if shape not in captured:
            stream = torch.cuda.Stream()
            stream.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(stream):
                for _ in range(3):
                    one(shape, numbers)
            torch.cuda.current_stream().wait_stream(stream)
            forget()
            captured[shape] = torch.cuda.CUDAGraph()
            with torch.cuda.graph(captured[shape]):
                one(shape, numbers)
        captured[shape].replay()

    return step


def our_run(pairs: Pairs, stacked: bool) -> Run:
    def make(_seed: int) -> SentencePairs:
        return SentencePairs(Encoder(MINILM), SEP)

    kinds = [POLICIES["continual"]]
    if stacked:
        kinds = [replace(POLICIES[k], lr_scale=s) for k in ("continual", "new") for s in (1.0, 0.1)]
    seed = torch.zeros(1, dtype=torch.long, device=DEVICE) if stacked else 0
    model = build_model(make, [0] if stacked else 0, len(kinds)).to(DEVICE)
    segments = Segments([0, len(pairs)])
    sequence = TableSequence(pairs, segments, segments, PAIRS)
    settings = TrainSettings(
        batch_size=B, lr=1e-6, weight_decay=0.01, schedule="linear", warmup=0.1, autocast="bf16",
        cuda_graph=True,
    )  # fmt: skip
    method = Finetune(model, PAIRS, seed=seed)
    return Run(sequence, model, method, kinds, settings, seed, evaluate=False)


def our_step(run: Run, pairs: Pairs) -> Callable[[int], None]:
    lead = run.seed.shape if isinstance(run.seed, Tensor) else ()

    def step(i: int) -> None:
        set_learning_rate(run.optimizer, run.settings, i, run.settings.epochs * STEPS)
        rows = torch.arange(i * B, i * B + B) % len(pairs)
        run.take_step(run, pairs, rows.expand(*lead, B))

    return step


def profile(step: Callable[[int], None]) -> None:
    from torch.profiler import ProfilerActivity
    from torch.profiler import profile as recorded

    with recorded(activities=[ProfilerActivity.CUDA]) as found:
        for i in range(20):
            step(i)
        torch.cuda.synchronize()
    table = found.key_averages().table(sort_by="cuda_time_total", row_limit=40)
    print(table, flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--no-fail", action="store_true", help="exit 0 whatever was measured")
    parser.add_argument("--json", metavar="FILE", help="write the numbers there")
    parser.add_argument("--quick", action="store_true", help="our rows alone, fewer steps")
    parser.add_argument("--profile", action="store_true", help="print kernels by time as well")
    options = parser.parse_args()
    if not torch.cuda.is_available():
        sys.exit("perf/wsd_step.py needs a CUDA device")
    torch.manual_seed(0)
    pairs = Pairs(400).to(DEVICE)
    rows: list[dict[str, float | str]] = []
    parts: dict[str, Any] = {}

    def write(**more: Any) -> None:
        """After every row, so that a run that is cut short leaves what it measured."""
        parts.update(more)
        if options.json:
            provenance.write(options.json, rows, DEVICE, **parts)

    def report(name: str, seconds: float) -> None:
        rows.append({
            "step": name, "ms": 1e3 * seconds, "steps/s": 1 / seconds,
            "full sequence, minutes": STEPS * seconds / 60,
        })  # fmt: skip
        text = [f"{v:.3f}" if isinstance(v, float) else str(v) for v in rows[-1].values()]
        print(" | ".join(text), flush=True)
        write()

    def measure(
        name: str, step: Callable[[int], None], steps: int, run: Run | None = None
    ) -> float:
        begin = time.perf_counter()
        for i in range(160):  # every shape is warm and captured
            step(i)
        torch.cuda.synchronize()
        print(f"    ready after {time.perf_counter() - begin:.1f} s", flush=True)
        if run is not None:
            run.optimizer.end_task()  # from the second task on a step reads the past as well
        seconds = timed(step, steps)
        report(name, seconds)
        if options.profile:
            profile(step)
        return seconds

    steps = 200 if options.quick else 500
    eager = 0.0
    theirs = not options.quick and find_spec("transformers") is not None
    if not theirs:
        print("skipped: rows against transformers (--quick, or not installed)", flush=True)
    if theirs:
        import transformers

        name = f"transformers {transformers.__version__} eager, autocast, torch fused AdamW"
        eager = measure(name, their_step(pairs, graphs=False), 60)
        measure("the same in a CUDA graph", their_step(pairs, graphs=True), 300)
    one_run = our_run(pairs, stacked=False)
    one = measure("one run, captured", our_step(one_run, pairs), steps, one_run)
    four_runs = our_run(pairs, stacked=True)
    four = measure("four runs stacked", our_step(four_runs, pairs), steps, four_runs)
    pairs.packs = False
    padded = [
        measure(f"{name}, with padding", our_step(run, pairs), steps, run)
        for name, run in (("one run", our_run(pairs, False)), ("four runs", our_run(pairs, True)))
    ]
    ratios = {"four stacked": four / one}
    more = {"packed against padded, one run": one / padded[0]}
    more["packed against padded, four runs"] = four / padded[1]
    print(*(f"{name}: {value:.2f}" for name, value in more.items()), sep="\n", flush=True)
    if eager:
        ratios["speed-up"] = eager / one
    write(ratios=ratios | more, bars=BARS)
    holds = {
        name: value <= BARS[name] if name == "four stacked" else value >= BARS[name]
        for name, value in ratios.items()
    }
    for name, value in ratios.items():
        print(f"{name}: {value:.2f}, bar {BARS[name]}: {'holds' if holds[name] else 'MISSED'}")
    write(ratios=ratios | more, holds=holds)
    if theirs:
        encoder: dict[str, float] = {}
        for name, optimise in (("forward and backward", False), ("with AdamW", True)):
            compiled, own = (
                measure(f"{name}, captured: {whose}", bare_step(pairs, ours, optimise), 300)
                for whose, ours in (("transformers compiled", False), ("our encoder", True))
            )
            encoder[name] = compiled / own
            print(f"our encoder, {name}: {encoder[name]:.2f} times compiled transformers")
        named = {f"our encoder against compiled transformers, {k}": v for k, v in encoder.items()}
        write(ratios={**ratios, **more, **named})
    sys.exit(0 if all(holds.values()) or options.no_fail else 1)


if __name__ == "__main__":
    main()
