"""A bar chart of total tok/s, made of characters."""

from __future__ import annotations

from collections.abc import Sequence

from onebit.bench.columns import number
from onebit.bench.summary import Summary

_EIGHTHS = " ▏▎▍▌▋▊▉"


def bars(rows: Sequence[Summary], width: int) -> list[tuple[str, str, str, str]]:
    """(requests, setup, bar, number) for each measured row, by number of requests; empty without figures.

    `width`: characters of the longest bar. The requests are written once for each group.
    """
    measured = sorted((row for row in rows if row.total), key=lambda row: row.requests)
    most = max((row.total.median for row in measured if row.total), default=0.0)
    if most <= 0:
        return []
    lines, before = [], -1
    for row in measured:
        value = row.total.median if row.total else 0.0
        label = "" if row.requests == before else str(row.requests or "open")
        lines.append((label, row.setup, _bar(value / most, width), number(value)))
        before = row.requests
    return lines


def _bar(share: float, width: int) -> str:
    eighths = max(1, round(share * width * 8))
    return "█" * (eighths // 8) + (_EIGHTHS[eighths % 8] if eighths % 8 else "")
