"""How slow work tells how far it is."""

from __future__ import annotations

from typing import Protocol


class Report(Protocol):
    """Called often with what is being done now, the bytes done and the bytes there are (None: unknown)."""

    def __call__(self, phase: str, done: int, total: int | None, /) -> None: ...


def silent(_phase: str, _done: int, _total: int | None, /) -> None:
    """A Report for callers that show nothing."""
