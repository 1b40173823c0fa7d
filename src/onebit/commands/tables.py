"""Tables without lines, the same on a terminal and in a pipe, of texts that are never read as markup."""

from __future__ import annotations

from typing import TYPE_CHECKING

from onebit.commands import console

if TYPE_CHECKING:
    from rich.table import Table
    from rich.text import Text

_PIPE_WIDTH = 400  # columns: what is piped on must not be wrapped at 80
_RIGHT = frozenset({"SIZE", "RANK", "ALPHA", "SCALE", "DISTANCE", "COSINE", "CHANGED"})  # columns of numbers


def plain_text(text: str, style: str = "") -> Text:
    """Text that is never read as markup, without control characters: names come from files."""
    from rich.text import Text

    return Text("".join(c for c in text if c.isprintable() or c == "\n"), style=style)


def plain_table(*headers: str) -> Table:
    """Columns with these headers; two without any if none are given."""
    from rich.table import Table

    table = Table(box=None, show_header=bool(headers), header_style="bold", pad_edge=False, padding=(0, 2, 0, 0))
    for header in headers or ("", ""):
        table.add_column(header, justify="right" if header in _RIGHT else "left", overflow="fold")
    return table


def print_table(table: Table) -> None:
    """Write it to stdout."""
    out = console.out()
    if not out.is_terminal:
        from rich.console import Console

        out = Console(width=_PIPE_WIDTH, highlight=False)
    out.print(table)
