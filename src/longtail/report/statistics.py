r"""Paired comparison of two policies over seeds: a test for few seeds, an effect size, an interval.

With d_s the difference (with MC minus without) of seed s, both runs of a pair sharing their data:

    p   = share of the 2^n sign patterns e with |mean(e d)| >= |mean(d)|   (sign-flip test)
    g   = J(n-1) * mean(d) / sd(d),  J(m) = 1 - 3 / (4m - 1)               (Hedges' g, paired)
    CI  = mean(d) +- t_{n-1, 0.975} * sd(d) / sqrt(n)

The test is exact up to 16 seeds and sampled above. The smallest p that n seeds can give is 2 / 2^n,
so three seeds can never show p < 0.25: that bound is printed too.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np

from longtail.report.labels import POLICY_LABELS, is_policy

EXACT_UP_TO = 16  # 65,536 sign patterns; above, as many random ones
_NAN = float("nan")
SAMPLES = 1 << EXACT_UP_TO
GROWTH = ("slope", "first", "last", "growth")  # how a curve moves with the number of tasks


def rest_of(labels: Mapping[str, Any], left_out: Sequence[str]) -> str:
    """The labels but for some, in one order, as a text: equal for what these alone tell apart."""
    rest = {name: value for name, value in labels.items() if name not in left_out}
    return json.dumps(rest, sort_keys=True, default=str)


def pairs(
    rows: Sequence[Mapping[str, Any]],
    first: str,
    second: str,
    bound: Sequence[str] = ("policy", *POLICY_LABELS),
) -> list[tuple[int, int]]:
    """The places of rows that differ in their policy alone, that of the first policy in front.

    Args:
        rows: labels of each.
        first: a policy, or the number of a row; so is the second.
        bound: the labels that follow from a policy.
    """
    partners: dict[str, int] = {}
    for place, labels in enumerate(rows):
        if is_policy(labels, second):
            partners[rest_of(labels, bound)] = place
    both = []
    for place, labels in enumerate(rows):
        partner = partners.get(rest_of(labels, bound))
        if partner is not None and is_policy(labels, first):
            both.append((place, partner))
    return both


@dataclass(frozen=True)
class Paired:
    n: int
    mean: float
    low: float
    high: float
    p: float
    smallest_p: float
    effect: float  # Hedges' g of the paired differences
    wins: int  # seeds in which the first is better


def paired(first: np.ndarray, second: np.ndarray, *, higher_is_better: bool = True) -> Paired:
    """Compares two arrays of one number a seed, in the same order; pairs with NaN are left out."""
    d = np.asarray(first, np.float64) - np.asarray(second, np.float64)
    d = d[np.isfinite(d)]
    n = len(d)
    wins = int((d > 0).sum() if higher_is_better else (d < 0).sum())
    if n == 0:
        return Paired(0, _NAN, _NAN, _NAN, _NAN, _NAN, _NAN, 0)
    mean = float(d.mean())
    if n == 1:
        return Paired(1, mean, _NAN, _NAN, 1.0, 1.0, _NAN, wins)
    sd = float(d.std(ddof=1))
    half = _t_quantile(n - 1) * sd / n**0.5
    # With no spread at all the effect size would be infinite: there is none to give.
    effect = (1 - 3 / (4 * (n - 1) - 1)) * mean / sd if sd > 1e-9 * abs(mean) and n > 2 else _NAN
    p = sign_flip(d)
    smallest = 2 / 2.0**n if n <= EXACT_UP_TO else 1 / (SAMPLES + 1)
    return Paired(n, mean, mean - half, mean + half, p, smallest, effect, wins)


def sign_flip(d: np.ndarray) -> float:
    """Two-sided p of the hypothesis that differences are symmetric around zero."""
    n, observed = len(d), abs(d.mean())
    if n <= EXACT_UP_TO:
        signs = (np.arange(1 << n)[:, None] >> np.arange(n) & 1) * 2.0 - 1
        extreme = np.abs(signs @ d / n) >= observed * (1 - 1e-12)
        return float(extreme.mean())
    rng = np.random.default_rng(0)
    extreme = 1  # the observed pattern counts as one of the sampled ones, so p is never 0
    for _ in range(SAMPLES // 1024):
        signs = rng.integers(0, 2, (1024, n)) * 2.0 - 1
        extreme += int((np.abs(signs @ d / n) >= observed * (1 - 1e-12)).sum())
    return extreme / (SAMPLES + 1)


def holm(p_values: list[float]) -> list[float]:
    """p-values corrected for asking several questions at once (Holm's step-down)."""
    order = np.argsort(p_values)
    adjusted, running = [float("nan")] * len(p_values), 0.0
    for rank, i in enumerate(order):
        if np.isfinite(p_values[i]):
            running = max(running, min(1.0, p_values[i] * (len(p_values) - rank)))
            adjusted[i] = running
    return adjusted


def band(values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Mean and half width of the 95% interval over the first axis (NaN for a single row)."""
    n = np.isfinite(values).sum(0)
    with np.errstate(invalid="ignore", divide="ignore"):
        mean = np.nansum(values, 0) / n
        sd = np.sqrt(np.nansum((values - mean) ** 2, 0) / (n - 1))
        half = np.array([_t_quantile(int(k) - 1) if k > 1 else np.nan for k in n.ravel()])
        return mean, half.reshape(n.shape) * sd / np.sqrt(n)


@cache
def _t_quantile(degrees: int) -> float:
    """t with P(|T| <= t) = 0.95.

    With T = sqrt(degrees) tan(angle) the density of the angle is that of cos(angle)^(degrees - 1),
    an integral over a smooth function whose whole is known; so nobody has to install SciPy.
    """
    nodes, weights = np.polynomial.legendre.leggauss(100)
    half = math.lgamma(degrees / 2) - math.lgamma((degrees + 1) / 2)
    wanted = 0.95 * math.sqrt(math.pi) / 2 * math.exp(half)
    low, high = 0.0, math.pi / 2
    for _ in range(60):
        middle = (low + high) / 2
        angles = middle / 2 * (1 + nodes)
        found = middle / 2 * float(weights @ np.cos(angles) ** (degrees - 1))
        low, high = (middle, high) if found < wanted else (low, middle)
    return math.sqrt(degrees) * math.tan(low)


def growth(after: np.ndarray, curves: np.ndarray) -> dict[str, np.ndarray]:
    """How curves [n, E] move with the number of tasks [E]: four linear functions of each.

    `slope` is per 100 tasks, `first` and `last` are means over a quarter of the points, `growth`
    is the second less the first.
    """
    x = after - after.mean()
    quarter = max(1, len(after) // 4)
    first, last = curves[:, :quarter].mean(1), curves[:, -quarter:].mean(1)
    square = math.fsum(x * x)  # sums that are rounded once are the same on every machine
    slope = np.full(len(curves), _NAN)
    for place, curve in enumerate(curves):
        if np.isfinite(curve).all():
            slope[place] = 100 * math.fsum(curve * x) / square
    return dict(zip(GROWTH, (slope, first, last, last - first), strict=True))
