"""The two consoles: answers go to stdout, everything else (progress, notes, errors) to stderr."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console


@cache
def out() -> Console:
    """stdout: what a user may pipe on."""
    from rich.console import Console

    return Console(highlight=False)


@cache
def err() -> Console:
    """stderr: progress, notes and errors."""
    from rich.console import Console

    return Console(stderr=True, highlight=False)
