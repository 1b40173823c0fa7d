"""Brings models into memory and out of it. What happens is reported to the book, which alone decides."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Protocol

import anyio
import anyio.abc

from onebit.engines.state import State
from onebit.engines.supervisor import Engine

Engines = Sequence[Engine]
_UNWIND_S = 5.0  # requests that were stopped let go in 0.05 s; an engine in a long batch is not waited for
_MEASURE_EVERY_S = 30.0  # caches and graphs grow while a model works


class Book(Protocol):
    """Who is told, and who knows the requests."""

    def loaded(self, name: str) -> None:
        """An engine of the model is ready."""

    def measured(self, name: str, held: Mapping[str, int]) -> None:
        """What its processes hold, in bytes by pool."""

    def failed(self, name: str, cause: str) -> None:
        """All its engines were given up."""

    def gone(self, name: str) -> None:
        """Its processes have ended and their memory is free."""

    def stop_running(self, name: str) -> None:
        """End the requests that run on it."""

    async def emptied(self, name: str) -> None:
        """Return when none runs on it."""


class Home:
    """A model's engines, and what its life is waiting for."""

    def __init__(self, engines: Engines) -> None:
        self.engines = engines
        self.leave = anyio.Event()
        self.news = anyio.Event()  # an engine's state has changed, or it is to leave
        self.alive = False

    def tell(self) -> None:
        """Something has happened: wake all who wait for news."""
        self.news.set()
        self.news = anyio.Event()


class Arbiter:
    """One task for the life of each model in memory, from its load to its end."""

    def __init__(
        self,
        measure: Callable[[Engines], Awaitable[Mapping[str, int]]],
        ending: Callable[[Engines], Callable[[], Awaitable[None]]],
        grace: float,
    ) -> None:
        """`measure`: bytes by pool that the engines hold now; pools that cannot be measured are left out.

        `ending`: called before engines end; what it returns waits until their memory is seen to be free. `grace`:
        seconds that requests get to finish when their model must go.
        """
        self.homes: dict[str, Home] = {}
        self.grace = grace
        self._measure = measure
        self._ending = ending
        self._book: Book
        self._group: anyio.abc.TaskGroup

    async def run(self, book: Book, *, task_status: anyio.abc.TaskStatus[None] = anyio.TASK_STATUS_IGNORED) -> None:
        """Live as long as there are models to look after; ends when cancelled, once `stop` has ended them all."""
        self._book = book
        async with anyio.create_task_group() as self._group:
            task_status.started()
            await anyio.sleep_forever()

    def load(self, name: str) -> None:
        """Start the model's engines."""
        home = self.homes[name]
        home.leave = anyio.Event()
        home.alive = True
        self._group.start_soon(self._live, name, home)

    def unload(self, name: str) -> None:
        """Let its requests finish, end its engines."""
        home = self.homes[name]
        home.leave.set()
        home.tell()

    def changed(self, name: str) -> None:
        """An engine of the model has another state."""
        self.homes[name].tell()

    async def stop(self) -> None:
        """End all engines now. Nothing may be loaded afterwards."""
        for home in self.homes.values():
            home.leave.set()
            for engine in home.engines:
                engine.stop()
            home.tell()
        while any(home.alive for home in self.homes.values()):
            await next(home for home in self.homes.values() if home.alive).news.wait()

    async def _live(self, name: str, home: Home) -> None:
        for engine in home.engines:
            engine.load()
        async with anyio.create_task_group() as engines:
            for engine in home.engines:
                engines.start_soon(engine.run)
            await self._until_leave(name, home)
            for engine in home.engines:
                engine.drain()  # one that dies now is not started again
            with anyio.move_on_after(self.grace):
                await self._either(self._book.emptied(name), home)
            self._book.stop_running(name)
            with anyio.move_on_after(_UNWIND_S):
                await self._book.emptied(name)
            see_free = self._ending(home.engines)
            for engine in home.engines:
                engine.stop()
        await self._book.emptied(name)
        await see_free()
        home.alive = False
        self._book.gone(name)
        home.tell()

    async def _until_leave(self, name: str, home: Home) -> None:
        loaded = measured = False
        while not home.leave.is_set():
            news = home.news  # taken first: what is told while it is measured must not be slept through
            states = {engine.state for engine in home.engines}
            if State.READY in states and not loaded:
                loaded = True
                self._book.loaded(name)
            if states == {State.FAILED}:
                causes = "; ".join(f"{engine.spec.name}: {engine.cause}" for engine in home.engines)
                self._book.failed(name, causes)
            elif loaded and not states & {State.STARTING, State.CRASHED}:
                measured = True
                if held := await self._measure(home.engines):
                    self._book.measured(name, held)
            if not home.leave.is_set():
                with anyio.move_on_after(_MEASURE_EVERY_S if measured else None):
                    await news.wait()

    async def _either(self, emptied: Awaitable[None], home: Home) -> None:
        """Until it is empty, or its engines have ended by themselves."""
        async with anyio.create_task_group() as group:

            async def empty() -> None:
                await emptied
                group.cancel_scope.cancel()

            group.start_soon(empty)
            while any(engine.state not in (State.STOPPED, State.FAILED) for engine in home.engines):
                await home.news.wait()
            group.cancel_scope.cancel()
