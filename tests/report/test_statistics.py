import itertools
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from longtail.report.statistics import band, holm, paired, sign_flip


@given(st.lists(st.integers(-10, 10), min_size=1, max_size=8))
def test_sign_flip_counts_the_patterns_one_by_one(d: list[int]):
    patterns = itertools.product((-1, 1), repeat=len(d))
    sums = [abs(sum(s * x for s, x in zip(p, d, strict=True))) for p in patterns]
    wanted = sum(total >= abs(sum(d)) for total in sums) / len(sums)
    assert sign_flip(np.array(d)) == pytest.approx(wanted)


def test_smallest_p_of_a_few_seeds_is_reached_and_named():
    result = paired(np.array([2.0, 3.1, 4.2]), np.array([1.0, 1.0, 1.0]))
    assert result.p == result.smallest_p == 0.25
    assert (result.n, result.wins) == (3, 3)


def test_interval_and_effect_agree_with_textbook_formulas():
    d = np.array([0.5, 1.0, 1.5, 0.8, 1.2])
    result = paired(d, np.zeros(5))
    half = 2.7764451051977987 * d.std(ddof=1) / math.sqrt(5)
    assert (result.high - result.low) / 2 == pytest.approx(half)
    assert result.effect == pytest.approx((1 - 3 / 15) * d.mean() / d.std(ddof=1))


@pytest.mark.parametrize(
    ("seeds", "quantile"),  # of a table
    [
        (2, 12.706204736),
        (3, 4.302652730),
        (10, 2.262157163),
        (100, 1.984216952),
        (1001, 1.962339081),
    ],
)
def test_interval_of_few_and_of_many_seeds(seeds: int, quantile: float):
    d = np.random.default_rng(0).normal(1, 1, seeds)
    result = paired(d, np.zeros(seeds))
    half = quantile * d.std(ddof=1) / math.sqrt(seeds)
    assert (result.high - result.low) / 2 == pytest.approx(half, rel=1e-8)


def test_wins_follow_the_direction_of_the_score():
    worse, better = np.array([1.0, 2.0]), np.array([0.5, 1.0])
    assert paired(better, worse, higher_is_better=False).wins == 2
    assert paired(better, worse, higher_is_better=True).wins == 0


def test_one_seed_none_and_nan_say_nothing_rather_than_fail():
    assert math.isnan(paired(np.array([]), np.array([])).mean)
    one = paired(np.array([2.0, np.nan]), np.array([1.0, 1.0]))
    assert (one.n, one.mean, one.p) == (1, 1.0, 1.0)
    assert math.isnan(one.low)


def test_many_seeds_are_sampled_reproducibly():
    d = np.random.default_rng(1).normal(0.6, 1, 40)
    assert sign_flip(d) == sign_flip(d) < 0.01
    assert 0 < sign_flip(np.ones(40)) < 1e-4


def test_holm_never_lowers_a_p_and_keeps_their_order():
    assert holm([0.01, 0.04, 0.03]) == pytest.approx([0.03, 0.06, 0.06])
    assert math.isnan(holm([0.01, float("nan")])[1])


def test_band_covers_the_mean_about_as_often_as_it_says():
    draws = np.random.default_rng(0).normal(3.0, 2.0, (5, 4000))
    mean, half = band(draws)
    assert np.mean(np.abs(mean - 3.0) <= half) == pytest.approx(0.95, abs=0.015)
    assert np.isnan(band(draws[:1])[1]).all()
