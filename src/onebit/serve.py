"""The composition root of `onebit serve`: builds everything, one task group, the order of shutdown."""

from __future__ import annotations

import asyncio
import logging
import os
import resource
import signal
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress
from enum import Enum
from pathlib import Path

import anyio

from onebit import paths, running
from onebit.engines.state import State
from onebit.engines.supervisor import Engine
from onebit.errors import EngineFailed, Unavailable
from onebit.fleet import Fleet
from onebit.memory.arbiter import Arbiter
from onebit.memory.gauge import Gauge
from onebit.memory.ledger import MemoryLedger
from onebit.memory.residency import Residency
from onebit.offer import model_spec
from onebit.reload import Proposal, limits_of, rules_of
from onebit.reloader import HangUp, Read, Reloader
from onebit.router.admin import Admin
from onebit.router.app import App
from onebit.router.http_server import HttpServer
from onebit.router.journal import Journal
from onebit.router.keyring import KeyRing
from onebit.router.listen import Listener
from onebit.router.pool import standing_of
from onebit.scheduler.cards import Cards
from onebit.scheduler.gate import Gate
from onebit.scheduler.model import Model

_log = logging.getLogger("onebit.serve")
_FILES = 65_536  # a relayed stream takes two descriptors; the usual soft limit of 1,024 ends at 500 streams


class Ending(Enum):
    """How a server ended; the value is the exit code."""

    CLEAN = 0  # every request was finished
    CUT = 3  # the grace period ended with requests running
    FORCED = 130  # a second Ctrl-C


class Stops:
    """Counts SIGINT and SIGTERM: the first asks to drain, the second to stop now."""

    def __init__(self) -> None:
        self.first = anyio.Event()
        self.second = anyio.Event()

    def count(self) -> None:
        """One more."""
        (self.second if self.first.is_set() else self.first).set()


