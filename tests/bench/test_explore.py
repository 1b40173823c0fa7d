"""Which point to measure next: dips are found, runs go on where they ended, nothing is asked for twice."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from onebit.bench.explore import coarse, next_point
from onebit.scheduler.profile import Grid, line

Total = Callable[[int, int], float]


def explore(total: Total, first: int, second: int, most: int = 10_000) -> dict[tuple[int, int], float]:
    """Measure until nothing is left to ask, or `most` points."""
    points: dict[tuple[int, int], float] = {}
    while len(points) < most and (point := next_point(points, first, second)) is not None:
        assert point not in points and point != (0, 0)
        assert 0 <= point[0] <= first and 0 <= point[1] <= second
        points[point] = total(*point)
    return points


def cliff(a: int, b: int) -> float:
    """An engine that climbs to 8 rows and falls off at 9, next to one that climbs all the way."""
    vulkan = line({0: 0.0, 1: 11.8, 4: 36.9, 8: 50.9}, a) if a <= 8 else 30 + (a - 9) * 1.8
    rocm = line({0: 0.0, 1: 11.6, 4: 30.2, 8: 35.6, 16: 68.0}, b)
    assert vulkan is not None and rocm is not None
    return 0.6 * (vulkan + rocm) if a and b else vulkan + rocm


def test_the_cliff_at_9_is_found_though_no_coarse_point_shows_it() -> None:
    points = explore(cliff, 16, 16)
    assert {(8, 0), (9, 0)} <= points.keys()
    assert {(9, 1), (9, 16)} <= points.keys(), "a kink of an axis is a line of the grid inside"
    grid = Grid(points)
    for a in range(17):
        known = grid.at(a, 0)
        assert known == pytest.approx(cliff(a, 0), rel=0.08)
    assert len(points) < 60, "of 288"


def test_a_straight_line_needs_few_points() -> None:
    points = explore(lambda a, b: 10.0 * (a + b), 16, 16)
    alone = [a for a, b in points if b == 0]
    assert len(alone) <= 8, "the five coarse ones, and one look into each gap"


def test_when_time_runs_out_what_there_is_spans_all() -> None:
    alone = len([p for p in explore(cliff, 16, 16) if 0 in p])
    grid = Grid(explore(cliff, 16, 16, most=alone + 4))
    assert all(grid.at(a, b) is not None for a in range(1, 17) for b in range(1, 17))


@pytest.mark.parametrize("limit", [1, 2, 3, 5, 24])
def test_coarse_points_end_at_the_limit(limit: int) -> None:
    points = coarse(limit)
    assert points[0] == 1 and points[-1] == limit and points == sorted(set(points))


@settings(max_examples=50)
@given(st.integers(1, 9), st.integers(1, 9), st.integers(0, 2**32), st.integers(1, 40))
def test_it_always_ends_and_goes_on_the_same_way(first: int, second: int, seed: int, stop: int) -> None:
    """Random totals, the worst there are; stopped anywhere, the next point is what it would have been."""

    def noise(a: int, b: int) -> float:
        return 1 + hash((a, b, seed)) % 1000

    points = explore(noise, first, second)
    assert len(points) <= (first + 1) * (second + 1) - 1
    order = list(points)
    part = {point: points[point] for point in order[:stop]}
    assert next_point(part, first, second) == (order[stop] if stop < len(order) else None)
