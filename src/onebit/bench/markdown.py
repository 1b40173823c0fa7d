"""Results as Markdown, for pasting into an issue or a page."""

from __future__ import annotations

from collections.abc import Sequence

from onebit.bench.columns import WIDE, shown
from onebit.bench.results import Result
from onebit.bench.summary import notes, provenance, summaries


def markdown(results: Sequence[Result], ceiling: float | None = None) -> str:
    """A table, the notes, and what it was measured on."""
    rows = summaries(results)
    columns = shown(WIDE, rows)
    head = "| " + " | ".join(column.title for column in columns) + " |"
    line = "| " + " | ".join("---" if column.left else "---:" for column in columns) + " |"
    body = [
        "| " + " | ".join((column.cell(row) or "–").replace("|", "\\|") for column in columns) + " |" for row in rows
    ]
    parts = ["\n".join([head, line, *body])]
    if said := notes(results, ceiling):
        parts.append("\n".join(f"- {note}" for note in said))
    parts.append("\\\n".join(provenance(results)))
    return "\n\n".join(parts)
