"""Medians, percentiles and intervals of small samples."""

from __future__ import annotations

import random
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass

_RESAMPLES = 2000
_SEED = 1  # the same file gives the same interval


@dataclass(frozen=True, slots=True)
class Estimate:
    """A median and the 95 % interval of it. With one value the interval is that value: nothing is known of it."""

    median: float
    low: float
    high: float
    count: int

    def text(self, digits: int) -> str:
        """`51.8 (50.2–53.0)`; the median alone when there is one value."""
        middle = f"{self.median:,.{digits}f}"
        return middle if self.count < 2 else f"{middle} ({self.low:,.{digits}f}–{self.high:,.{digits}f})"


def estimate(values: Sequence[float]) -> Estimate | None:
    """The median with its bootstrap percentile interval; None without values.

    The interval never leaves the range of the values: with three of them it *is* their range.
    """
    if not values:
        return None
    low, high = _interval([values], lambda samples: statistics.median(samples[0]))
    return Estimate(statistics.median(values), low, high, len(values))


def ratio(of: Sequence[float], to: Sequence[float]) -> Estimate | None:
    """median(of) / median(to) with its bootstrap interval, both resampled; None without values or for zeros."""
    if not of or not to or min(to) <= 0:
        return None

    def divided(samples: Sequence[Sequence[float]]) -> float:
        return statistics.median(samples[0]) / statistics.median(samples[1])

    low, high = _interval([of, to], divided)
    return Estimate(divided([of, to]), low, high, min(len(of), len(to)))


def _interval(
    samples: Sequence[Sequence[float]], figure: Callable[[Sequence[Sequence[float]]], float]
) -> tuple[float, float]:
    """The 2.5 and 97.5 percentiles of `figure` over resamples with replacement."""
    if all(len(sample) < 2 for sample in samples):
        only = figure(samples)
        return only, only
    source = random.Random(_SEED)  # noqa: S311 - not a secret
    figures = [figure([source.choices(s, k=len(s)) for s in samples]) for _ in range(_RESAMPLES)]
    return percentile(figures, 0.025), percentile(figures, 0.975)


def percentile(values: Sequence[float], share: float) -> float:
    """The value under which `share` (0 to 1) of the values lie, linear between neighbours. Needs a value."""
    ordered = sorted(values)
    place = share * (len(ordered) - 1)
    below = int(place)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (ordered[above] - ordered[below]) * (place - below)


@dataclass(frozen=True, slots=True)
class Percentiles:
    """p50, p95 and p99 of one run's times, in milliseconds."""

    p50: float
    p95: float
    p99: float


def percentiles_ms(seconds: Sequence[float]) -> Percentiles | None:
    """Of times in seconds; None without any."""
    if not seconds:
        return None
    return Percentiles(*(percentile(seconds, share) * 1000 for share in (0.50, 0.95, 0.99)))
