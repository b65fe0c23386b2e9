"""Kill runs at random moments, go on with them, and compare every byte with a run left alone.

    python tests/fuzz/kill_soak.py --kills 1000 --seed 0 --out results/soak/kills.json

Each round takes a method and a policy in turn, trains it once undisturbed, then starts the same
command again and again and ends it with SIGKILL after a random time, until it comes to its end.
"""

from __future__ import annotations

import argparse
import json
import random
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from longtail.runs.files import RunFiles
from longtail.runs.integrity import check_folder
from longtail.support.machine import now, versions

METHODS = ("finetune", "ewc", "ewcpp", "reservoir", "derpp", "agem", "multitask")
COMPARED = (RunFiles.SCORES, RunFiles.RESULT, RunFiles.WEIGHTS, RunFiles.TASKS)
SMALL = ["--tasks", "60", "--zero-shot", "2", "--features", "6", "--hidden", "8", "--cap", "60"]


def command(method: str, out: Path) -> list[str]:
    start = [sys.executable, "-m", "longtail", "run", "toy", "--method", method, *SMALL]
    return [*start, "--out", str(out), "--device", "cpu", "--snapshot-minutes", "0", "--quiet"]


def killed_after(arguments: list[str], seconds: float) -> bool:
    """Whether it had to be killed; an end with another code than 0 is an error of ours."""
    with subprocess.Popen(arguments, stderr=subprocess.PIPE, text=True) as process:
        try:
            _, said = process.communicate(timeout=seconds)
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGKILL)
            process.communicate()
            return True
        if process.returncode != 0:
            raise RuntimeError(f"exit code {process.returncode}: {said}")
    return False


def soak(kills: int, seed: int) -> dict[str, object]:
    draw, done, rounds, differing = random.Random(seed), 0, 0, []
    while done < kills:
        method = METHODS[rounds % len(METHODS)]
        rounds += 1
        with tempfile.TemporaryDirectory() as work:
            whole, pieces = Path(work) / "whole", Path(work) / "pieces"
            began = time.monotonic()
            killed_after(command(method, whole), 600)
            most = time.monotonic() - began
            while killed_after(command(method, pieces), draw.uniform(0.3, 1.1) * most):
                done += 1
            for name in COMPARED:
                if (whole / name).read_bytes() != (pieces / name).read_bytes():
                    differing.append(f"{method}: {name}")
            differing += [f"{method}: {wrong}" for wrong in check_folder(pieces).damaged.values()]
        print(f"{done} kills, {rounds} runs, {len(differing)} differing files", flush=True)
    return {"kills": done, "runs": rounds, "seed": seed, "differing": differing}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, help="write the counts here, with versions and date")
    args = parser.parse_args()
    found = soak(args.kills, args.seed)
    if args.out:
        args.out.parent.mkdir(parents=True, exist_ok=True)
        asked = ["git", "rev-parse", "HEAD"]
        commit = subprocess.run(asked, capture_output=True, text=True).stdout.strip()
        content = {**found, "date": now(), "commit": commit, "versions": versions()}
        args.out.write_text(json.dumps(content, indent=2) + "\n")
    return 1 if found["differing"] else 0


if __name__ == "__main__":
    sys.exit(main())
