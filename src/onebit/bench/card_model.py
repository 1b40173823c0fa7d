"""Two engines on one card, as a profile knows them, in simulated time: who runs with whom decides how fast each is."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

from onebit.scheduler.profile import Grid

_DONE = 1e-9  # tokens: rounding


@dataclass(eq=False, slots=True)
class _Job:
    """A request on an engine (0 or 1), and the tokens that it still has to make."""

    engine: int
    left: float
    ended: asyncio.Event = field(default_factory=asyncio.Event)


class CardModel:
    """Makes tokens at T(a, b), shared out: between the engines as fast as each is alone, among its requests evenly.

    T knows the sum only; which engine suffers more from the other is not in it. Where T is unknown the engines are
    taken to share the card: the mean of both alone, by their numbers of requests.
    """

    def __init__(self, grid: Grid) -> None:
        self._grid = grid
        self._jobs: set[_Job] = set()
        self._speeds: dict[tuple[int, int], tuple[float, float]] = {}
        self._since = 0.0
        self._timer: asyncio.TimerHandle | None = None

    async def make(self, engine: int, tokens: float) -> None:
        """Return when `tokens` have been made for one more request on `engine`."""
        job = _Job(engine, tokens)
        self._pass_time()
        self._jobs.add(job)
        self._plan()
        try:
            await job.ended.wait()
        finally:
            if job in self._jobs:  # cancelled: the client has left
                self._pass_time()
                self._jobs.discard(job)
                self._plan()

    def speed(self, first: int, second: int) -> tuple[float, float]:
        """Tokens a second of one request on each engine while so many run there; 0 where none does."""
        known = self._speeds.get((first, second))
        if known is None:
            known = self._speeds[first, second] = self._speed(first, second)
        return known

    def _speed(self, first: int, second: int) -> tuple[float, float]:
        alone = self._alone(first, 0), self._alone(0, second)
        weight = alone[0] + alone[1]
        if weight <= 0:
            return (0.0, 0.0)
        total = self._grid.at(first, second)
        if total is None:
            total = (first * alone[0] + second * alone[1]) / (first + second)
        return (
            total * alone[0] / weight / first if first else 0.0,
            total * alone[1] / weight / second if second else 0.0,
        )

    def _alone(self, first: int, second: int) -> float:
        """Of one engine; beyond what was measured, its last point."""
        if not (first or second):
            return 0.0
        limit = self._grid.first_limit if first else self._grid.second_limit
        count = min(first or second, limit)
        return (self._grid.at(count, 0) if first else self._grid.at(0, count)) or 0.0

    def _counts(self) -> tuple[int, int]:
        second = sum(job.engine for job in self._jobs)
        return len(self._jobs) - second, second

    def _pass_time(self) -> None:
        """What has been made since the last change."""
        now = asyncio.get_running_loop().time()
        speeds = self.speed(*self._counts())
        for job in self._jobs:
            job.left -= speeds[job.engine] * (now - self._since)
        self._since = now

    def _plan(self) -> None:
        """Come back when the next one is done."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        for job in [job for job in self._jobs if job.left <= _DONE]:
            self._jobs.discard(job)
            job.ended.set()
        speeds = self.speed(*self._counts())
        waits = [job.left / speeds[job.engine] for job in self._jobs if speeds[job.engine] > 0]
        if waits:
            self._timer = asyncio.get_running_loop().call_later(min(waits), self._again)

    def _again(self) -> None:
        self._timer = None
        self._pass_time()
        nearest = min(self._jobs, key=lambda job: job.left, default=None)
        if nearest is not None and nearest.left < 1e-6:  # floating point must not make it come back for nothing
            nearest.left = 0.0
        self._plan()
