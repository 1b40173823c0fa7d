"""A table of figures: for a person at a terminal, plain when piped, or as Markdown."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import typer

from onebit.commands import console


def print_table(
    head: Sequence[str],
    rows: Sequence[Sequence[str]],
    *,
    md: bool = False,
    left: Sequence[int] = (0,),
    colours: Mapping[str, str] | None = None,
) -> None:
    """Print it to stdout. `left`: columns of words; the others are numbers. `colours`: by a cell's text."""
    if md:
        lines = [head, ["---" if i in left else "---:" for i in range(len(head))], *rows]
        typer.echo("\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines))
        typer.echo()
        return
    from rich import box
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    out = console.out() if console.out().is_terminal else Console(width=160, highlight=False)
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1), header_style="bold")
    for i, heading in enumerate(head):
        table.add_column(heading, justify="left" if i in left else "right", overflow="fold")
    for row in rows:
        table.add_row(*(Text(cell, (colours or {}).get(cell, "")) for cell in row))
    out.print(table)
