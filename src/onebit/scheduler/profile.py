"""What was measured of two engines that share a card: the total tok/s of every split of the load, T(a, b)."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from types import MappingProxyType


@dataclass(frozen=True, eq=False)  # no slots: the lines below are computed once. Its identity is its hash.
class Grid:
    """T(a, b) in tok/s: `a` requests on the first engine while `b` run on the second.

    Between measured points it is linear, along b first and then along a. What no measured points enclose is
    unknown, not guessed: two engines that compete for a card behave in no way that either shows alone (Vulkan
    alone 36.9 tok/s at 4, ROCm alone 30.2, both at once at one request each 14.3).
    """

    points: Mapping[tuple[int, int], float]

    def __post_init__(self) -> None:
        for (a, b), total in self.points.items():
            if a < 0 or b < 0 or a + b == 0 or not 0 <= total < float("inf"):
                raise ValueError(f"T({a}, {b}) = {total} is not a measurement")
        object.__setattr__(self, "points", MappingProxyType(dict(self.points)))

    @property
    def first_limit(self) -> int:
        """The most requests that were measured on the first engine."""
        return max((a for a, _ in self.points), default=0)

    @property
    def second_limit(self) -> int:
        """The most requests that were measured on the second engine."""
        return max((b for _, b in self.points), default=0)

    @cached_property
    def _alone(self) -> tuple[Mapping[int, float], Mapping[int, float]]:
        first = {a: total for (a, b), total in self.points.items() if b == 0}
        second = {b: total for (a, b), total in self.points.items() if a == 0}
        return first, second

    @cached_property
    def _rows(self) -> Mapping[int, Mapping[int, float]]:
        """For each a ≥ 1, T over b ≥ 1."""
        rows: dict[int, dict[int, float]] = {}
        for (a, b), total in self.points.items():
            if a and b:
                rows.setdefault(a, {})[b] = total
        return rows

    def at(self, first: int, second: int) -> float | None:
        """T(first, second) in tok/s, None where it is unknown."""
        if first <= 0 and second <= 0:
            return 0.0
        if second == 0:
            return line(self._alone[0], first)
        if first == 0:
            return line(self._alone[1], second)
        across = {a: total for a, row in self._rows.items() if (total := line(row, second)) is not None}
        return line(across, first)


def line(points: Mapping[int, float], x: int) -> float | None:
    """The value at `x` on the line through `points`; None outside of them."""
    if x in points:
        return points[x]
    known = sorted(points)
    i = bisect_left(known, x)
    if i in (0, len(known)):
        return None
    low, high = known[i - 1], known[i]
    return points[low] + (points[high] - points[low]) * (x - low) / (high - low)


@dataclass(frozen=True, slots=True)
class ProfileKey:
    """What a profile holds for. Another model, build, device or flag makes other numbers.

    `model` is a fingerprint of the file (`onebit.models.fingerprint`); the engines are described by all that
    changes their speed, except slots (the grid's axes) and the draft length (one grid for each).
    """

    model: str
    first: str
    second: str


@dataclass(frozen=True, slots=True)
class Profile:
    """The measured grids of two engines, by the draft length of the first one (0: it does not draft)."""

    key: ProfileKey
    grids: Mapping[int, Grid]
    lengths: tuple[int, int] | None = None  # tokens of the answers and of the prompts that it was measured with

    def grid(self, draft: int = 0) -> Grid | None:
        """The grid for a draft length, None when that was not measured."""
        return self.grids.get(draft)
