"""The composition root of `onebit serve`: builds everything, one task group, the order of shutdown."""

from __future__ import annotations

import asyncio
import re
import resource
import signal
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from enum import Enum
from pathlib import Path

import anyio
import uvicorn

from onebit import paths
from onebit.config.schema import ServeConfig
from onebit.engines.plan import Plan
from onebit.engines.spec import EngineSpec
from onebit.engines.state import State
from onebit.engines.supervisor import Engine, Patience
from onebit.errors import EngineFailed, Unavailable
from onebit.router.app import App
from onebit.router.client_side import ClientSide
from onebit.router.listen import Listener
from onebit.router.pool import Pool, standing_of, view_of
from onebit.scheduler.gate import Gate
from onebit.scheduler.slots import SlotLedger

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
    """One server: its engines, its gate, its HTTP side."""

    def __init__(
        self, config: ServeConfig, plan: Plan, keys: tuple[str, ...], listener: Listener, run_dir: Path
    ) -> None:
        """`keys`: the API keys, read once (their file may be a pipe); none: everyone may come in."""
        self.config = config
        self.needs_key = bool(keys)
        self.plan = plan
        self.listener = listener
        self.engines = {
            spec.name: Engine(
                spec,
                run_dir=run_dir,
                log=_log_file(spec, config.port),
                on_change=self._changed,
                patience=Patience(start=config.start_timeout),
            )
            for spec in plan.engines
        }
        ledger = SlotLedger([view_of(spec) for spec in plan.engines])
        self.gate = Gate(ledger, max_waiting=config.max_waiting, max_wait=config.max_wait)
        pool = Pool(plan.alias, plan.context, int(time.time()), self.engines, self.gate)
        self.app = App({pool.model: pool}, keys=keys, max_body=config.max_body)
        self.stops = Stops()
        self.up = anyio.Event()  # every engine is ready or has failed, and one is ready
        self._settled = anyio.Event()  # every engine is ready or has failed, for the first time

    async def run(self, show: Callable[[Server], Awaitable[None]], draining: Callable[[int], None]) -> Ending:
        """Serve until stopped.

        `show` runs beside the start and may wait for `up`; `draining` is called with the slots in use after the
        first Ctrl-C. Raises EngineFailed when no engine comes up at all.
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
                async with anyio.create_task_group() as engines:
                    for engine in self.engines.values():
                        engines.start_soon(engine.run)
                    try:
                        ending = await self._serve(draining)
                    except EngineFailed as error:
                        ending = error  # raised below: a task group would wrap it
                    showing.cancel()
                    for engine in self.engines.values():
                        engine.stop()
                http.should_exit = True
        if isinstance(ending, EngineFailed):
            raise ending
        return ending

    async def _serve(self, draining: Callable[[int], None]) -> Ending:
        await _either(self._settled, self.stops.first)
        if not self.stops.first.is_set():
            if all(e.state is State.FAILED for e in self.engines.values()):
                causes = "\n".join(f"engine {e.spec.name}: {e.cause}" for e in self.engines.values())
                raise EngineFailed(causes, hint=f"the engines' logs are in {paths.log_dir()}")
            self.up.set()
            await self.stops.first.wait()
        return await self._drain(draining)

    async def _drain(self, draining: Callable[[int], None]) -> Ending:
        """No new requests; those running may finish within the grace period; the rest is cut off and told."""
        self.gate.close(lambda: Unavailable("the server is shutting down", retry_after=5))
        for engine in self.engines.values():
            engine.drain()
        if self.gate.ledger.in_use:
            draining(self.gate.ledger.in_use)
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

    def _changed(self, engine: Engine) -> None:
        standing = standing_of(engine)
        cause = engine.cause if engine.state is State.FAILED else None
        self.gate.engine_changed(engine.spec.name, standing, cause)
        if all(e.state not in (State.STARTING, State.CRASHED) for e in self.engines.values()):
            self._settled.set()


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
