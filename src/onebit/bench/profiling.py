"""Measure T(a, b) of two engines that share a card, point by point, until it is known or time is up."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Protocol

from onebit.bench.answer import Ask, ask
from onebit.bench.explore import next_point
from onebit.bench.machine import BUSY_CORES, CpuTimes, conditions
from onebit.bench.prompts import prompts
from onebit.bench.steady import total_rate
from onebit.bench.target import Running, engines_running
from onebit.engines.spec import EngineSpec
from onebit.errors import BenchError
from onebit.scheduler.profile import Grid
from onebit.scheduler.split import split

_WARM_TOKENS = 4
_TRIES = 3


@dataclass(frozen=True, slots=True)
class Pair:
    """The two engines of a profile, the first as it drafts."""

    first: EngineSpec
    second: EngineSpec
    run_dir: Path
    start_timeout: float

    @property
    def draft(self) -> int:
        """The first engine's draft length, 0: it does not draft."""
        return self.first.draft.length if self.first.draft else 0

    def with_threads(self, threads: Sequence[int]) -> Pair:
        """The same with so many CPU threads for each."""
        first, second = threads[0], threads[-1]
        return replace(self, first=replace(self.first, threads=first), second=replace(self.second, threads=second))


class ShowPoints(Protocol):
    """Is told how a profile goes."""

    def doing(self, what: str) -> None:
        """Something else is done now."""

    def point(self, point: tuple[int, int], total: float, left: float) -> None:
        """T of a point in tok/s, and the seconds of the budget that are left."""


@dataclass(slots=True)
class Profiling:
    """A profile in the making. `points` may hold what an earlier run measured."""

    pair: Pair
    tokens: int
    prompt_tokens: int
    seconds: float  # of each point
    show: ShowPoints
    points: dict[tuple[int, int], float] = field(default_factory=dict)
    keep: Callable[[dict[tuple[int, int], float]], None] = lambda _: None
    _rounds: dict[int, list[tuple[float, ...]]] = field(default_factory=dict)  # by load; in a round, the sides' totals

    async def run(self, budget: float) -> bool:
        """Measure until the grid is known (True) or `budget` seconds are over. `keep` gets all points after each.

        Raises EngineFailed and BenchError.
        """
        limits = (self.pair.first.slots, self.pair.second.slots)
        began = perf_counter()
        if next_point(self.points, *limits) is None:
            return True
        async with self._engines() as engines:
            while (point := next_point(self.points, *limits)) is not None:
                self.show.doing(f"{point[0]} + {point[1]} requests")
                self.points[point] = await self._total(engines, point)
                self.keep(self.points)
                left = budget - (perf_counter() - began)
                self.show.point(point, self.points[point], max(0.0, left))
                if left <= 0:  # after a point, not before: a run that is called again and again gets on
                    break
        return next_point(self.points, *limits) is None

    async def check(self, loads: Sequence[int], rounds: int) -> None:
        """At each load: each engine alone and the split that the grid says, in turn, `rounds` times; see `checked`."""
        wanted = {load: points for load in loads if (points := self._sides(load))}
        async with self._engines() as engines:
            for number in range(rounds):
                for load, points in wanted.items():
                    # The chosen split is measured for itself, also where it is one of the engines alone.
                    totals: dict[int, float] = {}
                    for side, point in list(enumerate(points))[:: 1 if number % 2 == 0 else -1]:
                        self.show.doing(f"round {number + 1} of {rounds}, {load} requests as {point[0]} + {point[1]}")
                        totals[side] = await self._total(engines, point)
                    self._rounds.setdefault(load, []).append(tuple(totals[side] for side in range(len(points))))

    def checked(self) -> list[Checked]:
        """What `check` has measured by now, whole rounds only."""
        found = []
        for load, rounds in self._rounds.items():
            *alone, chosen = self._sides(load)
            columns = list(zip(*rounds, strict=True))
            found.append(Checked(load, chosen, columns[-1], dict(zip(alone, columns[:-1], strict=True))))
        return found

    def _sides(self, load: int) -> list[tuple[int, int]]:
        """Each engine alone, where the load fits into it, and the chosen split last; none where nothing is known."""
        first, second = self.pair.first.slots, self.pair.second.slots
        best = split(Grid(self.points), load, slots=(first, second))
        alone = [point for point, limit in (((load, 0), first), ((0, load), second)) if load <= limit]
        return [*alone, (best.first, best.second)] if best is not None and alone else []

    @asynccontextmanager
    async def _engines(self) -> AsyncIterator[Sequence[Running]]:
        """Both engines, running and warm."""
        pair = self.pair
        names = f"{pair.first.name} and {pair.second.name}" + (f", drafting {pair.draft}" if pair.draft else "")
        self.show.doing(f"starting {names}")
        async with engines_running([pair.first, pair.second], pair.run_dir, pair.start_timeout) as engines:
            for engine in engines:
                answer = await ask(engine.endpoint, Ask(engine.model, _WARM_TOKENS), next(prompts(self.prompt_tokens)))
                if not answer.good:
                    raise BenchError(f"{names}: {answer.trouble}: {answer.why}")
            yield engines

    async def _total(self, engines: Sequence[Running], point: tuple[int, int]) -> float:
        """T of a point. Measured again while other programs keep the machine busy; the calmest run counts."""
        fresh = prompts(self.prompt_tokens)
        pids = [pid for engine in engines for pid in engine.pids]
        runs: list[tuple[float, float]] = []  # (cores that other programs used, total)
        try:
            while len(runs) < _TRIES and not (runs and runs[-1][0] <= BUSY_CORES):
                before = CpuTimes.now(pids)
                total = await total_rate(engines, point, Ask("", self.tokens), lambda: next(fresh), self.seconds)
                runs.append((conditions(before, CpuTimes.now(pids)).get("other_cores", 0.0), total))
        except BenchError as error:
            raise BenchError(f"{point[0]} + {point[1]} requests: {error.message}") from None
        return min(runs)[1]


@dataclass(frozen=True, slots=True)
class Checked:
    """A load, the split that was chosen for it, and what was measured: tok/s, one a round."""

    load: int
    chosen: tuple[int, int]
    totals: tuple[float, ...]
    alone: dict[tuple[int, int], tuple[float, ...]]

    @property
    def ratios(self) -> tuple[float, ...]:
        """The split to the better single engine, round by round."""
        better = max(self.alone.values(), key=median)
        return tuple(ours / theirs for ours, theirs in zip(self.totals, better, strict=True))
