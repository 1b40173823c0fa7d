"""How a transfer shows its progress: Rich on a terminal, a line now and then where it is piped."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import typer

from onebit.commands import console

if TYPE_CHECKING:
    from onebit.models.report import Report

_LINE_EVERY = 5.0  # seconds between two progress lines when nobody sees a bar


@contextmanager
def progress(*, of_bytes: bool = True) -> Iterator[Report]:
    """A Report that draws a progress bar on stderr, or prints a plain line now and then where it is piped.

    `of_bytes`: what is reported are bytes; else things, which are counted.
    """
    err = console.err()
    if not err.is_terminal:
        yield _PlainReport(size_text if of_bytes else _count_text)
        return
    from rich import progress as bars

    columns = (
        bars.TextColumn("{task.description}", markup=False),
        bars.BarColumn(bar_width=None),
        *((bars.DownloadColumn(), bars.TransferSpeedColumn()) if of_bytes else (bars.MofNCompleteColumn(),)),
        bars.TimeRemainingColumn(compact=True),
    )
    with bars.Progress(*columns, console=err, transient=True) as progress_bars:
        task = progress_bars.add_task("", total=None)
        current = ""

        def report(phase: str, done: int, total: int | None, /) -> None:
            nonlocal current
            if phase != current:
                current = phase
                progress_bars.reset(task, description=phase, total=total, completed=done)
            progress_bars.update(task, completed=done, total=total)

        yield report


class _PlainReport:
    """A line for each phase, and one every few seconds of it."""

    def __init__(self, text: Callable[[int], str]) -> None:
        self._text = text
        self._phase = ""
        self._next_line = 0.0  # on the monotonic clock, seconds

    def __call__(self, phase: str, done: int, total: int | None, /) -> None:
        now = time.monotonic()
        if phase == self._phase and now < self._next_line:
            return
        text = self._text
        of = f" of {text(total)}" if total else ""
        how_far = f": {text(done)}{of}" if done else f" ({text(total)})" if total else ""
        self._phase, self._next_line = phase, now + _LINE_EVERY
        typer.echo(f"{phase}{how_far}", err=True)


def _count_text(count: int) -> str:
    return f"{count:,}"


def size_text(count: int) -> str:
    """A number of bytes as people read it."""
    for unit, step in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if count >= step:
            return f"{count / step:,.1f} {unit}"
    return f"{count} bytes"
