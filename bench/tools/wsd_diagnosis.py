r"""How often Continual AdamW meets a coordinate that no earlier task has moved, and what it does.

    v' = (t v̂ + c v_c) / (t + c)        step ∝ 1 / sqrt(v')

A coordinate without a gradient in earlier tasks (the embedding of a word not seen before) has
v_c = 0, so its step is sqrt((t + c) / t) times that of Adam, which late in the sequence is some
hundreds. At the end of every `--every`-th task this counts, of the coordinates that the task moved,

    fresh           the share with v_c = 0
    multiplier      sqrt(v̂ / v'), how much larger the step is than Adam's: median, 99%, largest
    fresh_update    the share of the squared update m̂² / v' that fresh coordinates have

for the embeddings of words and for all other parameters.

    python bench/tools/wsd_diagnosis.py --set data.cap=10 --set train.lr=1e-5 --out diagnosis.json
    python bench/tools/wsd_diagnosis.py --set data.miniature=true --set train.lr=1e-3 --every 1
"""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from longtail.optim.past import read_past
from longtail.runs.build import build_run
from longtail.runs.config import resolve
from longtail.support.devices import choose_device
from longtail.training import Interrupted, Run, train

SAMPLE = 1 << 20  # coordinates that quantiles are taken from


def examine(run: Run) -> dict[str, dict[str, float]]:
    """The numbers above, from the optimizer's state right before a task's boundary."""
    found: dict[str, list[tuple[Tensor, ...]]] = {"word embeddings": [], "others": []}
    beta1, beta2 = run.settings.betas
    for name, p in run.model.named_parameters():
        state = run.optimizer.state.get(p)
        if not state or "past_exp_avg_sq" not in state:
            continue
        t, c = float(state["step"]), float(state["past_steps"])
        moved = state["exp_avg_sq"] > 0
        v = state["exp_avg_sq"][moved] / (1 - beta2**t)
        past = read_past(state["past_exp_avg_sq"], v.dtype)[moved]
        now = (t * v + c * past) / (t + c)
        update = (state["exp_avg"][moved] / (1 - beta1**t)).square() / now
        kind = "word embeddings" if name.endswith("word_table") else "others"
        found[kind].append((past == 0, (v / now).sqrt(), update))
    return {kind: _describe(parts) for kind, parts in found.items() if parts}


def _describe(parts: list[tuple[Tensor, ...]]) -> dict[str, float]:
    fresh, multiplier, update = (torch.cat(values) for values in zip(*parts, strict=True))
    if not len(fresh):
        return {"moved": 0}
    thin = multiplier[:: max(1, len(multiplier) // SAMPLE)].float()
    return {
        "moved": len(fresh),
        "fresh": fresh.float().mean().item(),
        "multiplier_median": thin.median().item(),
        "multiplier_99": thin.quantile(0.99).item() if len(thin) < 1 << 24 else float("nan"),
        "multiplier_largest": multiplier.max().item(),
        "fresh_update": (update[fresh].sum() / update.sum()).item(),
    }


def diagnose(
    run: Run,
    every: int,
    tell: Callable[[list[dict[str, Any]]], None] | None = None,
    seconds: float = math.inf,
) -> list[dict[str, Any]]:
    """Train and look at the last step of every `every`-th trained task.

    `tell` gets what was found so far, whenever there is more; training ends after `seconds`.
    """
    rows: list[dict[str, Any]] = []
    settings, position = run.settings, run.position
    trained, begin = 0, time.monotonic()

    def look(run: Run) -> None:
        nonlocal trained
        if time.monotonic() - begin > seconds:
            raise Interrupted
        if position.epoch != settings.epochs - 1 or position.step == 0:
            return
        examples = run.sequence.train(position.task)
        assert examples is not None
        if position.step != -(-len(examples) // (settings.batch_size * settings.accumulate)):
            return
        trained += 1
        if trained % every == 0:
            steps = max(float(s.get("past_steps", 0)) for s in run.optimizer.state.values())
            rows.append({"task": position.task, "past_steps": steps, **examine(run)})
            if tell is not None:
                tell(rows)

    with contextlib.suppress(Interrupted):
        train(run, on_step=look)
    return rows


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE")
    parser.add_argument("--every", type=int, default=100, help="look at every so many tasks")
    parser.add_argument("--seconds", type=float, default=math.inf, help="end after that long")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--out", type=Path, help="JSON file (default: stdout)")
    args = parser.parse_args(argv)
    config = resolve("wsd", flags={"policy": "continual"}, sets=args.set)
    run = build_run(config, choose_device(args.device))

    def write(rows: list[dict[str, Any]]) -> None:
        content = {"config": config.as_dict(), "rows": rows}
        args.out.write_text(json.dumps(content, indent=1) + "\n", "utf-8")

    rows = diagnose(run, args.every, write if args.out else None, args.seconds)
    if not args.out:
        print(json.dumps(rows, indent=1))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
