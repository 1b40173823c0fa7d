"""What a person sees of `onebit bench profile`: where it is, the grid, the choice against each engine alone."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from onebit.bench.profiling import Checked, Pair
    from onebit.scheduler.profile import Grid


class PointsProgress:
    """A status line while it runs, and a plain line for each point on a pipe."""

    def __init__(self) -> None:
        from onebit.commands import console

        self._err = console.err()
        self._status: Any = None
        self._last = ""

    def shown(self) -> Any:
        """The time in which there is something to see."""
        from contextlib import nullcontext

        if not self._err.is_terminal:
            return nullcontext()
        self._status = self._err.status("…", refresh_per_second=2)
        return self._status

    def doing(self, what: str) -> None:
        """Something else is done now."""
        from rich.text import Text

        if self._status is None:
            self._err.print(f"{what} …", markup=False)
        else:
            self._status.update(Text(f"{what} …{self._last}"))

    def point(self, point: tuple[int, int], total: float, left: float) -> None:
        """A point."""
        from onebit.bench.columns import number

        self._last = f"   last: {point[0]} + {point[1]} made {number(total)} tok/s, {left:.0f} s left at most"
        if self._status is None:
            self._err.print(f"  {number(total)} tok/s", markup=False)


def show_grid(grid: Grid, draft: int, pair: Pair) -> None:
    """T(a, b) as a table: rows are the first engine's requests, columns the second's."""
    from rich import box
    from rich.table import Table
    from rich.text import Text

    from onebit.bench.columns import number
    from onebit.commands import console

    out = console.out()
    rows = sorted({a for a, _ in grid.points} | {0})
    columns = sorted({b for _, b in grid.points} | {0})
    drafting = f", which drafts {draft}" if draft else ""
    out.print(
        Text(f"total tok/s: requests on {pair.first.name}{drafting} (down) and {pair.second.name} (across)", "bold")
    )
    most = max(grid.points.values(), default=0.0)
    wide = out.is_terminal and len(columns) * 6 + 4 > out.width
    inner = {b for a, b in grid.points if a} | {0}
    if wide:  # the axis has more points than the grid inside
        columns = [b for b in columns if b in inner]
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1), header_style="bold")
    for heading in ("", *map(str, columns)):
        table.add_column(heading, justify="right", no_wrap=True)
    for a in rows:
        cells = []
        for b in columns:
            total = grid.points.get((a, b))
            cells.append(Text("" if total is None else number(total), "bold green" if total == most else ""))
        table.add_row(Text(str(a), "bold"), *cells)
    out.print(table)


def show_check(rows: Sequence[Checked]) -> None:
    """The choice against the better engine alone, load by load."""
    from rich import box
    from rich.table import Table

    from onebit.bench.columns import number
    from onebit.bench.stats import estimate
    from onebit.commands import console

    if not rows:
        return
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1), header_style="bold")
    for heading in ("requests", "split", "first", "second", "split tok/s", "to the better (95 %)"):
        table.add_column(heading, justify="right", no_wrap=True)
    for row in rows:
        alone = {(a > 0): estimate(totals) for (a, _), totals in row.alone.items()}
        chosen, against = estimate(row.totals), estimate(row.ratios)
        cells = [f"{row.load}", f"{row.chosen[0]} + {row.chosen[1]}"]
        for first in (True, False):
            one = alone.get(first)
            cells.append(number(one.median) if one else "")
        cells += [number(chosen.median) if chosen else "", against.text(2) if against else ""]
        table.add_row(*cells)
    console.out().print(table)
