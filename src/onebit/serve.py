"""The composition root of `onebit serve`: builds everything, one task group, the order of shutdown."""

from __future__ import annotations

import asyncio
import functools
import itertools
import re
import resource
import signal
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from enum import Enum
from pathlib import Path

import anyio
import uvicorn

from onebit import paths
from onebit.config.keys import Key
from onebit.config.schema import ServeConfig
from onebit.engines.spec import EngineSpec
from onebit.engines.state import State
from onebit.engines.supervisor import Engine, Patience
from onebit.errors import EngineFailed, Unavailable
from onebit.memory.arbiter import Arbiter, Home
from onebit.memory.gauge import Gauge
from onebit.memory.ledger import MemoryLedger
from onebit.memory.policy import Rules
from onebit.memory.residency import Residency
from onebit.offer import Offer, model_spec
from onebit.router.admin import Admin
from onebit.router.app import App
from onebit.router.client_side import ClientSide
from onebit.router.journal import Journal
from onebit.router.keyring import KeyRing
from onebit.router.listen import Listener
from onebit.router.pool import Pool, standing_of
from onebit.scheduler.cards import Cards
from onebit.scheduler.gate import Gate, Limits
from onebit.scheduler.model import Model

_BACKLOG = 2048
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

    def __init__(
        self, config: ServeConfig, offers: Sequence[Offer], keys: Sequence[Key], listener: Listener, run_dir: Path
    ) -> None:
        """Raises ConfigError when a model can never fit into the memory that the config gives."""
        self.config = config
        self.keys = tuple(keys)  # read once: their file may be a pipe
        self.listener = listener
        self.offers = {offer.name: offer for offer in offers}
        self.stops = Stops()
        self.up = anyio.Event()  # what is to be loaded at the start has been, or has failed
        self._run_dir = run_dir
        self._folders = itertools.count()
        self.gauge = Gauge(config.memory)
        rooms = self.gauge.rooms([spec for offer in offers for spec in offer.plan.engines])
        specs = [model_spec(offer, rooms, self.gauge) for offer in offers]
        self.gate = Gate([Model(spec) for spec in specs], _limits(config, keys))
        self.arbiter = Arbiter(self.gauge.measure, self.gauge.ending, config.grace)
        totals = {pool: room.total for pool, room in rooms.items()}
        self.cards = Cards(self.gate, MemoryLedger(totals), _rules(config), self.arbiter)
        self.pools = {offer.name: self._pool(offer) for offer in offers}
        self._journal = Journal()
        ring = KeyRing(keys, config.keyless_tier)
        admin = Admin(self.pools, self.cards, self._journal)
        self.app = App(self.pools, self.gate, ring, config.max_body, admin)
        self._settled = anyio.Event()

    @property
    def engines(self) -> list[Engine]:
        """All engines of all models."""
        return [engine for pool in self.pools.values() for engine in pool.engines.values()]

    async def run(self, show: Callable[[Server], Awaitable[None]], draining: Callable[[int], None]) -> Ending:
        """Serve until stopped.

        `show` runs beside the start and may wait for `up`; `draining` is called with the slots in use after the
        first Ctrl-C. Raises EngineFailed when nothing of what is to be loaded at the start comes up.
        """
        _raise_file_limit()
        http = _Uvicorn(self.app)
        showing = anyio.CancelScope()

        async def shown() -> None:
            with showing:
                await show(self)

        ending: Ending | EngineFailed
        async with anyio.create_task_group() as group:
            with _signals(self.stops):
                group.start_soon(http.serve, [self.listener.socket])
                group.start_soon(shown)
                async with anyio.create_task_group() as models:
                    await models.start(self.arbiter.run, self.cards)
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
            wanted = [pool for name, pool in self.pools.items() if self.gate.models[name].spec.preload]
            engines = [engine for pool in wanted for engine in pool.engines.values()]
            if engines and all(engine.state is State.FAILED for engine in engines):
                causes = "\n".join(f"engine {e.spec.name}: {e.cause}" for e in engines)
                raise EngineFailed(causes, hint=f"the engines' logs are in {paths.log_dir()}")
            self.up.set()
            await self.stops.first.wait()
        return await self._drain(draining)

    async def _drain(self, draining: Callable[[int], None]) -> Ending:
        """No new requests; those running may finish within the grace period; the rest is cut off and told."""
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

    def _pool(self, offer: Offer) -> Pool:
        folder = self._run_dir / str(next(self._folders))  # engines of two models have the same names
        folder.mkdir(mode=0o700)
        engines = {
            spec.name: Engine(
                spec,
                run_dir=folder,
                log=_log_file(spec, self.config.port),
                on_change=functools.partial(self._changed, offer.name),
                patience=Patience(start=offer.served.settings.start_timeout),
            )
            for spec in offer.plan.engines
        }
        self.arbiter.homes[offer.name] = Home(tuple(engines.values()))
        return Pool(offer.name, offer.plan.context, int(time.time()), engines)

    def _changed(self, name: str, engine: Engine) -> None:
        cause = engine.cause if engine.state is State.FAILED else None
        self.gate.engine_changed(name, engine.spec.name, standing_of(engine), cause)
        self.arbiter.changed(name)
        self._moved()

    def _moved(self) -> None:
        """Has everything that is to be loaded at the start been loaded, or failed?"""
        for model in self.gate.models.values():
            if not model.spec.preload:
                continue
            engines = self.pools[model.name].engines.values()
            if model.asked_at is not None or model.residency is Residency.LOADING:
                return
            if any(engine.state in (State.STARTING, State.CRASHED) for engine in engines):
                return
        self._settled.set()


def _limits(config: ServeConfig, keys: Sequence[Key]) -> Limits:
    caps = tuple((key.name, key.max_in_flight) for key in keys if key.max_in_flight is not None)
    return Limits(config.max_waiting, config.max_wait, config.max_wait_boost, caps)


def _rules(config: ServeConfig) -> Rules:
    return Rules(config.protect, config.min_residency, config.max_hold)


class _Uvicorn(uvicorn.Server):
    """uvicorn without its own signal handling: the first Ctrl-C must drain the gate, not the sockets."""

    def __init__(self, app: App) -> None:
        super().__init__(
            uvicorn.Config(
                app,
                http=ClientSide,
                loop="none",
                lifespan="off",
                ws="none",
                interface="asgi3",
                log_config=None,
                proxy_headers=False,
                access_log=False,
                server_header=False,
                backlog=_BACKLOG,
                timeout_graceful_shutdown=2,
            )
        )

    def capture_signals(self) -> nullcontext[None]:  # type: ignore[override]
        """Leave them alone."""
        return nullcontext()


def _log_file(spec: EngineSpec, port: int) -> Path:
    """One file an engine: two servers have two ports, and one that is started again goes on in its file.

    Those that took any free port share one, or each start would leave a file behind.
    """
    alias = re.sub(r"[^\w.-]", "_", spec.alias)
    return paths.log_dir() / f"{alias}-{spec.name}{f'-{port}' if port else ''}.log"


@contextmanager
def _signals(stops: Stops) -> Iterator[None]:
    loop = asyncio.get_running_loop()
    for signum in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(signum, stops.count)
    try:
        yield
    finally:
        for signum in (signal.SIGINT, signal.SIGTERM):
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
