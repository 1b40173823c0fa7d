"""Medians, intervals, percentiles."""

from __future__ import annotations

import random
import statistics

import pytest
from hypothesis import given
from hypothesis import strategies as st

from onebit.bench.stats import estimate, percentile, percentiles_ms, ratio

samples = st.lists(st.floats(0.001, 1e6), min_size=1, max_size=12)


@given(samples)
def test_the_interval_holds_the_median_and_stays_in_the_range(values: list[float]) -> None:
    found = estimate(values)
    assert found is not None
    assert min(values) <= found.low <= found.median <= found.high <= max(values)
    assert found == estimate(values), "the same values give the same interval"


def test_the_interval_holds_the_true_median_as_often_as_it_says() -> None:
    """Of 200 samples of 15 from a skewed distribution with median ln 2; 95 % are expected, 90 % asked for."""
    source = random.Random(7)
    hits = 0
    for _ in range(200):
        found = estimate([source.expovariate(1.0) for _ in range(15)])
        assert found is not None
        hits += found.low <= 0.6931 <= found.high
    assert hits >= 180


def test_a_ratio_of_samples() -> None:
    found = ratio([20.0, 22.0, 21.0], [10.0, 11.0, 10.5])
    assert found is not None and found.median == 2.0 and 20 / 11 <= found.low < 2 < found.high <= 2.2
    assert ratio([1.0], [0.0]) is None and ratio([], [1.0]) is None


@given(st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=50))
def test_percentiles_agree_with_the_library(values: list[float]) -> None:
    assert percentile(values, 0.5) == pytest.approx(statistics.median(values))
    assert percentile(values, 0) == min(values) and percentile(values, 1) == max(values)
    if len(values) > 1:
        cuts = statistics.quantiles(values, n=100, method="inclusive")
        assert percentile(values, 0.95) == pytest.approx(cuts[94], abs=1e-6)


def test_nothing_gives_nothing() -> None:
    assert estimate([]) is None and percentiles_ms([]) is None
