"""What a person sees of a benchmark: a table that fills, the time left, then the table, a chart and notes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from onebit.bench.columns import NARROW, WIDE, number, shown
from onebit.bench.results import Result
from onebit.bench.summary import notes, provenance, summaries
from onebit.commands import console

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
    from rich.live import Live
    from rich.segment import Segment
    from rich.table import Table

    from onebit.bench.clock import Clock
    from onebit.errors import OnebitError

_WIDE_AT = 132  # columns
_PIPE_WIDTH = 160
_BAR_MAX = 48
_LABELS = 40  # columns beside a bar


class _Frozen:
    """A renderable, rendered once: drawing one of 21 rows takes 17 ms, in which no token could be timed, this 1 ms."""

    def __init__(self, what: RenderableType, target: Console) -> None:
        self._segments: list[Segment] = list(target.render(what))

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        yield from self._segments


class Progress:
    """Shows a sweep while it runs; on a pipe, a line for each row."""

    def __init__(self, known: Sequence[Result] = ()) -> None:
        self._err = console.err()
        self._results = list(known)
        self._doing = ""
        self._live: Live | None = None
        self._table: _Frozen | None = None
        self.clock: Clock | None = None

    @contextmanager
    def shown(self) -> Iterator[None]:
        """The time in which there is something to see."""
        if not self._err.is_terminal:
            yield
            return
        from rich.live import Live

        with Live(console=self._err, auto_refresh=False, transient=True, vertical_overflow="crop") as self._live:
            self._freeze()
            yield
        self._live = None

    def doing(self, what: str) -> None:
        """Something else is done now."""
        self._doing = what
        if self._live is None:
            self._err.print(f"{what} …", markup=False)
        self.tick()

    def measured(self, result: Result) -> None:
        """A row."""
        self._results.append(result)
        total = result.figures.total_tok_s
        if self._live is None:
            said = f"{number(total)} tok/s" if total is not None else result.figures.first_error or "nothing"
            self._err.print(f"  {said}", markup=False)
        self._freeze()
        self.tick()

    def failed(self, setup: str, error: OnebitError) -> None:
        """A setup cannot be measured."""
        from rich.text import Text

        self._err.print(Text.assemble((f"{setup} left out: ", "bold yellow"), error.message))
        if error.hint:
            self._err.print(Text.assemble(("  fix: ", "bold green"), error.hint))

    def tick(self) -> None:
        """Once a second: the time left."""
        if self._live is None:
            return
        from rich.console import Group
        from rich.text import Text

        words = Text("  ")
        if self.clock is not None and self.clock.total:
            done = self.clock.finished / self.clock.total
            words.append("━" * round(done * 24), "green").append("━" * (24 - round(done * 24)), "bright_black")
            left = self.clock.left()
            words.append(f" {self.clock.finished}/{self.clock.total}", "bold")
            words.append(f", {_time(left)} left" if left is not None else "")
            words.append("  ")
        words.append(self._doing, "dim")
        words.truncate(self._err.width, overflow="ellipsis")
        # Above the table: where that is longer than the screen, its end is cut off.
        self._live.update(Group(words, *([self._table] if self._table else [])), refresh=True)

    def _freeze(self) -> None:
        if self._live is not None and self._results:
            self._table = _Frozen(table(self._results, self._err.width), self._err)


def _time(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes}:{rest:02d}" if minutes < 60 else f"{minutes // 60}:{minutes % 60:02d}:{rest:02d}"


def table(results: Sequence[Result], width: int) -> Table:
    """The table of results for so many columns."""
    from rich import box
    from rich.table import Table
    from rich.text import Text

    rows = summaries(results)
    columns = shown(WIDE if width >= _WIDE_AT else NARROW, rows)
    made = Table(box=box.SIMPLE_HEAD, header_style="bold", pad_edge=False, padding=(0, 1, 0, 0))
    for column in columns:
        made.add_column(
            column.title, justify="left" if column.left else "right", no_wrap=not column.left, overflow="fold"
        )
    best: dict[int, tuple[str, float]] = {}
    for row in rows:
        if row.total is not None and row.total.median > best.get(row.requests, ("", 0.0))[1]:
            best[row.requests] = (row.setup, row.total.median)
    several = len({row.setup for row in rows}) > 1
    for i, row in enumerate(rows):
        top = several and best.get(row.requests, ("",))[0] == row.setup
        last = i + 1 < len(rows) and rows[i + 1].setup != row.setup
        made.add_row(
            *(Text(column.cell(row), "bold green" if top and "tok/s (" in column.title else "") for column in columns),
            end_section=last,
        )
    return made


def finish(results: Sequence[Result], ceiling: float | None) -> None:
    """The table and the chart on stdout, the notes on stderr."""
    from rich.text import Text

    out, err = console.out(), console.err()
    if not results:
        return
    if not out.is_terminal:
        from rich.console import Console

        out = Console(width=_PIPE_WIDTH, highlight=False)
    out.print(table(results, out.width))
    chart(results, out)
    for line in provenance(results):
        out.print(Text(line, "dim"), soft_wrap=not out.is_terminal)
    for note in notes(results, ceiling):
        err.print(Text.assemble(("note: ", "yellow"), note))
    if ceiling:
        err.print(Text(f"The load generator reads up to {ceiling:,.0f} chunks/s here.", "dim"))


def chart(results: Sequence[Result], out: Console) -> None:
    """Bars of total tok/s, grouped by the number of requests."""
    from rich.table import Table
    from rich.text import Text

    from onebit.bench.bars import bars

    colours = ("cyan", "magenta", "green", "yellow", "blue", "red")
    rows = summaries(results)
    setups = list(dict.fromkeys(row.setup for row in rows))
    lines = bars(rows, max(10, min(_BAR_MAX, out.width - _LABELS)))
    if len(lines) < 2:
        return
    made = Table.grid(padding=(0, 1))
    made.add_column(justify="right", no_wrap=True)
    made.add_column(no_wrap=True)
    made.add_column(no_wrap=True)
    for requests, setup, bar, value in lines:
        colour = colours[setups.index(setup) % len(colours)]
        made.add_row(Text(requests, "bold"), Text(setup, "dim"), Text.assemble((bar, colour), f" {value}"))
    out.print(Text("total tok/s by requests at once", "bold"))
    out.print(made)
    out.print()
