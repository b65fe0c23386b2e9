"""Algorithm 1 of the paper, line by line, in float64: slow, obvious, and what tests trust.

It shares no code with the optimizer. One object is one parameter. The comments carry the paper's
lines; ``first_moment`` and ``second_moment`` are the rows of its Table 1: "reset" (start again),
"ema" (keep the moving average), "task" (average over tasks). A second moment of "task_seen" is
ours: line 11 only where an earlier task has moved the weight.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]


@dataclass
class Reference:
    """One parameter under Continual Adam, or Continual AdamW with ``decoupled=True``."""

    theta: Array
    lr: float = 1e-3
    beta1: float = 0.9
    beta2: float = 0.999
    beta3: float = 0.9
    eps: float = 1e-8
    weight_decay: float = 0.0
    decoupled: bool = False
    maximize: bool = False
    first_moment: str = "reset"
    second_moment: str = "task"

    def __post_init__(self) -> None:
        self.theta = np.array(self.theta, dtype=np.float64)
        self.t = 0  # line 1
        self.c = 0
        self.m = np.zeros_like(self.theta)
        self.v = np.zeros_like(self.theta)
        self.m_c = np.zeros_like(self.theta)
        self.v_c = np.zeros_like(self.theta)

    def step(self, gradient: Array) -> None:
        theta, t, c = self.theta, self.t + 1, self.c  # line 5
        g = np.array(gradient, dtype=np.float64)  # line 6
        if self.maximize:
            g = -g
        if not self.decoupled:
            g = g + self.weight_decay * theta
        self.m = self.beta1 * self.m + (1 - self.beta1) * g  # line 7
        self.v = self.beta2 * self.v + (1 - self.beta2) * g**2  # line 8
        m_hat, v_hat = self._corrected(t)  # lines 9 and 10
        m_mixed, v_mixed = m_hat, v_hat
        if self.first_moment == "task":
            m_mixed = (t * m_hat + c * self.m_c) / (t + c)
        if self.second_moment == "task":
            v_mixed = (t * v_hat + c * self.v_c) / (t + c)  # line 11
        if self.second_moment == "task_seen":
            v_mixed = np.where(self.v_c == 0, v_hat, (t * v_hat + c * self.v_c) / (t + c))
        adjusted = (1 - self.beta3**t) * self.lr
        self.theta = theta - adjusted * m_mixed / (np.sqrt(v_mixed) + self.eps)  # line 12
        if self.decoupled:
            self.theta = self.theta - self.lr * self.weight_decay * theta  # torch: times lr
        self.t = t

    def end_task(self) -> None:
        t, c = self.t, self.c
        if t == 0:
            return
        m_hat, v_hat = self._corrected(t)
        if self.first_moment == "task":
            self.m_c = (t * m_hat + c * self.m_c) / (t + c)
        if self.second_moment in ("task", "task_seen"):
            self.v_c = (t * v_hat + c * self.v_c) / (t + c)  # line 14
        self.c = c + t  # line 15
        self.t = 0  # line 3
        if self.first_moment != "ema":
            self.m = np.zeros_like(self.m)
        if self.second_moment != "ema":
            self.v = np.zeros_like(self.v)

    def _corrected(self, t: int) -> tuple[Array, Array]:
        # A kept first moment restarts its bias correction; a kept second moment counts on.
        steps_of_v = t + self.c if self.second_moment == "ema" else t
        return self.m / (1 - self.beta1**t), self.v / (1 - self.beta2**steps_of_v)