class Server:
    """One server: its models, the gate, the memory, its HTTP side."""

    def __init__(self, start: Proposal, read: Read, listener: Listener, run_dir: Path) -> None:
        """`read`: the config again, when it has been edited.

        Raises ConfigError when a model can never fit into the memory that the config gives.
        """
        config = start.config
        self.config = config
        self.keys = start.keys
        self.listener = listener
        self.offers = {offer.name: offer for offer in start.offers}
        self.stops = Stops()
        self.up = anyio.Event()  # what is to be loaded at the start has been, or has failed
        self._run_dir = run_dir
        self.gauge = Gauge(config.memory)
        rooms = self.gauge.rooms([spec for offer in start.offers for spec in offer.plan.engines])
        specs = [model_spec(offer, rooms, self.gauge) for offer in start.offers]
        self.gate = Gate([Model(spec) for spec in specs], limits_of(config, start.keys))
        self.arbiter = Arbiter(self.gauge.measure, self.gauge.ending, config.grace)
        totals = {pool: room.total for pool, room in rooms.items()}
        self.cards = Cards(self.gate, MemoryLedger(totals), rules_of(config), self.arbiter)
        self.fleet = Fleet(run_dir, config.port, self.arbiter.homes, self._changed)
        self.cards.renewed, self.cards.forgotten = self.fleet.renewed, self.fleet.forgotten
        for offer in start.offers:
            self.fleet.add(self.fleet.build(offer))
        self._journal = Journal()
        ring = KeyRing(start.keys, config.keyless_tier)
        admin = Admin(self.fleet.pools, self.cards, self._journal)
        self.app = App(self.fleet.pools, self.gate, ring, config.max_body, admin)
        self.reloader = Reloader(self, read, run_dir)
        self._settled = anyio.Event()
        self._reloading = anyio.CancelScope()

    @property
    def engines(self) -> list[Engine]:
        """All engines of all models."""
        return [engine for pool in self.fleet.pools.values() for engine in pool.engines.values()]

    async def run(self, show: Callable[[Server], Awaitable[None]], draining: Callable[[int], None]) -> Ending:
        """Serve until stopped.

        `show` runs beside the start and may wait for `up`; `draining` is called with the slots in use after the
        first Ctrl-C. Raises EngineFailed when nothing of what is to be loaded at the start comes up.
        """
        _raise_file_limit()
        http = HttpServer(self.app)
        showing = anyio.CancelScope()

        async def shown() -> None:
            with showing:
                await show(self)

        ending: Ending | EngineFailed
        async with anyio.create_task_group() as group:
            with _signals(self.stops, self.reloader):
                self._announce()
                group.start_soon(http.serve, [self.listener.socket])
                group.start_soon(shown)
                async with anyio.create_task_group() as models:
                    await models.start(self.arbiter.run, self.cards)
                    models.start_soon(self._reloads)
                    for model in tuple(self.gate.models.values()):
                        if model.spec.preload:
                            self.cards.want(model.name)
                    try:
                        ending = await self._serve(draining)
                    except EngineFailed as error:
                        ending = error  # raised below: a task group would wrap it
                    showing.cancel()
                    self.cards.close()
                    await self.arbiter.stop()
                    models.cancel_scope.cancel()
                http.should_exit = True
        if isinstance(ending, EngineFailed):
            raise ending
        return ending

    async def _serve(self, draining: Callable[[int], None]) -> Ending:
        self.cards.moved = self._moved
        self._moved()
        await _either(self._settled, self.stops.first)
        if not self.stops.first.is_set():
            wanted = [pool for name, pool in self.fleet.pools.items() if self.gate.models[name].spec.preload]
            engines = [engine for pool in wanted for engine in pool.engines.values()]
            if engines and all(engine.state is State.FAILED for engine in engines):
                causes = "\n".join(f"engine {e.spec.name}: {e.cause}" for e in engines)
                raise EngineFailed(causes, hint=f"the engines' logs are in {paths.log_dir()}")
            self.up.set()
            await self.stops.first.wait()
        return await self._drain(draining)

    async def _drain(self, draining: Callable[[int], None]) -> Ending:
        """No new requests; those running may finish within the grace period; the rest is cut off and told."""
        self._reloading.cancel()
        self.cards.close()
        self.gate.close(lambda: Unavailable("the server is shutting down", retry_after=5))
        for engine in self.engines:
            engine.drain()
        if self.gate.in_use:
            draining(self.gate.in_use)
        idle = anyio.Event()
        async with anyio.create_task_group() as group:

            async def watch() -> None:
                await self.gate.idle()
                idle.set()

            group.start_soon(watch)
            with anyio.move_on_after(self.config.grace):
                await _either(idle, self.stops.second)
            group.cancel_scope.cancel()
        if idle.is_set():
            return Ending.CLEAN
        self.app.cut()
        return Ending.FORCED if self.stops.second.is_set() else Ending.CUT

    def _announce(self) -> None:
        """So that `onebit status` and the like find this server. It serves without that, too."""
        file = self.config.source.file
        note = running.Note(os.getpid(), self.listener.url, str(file) if file else None, time.time())
        try:
            running.announce(self._run_dir, note)
        except OSError as error:
            _log.warning("onebit status will not find this server: %s", error)

    async def _reloads(self) -> None:
        """Until the drain begins: a config that is read afterwards is for nobody."""
        with self._reloading:
            await self.reloader.run()

    def _changed(self, name: str, engine: Engine) -> None:
        cause = engine.cause if engine.state is State.FAILED else None
        self.gate.engine_changed(name, engine.spec.name, standing_of(engine), cause)
        self.arbiter.changed(name)
        self._moved()

    def _moved(self) -> None:
        """Has everything that is to be loaded at the start been loaded, or failed?"""
        if self._settled.is_set():
            return
        for model in self.gate.models.values():
            if not model.spec.preload or model.leaving_for_good:
                continue
            engines = self.fleet.pools[model.name].engines.values()
            if model.asked_at is not None or model.residency is Residency.LOADING:
                return
            if any(engine.state in (State.STARTING, State.CRASHED) for engine in engines):
                return
        self._settled.set()


@contextmanager
def _signals(stops: Stops, reloader: Reloader) -> Iterator[None]:
    loop = asyncio.get_running_loop()
    hang_up = HangUp()

    def hung_up() -> None:
        if hang_up.is_the_end():
            stops.count()
        else:
            reloader.ask()

    handlers = {signal.SIGINT: stops.count, signal.SIGTERM: stops.count, signal.SIGHUP: hung_up}
    for signum, handler in handlers.items():
        loop.add_signal_handler(signum, handler)
    try:
        yield
    finally:
        for signum in handlers:
            loop.remove_signal_handler(signum)


async def _either(one: anyio.Event, other: anyio.Event) -> None:
    async with anyio.create_task_group() as group:

        async def wait(event: anyio.Event) -> None:
            await event.wait()
            group.cancel_scope.cancel()

        group.start_soon(wait, one)
        group.start_soon(wait, other)


def _raise_file_limit() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _FILES if hard == resource.RLIM_INFINITY else min(_FILES, hard)
    if soft < wanted:
        with suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
