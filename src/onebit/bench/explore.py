"""Which point of T(a, b) to measure next: a coarse grid, refined where it bends. Pure, so runs can go on."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import pairwise

from onebit.scheduler.profile import line

Points = Mapping[tuple[int, int], float]

BEND = 0.08
"""A point this far from the line through its neighbours (as a share of itself) has the gaps beside it looked into.
Halving a smooth curve's gap quarters its error, so the gaps inside are then known to about 2 %; a smaller number
would chase the noise of single measurements."""

_KINK = 0.15  # a point of an axis that bends this much becomes a line of the grid inside


def next_point(measured: Points, first: int, second: int) -> tuple[int, int] | None:
    """The next (a, b) with a ≤ `first`, b ≤ `second`; None when all that matters is known.

    1. Each engine alone, at 1, 2, 4, 8… and its limit.
    2. Each engine alone, between: the middle of every gap once, then again where what came was not on the line.
       So a dip that the coarse points step over is found (a Vulkan engine falls off at 9 rows: 8 → 16 looks flat, 12
       lies below, then 10, then 9).
    3. Both at once: the product of the coarse points and of the kinks that 2 has found, from the corners inwards, so
       that whenever time runs out what was measured spans as much as it can.
    """
    alone_a = {a: total for (a, b), total in measured.items() if b == 0}
    alone_b = {b: total for (a, b), total in measured.items() if a == 0}
    for a in coarse(first):
        if a not in alone_a:
            return (a, 0)
    for b in coarse(second):
        if b not in alone_b:
            return (0, b)
    # The axis that bends more goes first.
    gap_a, gap_b = worst_gap(alone_a, coarse(first)), worst_gap(alone_b, coarse(second))
    if gap_a and (not gap_b or gap_a[1] >= gap_b[1]):
        return (gap_a[0], 0)
    if gap_b:
        return (0, gap_b[0])
    rows, columns = _lines(alone_a, coarse(first)), _lines(alone_b, coarse(second))
    return next((point for point in _inwards(rows, columns) if point not in measured), None)


def coarse(limit: int) -> list[int]:
    """1, 2, 4, 8… and the limit."""
    points = [1]
    while points[-1] * 2 <= limit:
        points.append(points[-1] * 2)
    return points if points[-1] == limit else [*points, limit]


def worst_gap(points: Mapping[int, float], first_looks: list[int]) -> tuple[int, float] | None:
    """(the middle of the gap most in need of a look, how much); None when all gaps are well known.

    A gap between two of the `first_looks` has never been looked into: it is, whatever its ends say. After that a gap
    is looked into when one of its ends is off the line through its neighbours, or when the total falls across it:
    somewhere in it is a cliff.
    """
    worst: tuple[int, float] | None = None
    known = sorted(points)
    for low, high in pairwise(known):
        if high - low < 2:
            continue
        unseen = low in first_looks and high in first_looks
        fall = 1 - points[high] / points[low] if points[low] > 0 else 0.0
        need = max(bend(points, low), bend(points, high), fall)
        if need < BEND and not unseen:
            continue
        if worst is None or need > worst[1]:
            worst = ((low + high) // 2, need)
    return worst


def bend(points: Mapping[int, float], x: int) -> float:
    """How far the point at `x` is from the line through its neighbours, as a share of itself; 0 at an end."""
    others = {at: total for at, total in points.items() if at != x}
    expected = line(others, x)
    return 0.0 if expected is None or points[x] <= 0 else abs(points[x] - expected) / points[x]


def _lines(axis: Mapping[int, float], coarse_points: list[int]) -> list[int]:
    """The lines of the grid inside: the coarse points and the kinks of this axis."""
    kinks = {x for x in axis if x not in coarse_points and bend(axis, x) > _KINK}
    return sorted(kinks.union(coarse_points))


def _inwards(rows: list[int], columns: list[int]) -> Iterator[tuple[int, int]]:
    """All points, ends of the lines before their middles."""
    order_a, order_b = _ends_first(rows), _ends_first(columns)
    ranked = sorted((max(i, j), i + j, a, b) for i, a in enumerate(order_a) for j, b in enumerate(order_b))
    for _, _, a, b in ranked:
        yield (a, b)


def _ends_first(values: list[int]) -> list[int]:
    """First, last, middle, the middles of the halves…"""
    found = [values[0], values[-1]]
    parts = [(0, len(values) - 1)]
    while parts:
        low, high = parts.pop(0)
        if high - low > 1:
            middle = (low + high) // 2
            found.append(values[middle])
            parts += [(low, middle), (middle, high)]
    return list(dict.fromkeys(found))
