"""How the past second moments v_c of a run are spread: the range that a one-byte code has to cover.

    python bench/tools/past_range.py fsmol --set train.lr=3e-3 --seconds 300 --out range.json
    python bench/tools/past_range.py wsd --set data.miniature=true --set train.lr=1e-3

Trains with Continual Adam and gives, of log2 v_c over all coordinates that some task has moved, the
smallest, some quantiles and the largest, and which share lies beyond the ends of the code.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import time
from pathlib import Path
from typing import Any

import torch

from longtail.optim import codes
from longtail.optim.past import read_past
from longtail.runs.build import build_run
from longtail.runs.config import resolve
from longtail.support.devices import choose_device
from longtail.training import Interrupted, Run, train

QUANTILES = (0.0001, 0.001, 0.01, 0.1, 0.5, 0.9, 0.99, 0.999, 0.9999)


def spread(run: Run) -> dict[str, Any]:
    """The numbers above, from the optimizer's state."""
    states = [state for state in run.optimizer.state.values() if "past_exp_avg_sq" in state]
    pasts = [read_past(state["past_exp_avg_sq"], torch.float32) for state in states]
    values = torch.cat([past.flatten() for past in pasts])
    moved = values[values > 0].log2().sort().values
    low, high = codes.RANGE
    last = len(moved) - 1
    return {
        "tasks": run.position.task,
        "steps": max(float(state["past_steps"]) for state in states),
        "coordinates": len(values),
        "moved": len(moved) / len(values),
        "log2_smallest": moved[0].item(),
        "log2_quantiles": {str(q): moved[round(q * last)].item() for q in QUANTILES},
        "log2_largest": moved[-1].item(),
        "below_the_code": (moved < low).float().mean().item(),
        "above_the_code": (moved > high).float().mean().item(),
    }


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("benchmark")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE")
    parser.add_argument("--seconds", type=float, default=math.inf, help="end after that long")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--out", type=Path, help="JSON file (default: stdout)")
    args = parser.parse_args(argv)
    config = resolve(args.benchmark, flags={"policy": "continual"}, sets=args.set)
    run = build_run(config, choose_device(args.device))
    begin = time.monotonic()

    def look(run: Run) -> None:
        if time.monotonic() - begin > args.seconds:
            raise Interrupted

    with contextlib.suppress(Interrupted):
        train(run, on_step=look)
    text = json.dumps({"config": config.as_dict(), "spread": spread(run)}, indent=1) + "\n"
    if args.out:
        args.out.write_text(text, encoding="utf-8")
    else:
        print(text, end="")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
