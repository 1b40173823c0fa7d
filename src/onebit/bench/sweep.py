"""A sweep: every setup under every load, several times, interleaved so that a drifting machine hits all alike."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Protocol

from onebit.bench.answer import Answer, Api, Ask, ask
from onebit.bench.arrivals import Arrival
from onebit.bench.clock import Clock
from onebit.bench.load import closed_loop, open_loop
from onebit.bench.machine import CpuTimes, conditions
from onebit.bench.prompts import prompts
from onebit.bench.results import Cell, Result
from onebit.bench.row import Figures, closed, opened
from onebit.bench.target import Running, Setup
from onebit.errors import BenchError, OnebitError

_WARM_TOKENS = 4


@dataclass(frozen=True, slots=True)
class Load:
    """What each run is like. An open loop has `arrivals`, a closed one `requests` at once."""

    requests: tuple[int, ...] = ()
    prompt_tokens: int = 64
    tokens: int = 64
    shared_prefix: int = 0
    answers: int = 1  # of each user in a closed loop
    repeats: int = 3
    api: Api = "completions"
    ignore_eos: bool = True
    silence: float = 120.0
    arrivals: tuple[Arrival, ...] = ()
    origin: str = ""  # of the arrivals: the rate, or the trace's name

    def settings(self) -> dict[str, Any]:
        """What a resumed run must share."""
        found: dict[str, Any] = {
            "prompt_tokens": self.prompt_tokens,
            "tokens": self.tokens,
            "shared_prefix": self.shared_prefix,
            "answers": self.answers,
            "api": self.api,
            "ignore_eos": self.ignore_eos,
        }
        return found | ({"arrivals": self.origin} if self.arrivals else {})

    def runs(self) -> tuple[int, ...]:
        """The closed loop's numbers of requests; one run for an open loop."""
        return (0,) if self.arrivals else self.requests


class Show(Protocol):
    """Is told how a sweep goes."""

    def doing(self, what: str) -> None:
        """Something else is done now: `starting vulkan`, `vulkan, 8 requests`."""

    def measured(self, result: Result) -> None:
        """A row."""

    def failed(self, setup: str, error: OnebitError) -> None:
        """A setup cannot be measured; the others go on."""


@dataclass(slots=True)
class Sweep:
    """A sweep and how far it is."""

    setups: Sequence[Setup]
    load: Load
    measured_on: Mapping[str, Any]
    show: Show
    done: dict[Cell, Result] = field(default_factory=dict)  # from a file that is gone on with
    keep: Callable[[Result], None] = lambda _: None
    dropped: dict[str, OnebitError] = field(default_factory=dict)
    clock: Clock = field(init=False)

    def __post_init__(self) -> None:
        self.clock = Clock([cell for cell in self.cells() if cell not in self.done])

    def cells(self) -> list[Cell]:
        """All that is to be measured, in order.

        Each repeat goes through all setups, every other one backwards, and in each setup the loads likewise: what
        heats up or slows down over time then weighs on none more than on the others.
        """
        load = "open" if self.load.arrivals else "closed"
        cells = []
        for repeat in range(self.load.repeats):
            step = 1 if repeat % 2 == 0 else -1
            for setup in list(self.setups)[::step]:
                cells += [Cell(setup.name, requests, repeat, load) for requests in self.load.runs()[::step]]
        return cells

    async def run(self) -> None:
        """Measure what is not done. Every row goes to `keep` and `show` at once.

        Raises what `keep` raises, and BenchError when no setup gave a single good answer.
        """
        by_name = {setup.name: setup for setup in self.setups}
        todo = [cell for cell in self.cells() if cell not in self.done]
        while todo:
            name, repeat = todo[0].setup, todo[0].repeat
            batch = [cell for cell in todo if (cell.setup, cell.repeat) == (name, repeat)]
            todo = [cell for cell in todo if cell not in batch]
            if name in self.dropped:
                continue
            try:
                await self._measure(by_name[name], batch)
            except _NotKept as error:
                raise error.cause from None
            except OnebitError as error:
                self.dropped[name] = error
                self.clock.drop(name)
                self.show.failed(name, error)
        if self.dropped and not any(r.figures.answers for r in self.done.values()):
            raise next(iter(self.dropped.values()))

    async def _measure(self, setup: Setup, cells: Sequence[Cell]) -> None:
        self.show.doing(f"starting {setup.name}")
        async with setup.run() as running:
            self.show.doing(f"warming up {setup.name}")
            await self._warm_up(setup, running)
            for cell in cells:
                loud = f"{cell.requests} at once" if cell.requests else f"{len(self.load.arrivals)} requests"
                self.show.doing(f"{setup.name}, {loud}, run {cell.repeat + 1} of {self.load.repeats}")
                with self.clock.timing(cell):
                    result = await self._one(setup, running, cell)
                self.done[cell] = result
                try:
                    self.keep(result)
                except OnebitError as error:
                    raise _NotKept(error) from None
                self.show.measured(result)

    async def _warm_up(self, setup: Setup, running: Running) -> None:
        """One short answer that counts for nothing: the first is slow (shaders, page cache), or tells what is wrong."""
        answer = await ask(
            running.endpoint, self._ask(running), next(prompts(self.load.prompt_tokens)), tokens=_WARM_TOKENS
        )
        if not answer.good:
            raise BenchError(f"{setup.name}: {answer.trouble}: {answer.why}")

    async def _one(self, setup: Setup, running: Running, cell: Cell) -> Result:
        load, what = self.load, self._ask(running)
        fresh = prompts(load.prompt_tokens, load.shared_prefix)

        async def once() -> Answer:
            return await ask(running.endpoint, what, next(fresh))

        async def arriving(arrival: Arrival, due: float) -> Answer:
            length = arrival.prompt_tokens
            prompt = next(fresh) if length is None else next(prompts(length, load.shared_prefix))
            return await ask(running.endpoint, what, prompt, tokens=arrival.tokens, sent=due)

        began = datetime.now(UTC)
        before = CpuTimes.now(running.pids)
        figures: Figures
        if load.arrivals:
            figures = opened(await open_loop(arriving, load.arrivals))
        else:
            figures = closed(await closed_loop(once, cell.requests, load.answers))
        meanwhile = {"began": began.isoformat(timespec="seconds"), **conditions(before, CpuTimes.now(running.pids))}
        on = {**self.measured_on, **setup.facts}
        return Result(cell, figures, load.settings(), on, meanwhile)

    def _ask(self, running: Running) -> Ask:
        load = self.load
        return Ask(running.model, load.tokens, load.api, load.ignore_eos, load.silence)


class _NotKept(Exception):
    """A row could not be stored: that ends the sweep, which a setup's failure does not."""

    def __init__(self, cause: OnebitError) -> None:
        super().__init__(cause.message)
        self.cause = cause
