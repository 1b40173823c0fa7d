"""From measured rows to the command lines to use: for one person, for many, for a crowd of a known size. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from onebit.bench.summary import Summary

_ENOUGH = 0.95
"""Fewer slots are recommended when they make this share of the most: each costs its KV cache, and each user of a larger
batch gets fewer tokens a second."""


@dataclass(frozen=True, slots=True)
class Advice:
    """A command line, whom it is for, and what was measured with it."""

    who: str
    flags: tuple[str, ...]  # of `onebit serve`
    setup: str
    requests: int
    total: float
    user: float | None


def recommend(rows: Sequence[Summary], flags: Mapping[str, tuple[str, ...]], users: int | None = None) -> list[Advice]:
    """What to use for whom; empty when nothing was measured.

    `flags`: of `onebit serve`, by setup, without the slots. `users`: the size of a crowd that was measured.
    """
    measured = [row for row in rows if row.total is not None and row.requests and row.setup in flags]
    found = []
    if alone := [row for row in measured if row.requests == 1]:
        found.append(_advice("one person", max(alone, key=_total), flags))
    if measured:
        best = max(measured, key=_total)
        same = [row for row in measured if row.setup == best.setup and _total(row) >= _ENOUGH * _total(best)]
        found.append(_advice("many", min(same, key=lambda row: row.requests), flags))
    crowd = [row for row in measured if row.requests == users]
    if users is not None and crowd:
        found.append(_advice(f"{users} at once", max(crowd, key=_total), flags))
    return found


def _total(row: Summary) -> float:
    return row.total.median if row.total is not None else 0.0


def _advice(who: str, row: Summary, flags: Mapping[str, tuple[str, ...]]) -> Advice:
    slots = () if "--adaptive" in flags[row.setup] else ("--parallel", str(row.requests))
    return Advice(who, (*flags[row.setup], *slots), row.setup, row.requests, _total(row), row.user)
