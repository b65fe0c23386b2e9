"""What `save_memory` and `load_memory` cost, against torch.save and torch.load of the same bytes.

    python perf/memory_file.py                          110 M parameters
    python perf/memory_file.py --parameters 1000 --json bench/results/perf/memory_file.json

Each measurement is a process of its own, so that its peak memory is its own; "over" is how far the
peak lies above what the process had before. Both sides write to the same disk and wait until it has
everything, as `save_memory` does, in turns that begin when the disk has nothing left to do; times
are the best of the rounds, and a ratio is that of the bests. The script exits with 1 if a bar does
not hold (`--no-fail`: it says so).
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import provenance
import torch
from torch import nn

from longtail import ContinualAdamW, load_memory, save_memory

AT_MOST = 1.2
SIZES = {None: 4.0, "bfloat16": 2.0, "uint8": 1.0}


class Model(nn.Module):
    """Square layers and an embedding, about as many millions of parameters as asked for."""

    def __init__(self, millions: int) -> None:
        super().__init__()
        width = 768 if millions < 500 else 2048
        self.embed = nn.Embedding(30_000, width)
        layers = max(1, round((millions * 1e6 - self.embed.weight.numel()) / (12 * width**2)))
        shapes = [(4 * width, width), (width, 4 * width), (width, 4 * width)] * layers
        self.layers = nn.ParameterList(nn.Parameter(torch.empty(shape)) for shape in shapes)


def remembering(millions: int) -> tuple[Model, ContinualAdamW]:
    """A model, and an optimizer with a past; nothing else of its state, to leave room for both."""
    with torch.device("meta"):
        model = Model(millions)
    model.to_empty(device="cpu")
    optimizer = ContinualAdamW(model.parameters())
    generator = torch.Generator().manual_seed(0)
    for parameter in model.parameters():
        past = torch.empty_like(parameter).detach()
        optimizer.state[parameter] = {
            "past_exp_avg_sq": past.exponential_(generator=generator).mul_(1e-6),
            "past_steps": torch.tensor(100.0),
        }
    optimizer.param_groups[0]["tasks_seen"].fill_(3)
    return model, optimizer


class Peak:
    """The largest resident memory while it runs, and the least, as this process sees it."""

    def __init__(self) -> None:
        self.page = os.sysconf("SC_PAGE_SIZE")
        self.start = self.now()
        self.peak, self.done = self.start, False
        self.thread = threading.Thread(target=self.watch)

    def now(self) -> int:
        # Anonymous memory alone: pages of files are the kernel's to drop.
        resident, shared = Path("/proc/self/statm").read_text().split()[1:3]
        return (int(resident) - int(shared)) * self.page

    def watch(self) -> None:
        while not self.done:
            self.peak = max(self.peak, self.now())
            time.sleep(0.002)

    def __enter__(self) -> "Peak":
        self.thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.done = True
        self.thread.join()
        self.peak = max(self.peak, self.now())

    @property
    def over(self) -> float:
        return (self.peak - self.start) / 2**20


def measure(what: str, millions: int, folder: Path, dtype: str | None) -> dict[str, float]:
    """One measurement, in a process of its own."""
    ours, theirs = folder / "ours.safetensors", folder / "theirs.pt"
    if what.endswith("save"):
        model, optimizer = remembering(millions)
        tensors = {n: optimizer.state[p]["past_exp_avg_sq"] for n, p in model.named_parameters()}
        with Peak() as peak:
            begun = time.perf_counter()
            if what == "ours save":
                save_memory(optimizer, ours, model, dtype=dtype)
            else:
                with open(theirs, "wb") as file:
                    torch.save(tensors, file)
                    file.flush()
                    os.fsync(file.fileno())
            seconds = time.perf_counter() - begun
        size = (ours if what == "ours save" else theirs).stat().st_size
        count = sum(p.numel() for p in model.parameters())
        return {"seconds": seconds, "over": peak.over, "bytes": size / count}
    with torch.device("meta"):
        model = Model(millions)
    if what == "ours load":
        model.to_empty(device="cpu")  # virtual memory: nobody touches it
    optimizer = ContinualAdamW(model.parameters()) if what == "ours load" else None
    with Peak() as peak:
        begun = time.perf_counter()
        if optimizer is not None:
            load_memory(optimizer, ours, model, quiet=True)
        else:
            kept = torch.load(theirs, weights_only=True)
            assert kept
        seconds = time.perf_counter() - begun
    return {"seconds": seconds, "over": peak.over}


def in_a_process(what: str, millions: int, folder: Path, dtype: str | None) -> dict[str, float]:
    command = [sys.executable, __file__, "--measure", what, "--parameters", str(millions)]
    command += ["--folder", str(folder)] + (["--dtype", dtype] if dtype else [])
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(done.stderr[-2000:])
    return json.loads(done.stdout.splitlines()[-1])


def compare(millions: int, dtype: str | None, rounds: int, folder: Path) -> list[dict[str, Any]]:
    found: dict[str, list[dict[str, float]]] = {}
    for number in range(rounds):
        sides = ("theirs", "ours") if number % 2 else ("ours", "theirs")
        for what in (f"{side} {act}" for act in ("save", "load") for side in sides):
            if what.endswith("save"):
                for old in folder.iterdir():
                    if old.stem == what.partition(" ")[0]:
                        old.unlink()
                os.sync()
            found.setdefault(what, []).append(in_a_process(what, millions, folder, dtype))
    rows = []
    for act in ("save", "load"):
        best = {
            side: min(x["seconds"] for x in found[f"{side} {act}"]) for side in ("ours", "theirs")
        }
        over = {
            side: statistics.median(x["over"] for x in found[f"{side} {act}"])
            for side in ("ours", "theirs")
        }
        # A code or a rounding is work that torch.save does not have: 4 bytes have a bar.
        holds = best["ours"] <= AT_MOST * best["theirs"] if dtype is None else None
        if holds is not None:
            holds = holds and over["ours"] <= AT_MOST * max(over["theirs"], 64.0)
        row: dict[str, Any] = {
            "parameters (M)": millions,
            "dtype": dtype or "float32",
            "what": act,
            "torch s": best["theirs"],
            "ours s": best["ours"],
            "ratio": best["ours"] / best["theirs"],
            "torch over MiB": over["theirs"],
            "ours over MiB": over["ours"],
            "holds": holds,
        }
        if act == "save":
            row["bytes a parameter"] = found["ours save"][0]["bytes"]
            fits = abs(row["bytes a parameter"] - SIZES[dtype]) < 0.01
            row["holds"] = fits if holds is None else holds and fits
        rows.append(row)
        print({k: round(v, 3) if isinstance(v, float) else v for k, v in row.items()}, flush=True)
    return rows


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--parameters", type=int, nargs="+", default=[110], help="in millions")
    parser.add_argument("--dtypes", nargs="+", default=["float32", "bfloat16", "uint8"])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--no-fail", action="store_true")
    parser.add_argument("--measure", help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--dtype", help=argparse.SUPPRESS)
    args = parser.parse_args()
    torch.set_num_threads(1)
    if args.measure:
        found = measure(args.measure, args.parameters[0], args.folder, args.dtype)
        print(json.dumps(found))
        return 0
    rows = []
    for millions in args.parameters:
        for dtype in (None if name == "float32" else name for name in args.dtypes):
            with tempfile.TemporaryDirectory() as folder:
                rows += compare(millions, dtype, args.rounds, Path(folder))
    if args.json:
        provenance.write(args.json, rows, "cpu")
    failed = [row for row in rows if row["holds"] is False]
    for row in failed:
        print(f"DOES NOT HOLD: {row}")
    return 1 if failed and not args.no_fail else 0


if __name__ == "__main__":
    sys.exit(main())
