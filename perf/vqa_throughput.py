"""Do regions read from storage keep the GPU busy? Ratios, all taken in one run.

    python perf/vqa_throughput.py [--no-fail] [--json FILE] [--steps N] [--small] [--folder DIR]

Training steps of Oscar's model (BERT-base size, 36 regions of 2054 numbers, batch 32, bf16 and
captured steps on a GPU) in the library's own loop, with regions memory-mapped on disk, regions on
the device, and the same loop on one batch that lies ready on the device. The bar: from storage at
least 80% of the steps per second of the ready batch. `--small` is a size for a CPU.
"""

import argparse
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import provenance
import torch

from longtail.methods import METHODS
from longtail.tasks import CLASSIFICATION, Segments, TableSequence
from longtail.training import POLICIES, Run, TrainSettings, train
from longtail_bench.encoder.plain import Encoder, EncoderConfig
from longtail_bench.vqa.model import VisionLanguage
from longtail_bench.vqa.prepared import Regions
from longtail_bench.vqa.table import QuestionTable

BAR = 0.8
BATCH, ANSWERS, VOCABULARY = 32, 1853, 3000
WARM = 20  # steps before the clock starts
SIZES = {
    "oscar": {"images": 3000, "regions": 36, "width": 2048, "tokens": 48, "hidden": 768,
              "layers": 12, "heads": 12, "intermediate": 3072},
    "small": {"images": 100, "regions": 36, "width": 2048, "tokens": 48, "hidden": 256,
              "layers": 2, "heads": 4, "intermediate": 512},
}  # fmt: skip


def make_regions(folder: Path, images: int, regions: int, width: int) -> Regions:
    """Random regions, written to disk and mapped; speed does not look at the numbers."""
    rng = np.random.default_rng(0)
    block = rng.standard_normal((50 * regions, width), np.float32).astype(np.float16)
    total = images * regions
    np.save(folder / "features.npy", np.resize(block, (total, width)))
    return Regions(
        [str(i) for i in range(images)],
        np.arange(images + 1) * regions,
        np.load(folder / "features.npy", mmap_mode="r"),
        rng.random((total, 4), np.float32),
        np.zeros(total, np.int32),
        ["thing"],
    )


class ReadyBatch:
    """One batch on the device, whatever rows are asked for."""

    def __init__(self, table: QuestionTable) -> None:
        self.table, self.batch = table, None
        self.host_index = True

    def __len__(self) -> int:
        return len(self.table)

    def __getitem__(self, index):
        if self.batch is None:
            self.batch = self.table[torch.arange(BATCH)]
        return self.batch

    def to(self, device):
        return ReadyBatch(self.table.to(device))


def steps_per_second(table, size: dict[str, int], steps: int, device: str) -> float:
    rows = (WARM + steps) * BATCH
    segments = Segments([0, rows], torch.arange(rows) % len(table))
    sequence = TableSequence(table, segments, Segments([0, 1]), CLASSIFICATION).to(device)
    torch.manual_seed(0)
    shape = {k: size[k] for k in ("hidden", "layers", "heads", "intermediate")}
    encoder = Encoder(EncoderConfig(VOCABULARY, positions=512, dropout=0.1, **shape))
    model = VisionLanguage(encoder, size["width"] + 6, ANSWERS).to(device)
    cuda = device == "cuda"
    settings = TrainSettings(
        batch_size=BATCH, lr=5e-5, autocast="bf16" if cuda else "none", cuda_graph=cuda
    )
    method = METHODS["finetune"](model, CLASSIFICATION, seed=0)
    run = Run(sequence, model, method, [POLICIES["continual"]], settings, 0, evaluate=False)
    clock: list[float] = []

    def on_step(run: Run) -> None:
        if run.position.task == 0 and run.position.step in (WARM, WARM + steps):
            if cuda:
                torch.cuda.synchronize()
            clock.append(time.perf_counter())

    train(run, on_step=on_step)
    return steps / (clock[1] - clock[0])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--no-fail", action="store_true", help="exit 0 whatever was measured")
    parser.add_argument("--json", metavar="FILE", help="write the numbers there")
    parser.add_argument("--steps", type=int, default=300, help="timed steps")
    parser.add_argument("--small", action="store_true", help="a size for a CPU")
    parser.add_argument("--folder", help="where the regions are written (default: a temporary one)")
    options = parser.parse_args()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    name = "small" if options.small else "oscar"
    size = SIZES[name]
    rng = np.random.default_rng(1)
    n = 10 * size["images"]
    found: dict[str, float] = {}
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        regions = make_regions(Path(folder), size["images"], size["regions"], size["width"])

        def table(placement) -> QuestionTable:
            return QuestionTable.of(
                rng.integers(1, VOCABULARY, (n, size["tokens"])),
                np.full(n, 12),
                rng.integers(0, ANSWERS, n),
                rng.integers(0, size["images"], n),
                regions,
                size["regions"],
                placement,
            )

        kinds = {
            "ready batch": lambda: ReadyBatch(table("storage")),
            "storage": lambda: table("storage"),
            "memory": lambda: table("memory"),
        }
        for kind, make in kinds.items():
            found[kind] = steps_per_second(make(), size, options.steps, device)
            print(f"{kind:12} {found[kind]:8.1f} steps/s", flush=True)
    ratio = found["storage"] / found["ready batch"]
    holds = ratio >= BAR
    print(f"storage / ready batch {ratio:.3f}   {'holds' if holds else 'MISSED'} (bar {BAR})")
    if options.json:
        rows = [{"regions": kind, "steps/s": speed} for kind, speed in found.items()]
        settings, what = {"size": name, "steps": options.steps}, "storage / ready batch"
        parts = {"ratios": {what: ratio}, "bars": {what: BAR}, "holds": {what: holds}}
        provenance.write(options.json, rows, device, settings=settings, **parts)
    sys.exit(0 if holds or options.no_fail else 1)


if __name__ == "__main__":
    main()
