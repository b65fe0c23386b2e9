"""Lets a thread that waits for the others give its core away.

PyTorch splits an operation among threads that meet at its end. One that is early spins there, by
GCC's default for milliseconds, so that it sees the others at once. Where another program runs on
the same cores, the thread that it waits for is often one that waits for a core itself: then it
spins away the time in which that thread could have run. Two runs beside each other took up to 29
times as long as one after the other (`bench/results/perf`). With fewer turns they share the cores;
a run that is alone takes a sixth longer, so it is left as it is.

GCC's library reads the variable when torch loads it, and a program that was started by this one
inherits it. So this module does not import torch, and where torch has been imported already it
changes nothing. LLVM's and Intel's libraries have a variable of their own, KMP_BLOCKTIME, and are
left alone.
"""

from __future__ import annotations

import os
import sys

TURNS = "GOMP_SPINCOUNT"
# A user who has set either has decided how threads wait.
DECIDED = (TURNS, "OMP_WAIT_POLICY")
FEW = "1000"  # of 300,000; with 300 a run that is alone took half as long again


def share_cores() -> None:
    """Have threads of this process, and of those it starts, wait for a few turns and then sleep."""
    if "torch" not in sys.modules and not any(name in os.environ for name in DECIDED):
        os.environ[TURNS] = FEW
