"""How a load is best split between two engines, from what was measured: pure functions over a `Grid`.

`split` says what the load should look like, `pick` what one new request should do. Running requests are never
moved; the split is reached as they end and others come. The caller keeps `Decision.split` and gives it back with
the next request: that is the memory which keeps a load that wavers around a border from flapping.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache

from onebit.scheduler.profile import Grid

HOLD_GAIN = 0.10
"""A request waits beside a free slot only when the others gain more than this share by it."""

MARGIN = 0.03
"""A split that needs requests to change sides must be better by this share: a smaller gain is within what one
measurement of a grid point is off, and the proof on the published table allows as much (0.97)."""


@dataclass(frozen=True, slots=True)
class Split:
    """A share of the load for each engine, and the tok/s that this makes in total."""

    first: int
    second: int
    total: float

    @property
    def load(self) -> int:
        """Requests in both."""
        return self.first + self.second


@dataclass(frozen=True, slots=True)
class Decision:
    """What a new request does. `engine`: 0 the first, 1 the second, None: it waits.

    `split` is what the load moves towards, None where the grid does not know.
    """

    engine: int | None
    split: Split | None


def split(
    grid: Grid,
    load: int,
    *,
    slots: tuple[int, int] | None = None,
    previous: Split | None = None,
    margin: float = MARGIN,
) -> Split | None:
    """The best split of `load` requests, or None when no split of it was measured.

    `slots`: the most that each engine takes (default: as far as was measured). Ties go to the first engine.
    With `previous`, a split to which both engines' shares only grow (or only shrink) stays in favour until another
    is better by `margin`: at 11 requests 47.9 against 47.8 must not send the next one elsewhere.
    """
    best = _best(grid, load, slots)
    if best is None or previous is None:
        return best
    near = max((s for s in _splits(grid, load, slots) if _same_way(previous, s)), key=_total, default=None)
    return near if near is not None and near.total >= best.total * (1 - margin) else best


def pick(
    grid: Grid,
    in_use: tuple[int, int],
    slots: tuple[int, int],
    *,
    waiting: int = 0,
    previous: Split | None = None,
    hold_gain: float = HOLD_GAIN,
    margin: float = MARGIN,
) -> Decision | None:
    """What the next request does while `in_use` run and `waiting` others stand in line behind it.

    It goes to the engine furthest below its share of the best split. It waits where no slot is free, or where
    fewer requests make over `hold_gain` more tok/s than all of them would: with 8 running at 50.9 in total and
    30 for 9, the ninth waits; with 12 there and 51.8 for them on the other engine, nobody does.
    None: the grid does not know this load, and the fixed threshold should decide.
    """
    running = sum(in_use)
    load = min(running + 1 + waiting, sum(slots))
    target = split(grid, load, slots=slots, previous=previous, margin=margin)
    if target is None:
        return None
    free = [used < limit for used, limit in zip(in_use, slots, strict=True)]
    if not any(free):
        return Decision(None, target)
    if running and _held(grid, running, target, slots, hold_gain):
        return Decision(None, target)
    short = (target.first - in_use[0], target.second - in_use[1])
    engine = 1 if short[1] > short[0] else 0
    return Decision(engine if free[engine] else 1 - engine, target)


def _held(grid: Grid, running: int, target: Split, slots: tuple[int, int], gain: float) -> bool:
    """True when as many as run now, or fewer, make over `gain` more than `target` does."""
    fewer = (_best(grid, load, slots) for load in range(1, min(running, target.load - 1) + 1))
    return max((s.total for s in fewer if s is not None), default=0.0) > target.total * (1 + gain)


# Both are asked for every request, and the answer never changes: among 24 + 24 slots a `pick` took 2 ms the first time,
# 0.02 ms after it.
@lru_cache(maxsize=4096)
def _splits(grid: Grid, load: int, slots: tuple[int, int] | None) -> tuple[Split, ...]:
    """The splits of `load` that were measured, the first engine's share descending."""
    first, second = slots or (grid.first_limit, grid.second_limit)
    shares: Iterable[int] = range(min(load, first), max(0, load - second) - 1, -1)
    return tuple(Split(a, load - a, total) for a in shares if (total := grid.at(a, load - a)) is not None)


@lru_cache(maxsize=4096)
def _best(grid: Grid, load: int, slots: tuple[int, int] | None) -> Split | None:
    """The split with the highest total; of equals the one with most on the first engine."""
    return max(_splits(grid, load, slots), key=_total, default=None)


def _total(split: Split) -> float:
    return split.total


def _same_way(previous: Split, now: Split) -> bool:
    """Can `now` be reached from `previous` without anybody changing sides?"""
    return (now.first - previous.first) * (now.second - previous.second) >= 0
