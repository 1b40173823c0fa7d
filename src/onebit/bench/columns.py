"""The columns of a table of results, once for the terminal and for Markdown."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from onebit.bench.stats import Percentiles
from onebit.bench.summary import Summary


@dataclass(frozen=True, slots=True)
class Column:
    """A heading and how a row is written under it; an empty cell means: not measured."""

    title: str
    cell: Callable[[Summary], str]
    left: bool = False


def number(value: float | None) -> str:
    """Three significant digits or whole numbers: what a measurement is good for."""
    if value is None:
        return ""
    return f"{value:,.0f}" if value >= 100 else f"{value:.1f}" if value >= 10 else f"{value:.2f}"


def digits_for(value: float) -> int:
    """Decimals that `number` would show."""
    return 0 if value >= 100 else 1 if value >= 10 else 2


def total(row: Summary) -> str:
    """`51.8 (50.2–53.0)`, with a star where not all requests ran at once."""
    if row.total is None:
        return ""
    return row.total.text(digits_for(row.total.median)) + ("*" if row.queued else "")


def _percentiles(of: Percentiles | None) -> str:
    return "" if of is None else " / ".join(number(value) for value in (of.p50, of.p95, of.p99))


def _ends(of: Percentiles | None) -> str:
    return "" if of is None else f"{number(of.p50)} / {number(of.p99)}".replace(",", "")


def _percent(value: float | None, digits: int = 0) -> str:
    return "" if value is None else f"{value * 100:.{digits}f} %"


_SETUP = Column("setup", lambda row: row.setup, left=True)
_REQUESTS = Column("requests", lambda row: f"{row.requests}" if row.requests else "open")
_ACCEPTED = Column("accepted", lambda row: _percent(row.acceptance))
_ERRORS = Column("errors", lambda row: f"{row.errors}" if row.errors else "")

WIDE: list[Column] = [
    _SETUP,
    _REQUESTS,
    Column("total tok/s (95 %)", total),
    Column("× one", lambda row: number(row.to_one)),
    Column("per user", lambda row: number(row.user)),
    Column("first token, ms p50 / p95 / p99", lambda row: _percentiles(row.ttft)),
    Column("between, ms p50 / p95 / p99", lambda row: _percentiles(row.gap)),
    Column("prompt tok/s", lambda row: number(row.prompt)),
    _ACCEPTED,
    Column("tok / CPU-s", lambda row: number(row.per_cpu_second)),
    Column("ours / engine's", lambda row: "" if row.agreement is None else f"{row.agreement:.3f}"),
    _ERRORS,
]
"""Everything: for Markdown, and for terminals that are wide."""

NARROW: list[Column] = [
    _SETUP,
    Column("req.", _REQUESTS.cell),
    Column("tok/s (95 %)", total),
    Column("user", lambda row: number(row.user)),
    Column("first ms\np50 / p99", lambda row: _ends(row.ttft)),
    Column("between ms\np50 / p99", lambda row: _ends(row.gap)),
    Column("acc.", _ACCEPTED.cell),
    Column("err.", _ERRORS.cell),
]
"""What fits into 80 columns."""


def shown(columns: Sequence[Column], rows: Sequence[Summary]) -> list[Column]:
    """Those under which any row has something."""
    return [column for column in columns if any(column.cell(row) for row in rows)]
