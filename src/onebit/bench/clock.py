"""How long a sweep will still take."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from time import perf_counter

from onebit.bench.results import Cell


class Clock:
    """Estimates the time left from the cells that were measured."""

    def __init__(self, todo: Sequence[Cell]) -> None:
        self._todo = list(todo)
        self._took: dict[tuple[str, int], list[float]] = {}
        self.total = len(self._todo)

    @contextmanager
    def timing(self, cell: Cell) -> Iterator[None]:
        """A block in which `cell` is measured."""
        began = perf_counter()
        yield
        self._took.setdefault((cell.setup, cell.requests), []).append(perf_counter() - began)
        self._todo.remove(cell)

    def drop(self, setup: str) -> None:
        """Nothing more is measured of this setup."""
        self._todo = [cell for cell in self._todo if cell.setup != setup]

    @property
    def finished(self) -> int:
        """Cells that are done or dropped."""
        return self.total - len(self._todo)

    def left(self) -> float | None:
        """Seconds that the rest will take, engine starts not counted; None before the first cell."""
        if not self._took:
            return None
        times = {key: sum(values) / len(values) for key, values in self._took.items()}
        mean = sum(times.values()) / len(times)
        return sum(times.get((cell.setup, cell.requests), mean) for cell in self._todo)
