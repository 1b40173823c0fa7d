"""What is measured: our own engines, `onebit serve` in front of them, or any server; started and stopped."""

from __future__ import annotations

import asyncio
import os
import re
import secrets
import sys
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import anyio

from onebit import paths
from onebit.bench.answer import first_model
from onebit.bench.endpoint import Endpoint
from onebit.bench.wire import WireError
from onebit.engines.client import EngineClient
from onebit.engines.process import Child
from onebit.engines.spec import EngineSpec
from onebit.engines.state import State
from onebit.engines.supervisor import Engine, Patience
from onebit.errors import BenchError, EngineFailed

_READY = re.compile(r"endpoint\s+(http://\S+)/v1")
_POLL_S = 0.1
_STOP_S = 20.0  # `onebit serve` ends its engines first


@dataclass(frozen=True, slots=True)
class Running:
    """A server that answers: where, under which model name, and which processes do its work (for CPU time)."""

    endpoint: Endpoint
    model: str
    pids: tuple[int, ...] = ()


class Setup(Protocol):
    """A server to be measured, and its facts for the results."""

    @property
    def name(self) -> str:
        """As tables show it."""

    @property
    def facts(self) -> Mapping[str, Any]:
        """Device, build, flags: what a figure is worth nothing without."""

    @property
    def serve_flags(self) -> tuple[str, ...]:
        """How `onebit serve` is told to be like it, without the model and the slots."""

    def run(self) -> AbstractAsyncContextManager[Running]:
        """Start it, and stop it when the block is left. Raises OnebitError when it does not come up."""


@dataclass(frozen=True, slots=True)
class EngineSetup:
    """One engine, asked directly."""

    name: str
    spec: EngineSpec
    run_dir: Path
    start_timeout: float
    serve_flags: tuple[str, ...] = ()

    @property
    def facts(self) -> Mapping[str, Any]:
        """Of its engine."""
        return engine_facts(self.spec)

    @asynccontextmanager
    async def run(self) -> AsyncIterator[Running]:
        """Start it, and stop it when the block is left. Raises EngineFailed."""
        async with engines_running([self.spec], self.run_dir, self.start_timeout) as (running,):
            yield running


@dataclass(frozen=True, slots=True)
class ServeSetup:
    """`onebit serve` with these arguments, as a child process: what clients of the router get."""

    name: str
    arguments: tuple[str, ...]
    model: str  # its name for clients
    start_timeout: float
    facts: Mapping[str, Any] = field(default_factory=dict)
    serve_flags: tuple[str, ...] = ()

    @asynccontextmanager
    async def run(self) -> AsyncIterator[Running]:
        """Start it, and stop it when the block is left. Raises EngineFailed with what it said."""
        key = secrets.token_urlsafe(24)
        kept = {name: value for name, value in os.environ.items() if not name.startswith("ONEBIT_")}
        env = {**kept, "ONEBIT_API_KEY": key, "NO_COLOR": "1", "COLUMNS": "400"}
        argv = [sys.executable, "-m", "onebit", "serve", "--host", "127.0.0.1", "--port", "0", *self.arguments]
        child = Child(argv, env, paths.log_dir() / "bench-serve.log")
        try:
            url = await self._until_up(child)
            yield Running(Endpoint.of_url(f"{url}/v1", key), self.model, _family(child.pid))
        finally:
            with anyio.CancelScope(shield=True):
                await child.end(_STOP_S)

    async def _until_up(self, child: Child) -> str:
        with anyio.move_on_after(self.start_timeout):
            while child.returncode is None:
                if found := _READY.search("\n".join(child.tail())):
                    return found[1]
                await anyio.sleep(_POLL_S)
            await child.wait()
            said = [line.strip() for line in child.tail() if line.strip()]
            why = [line.removeprefix("error: ") for line in said if line.startswith("error: ")] or said[-1:]
            raise EngineFailed(f"onebit serve for {self.name} ended: {why[0] if why else 'without a word'}")
        raise EngineFailed(f"onebit serve for {self.name} was not up after {self.start_timeout:g} s")


@dataclass(frozen=True, slots=True)
class UrlSetup:
    """A server that somebody else runs."""

    name: str
    endpoint: Endpoint
    model: str | None  # None: the first that it lists
    serve_flags: tuple[str, ...] = ()

    @property
    def facts(self) -> Mapping[str, Any]:
        """All that is known of it."""
        return {"url": self.endpoint.name, "model": self.model}

    @asynccontextmanager
    async def run(self) -> AsyncIterator[Running]:
        """Nothing to start. Raises BenchError when it does not answer and no model was named."""
        model = self.model
        if model is None:
            try:
                model = await first_model(self.endpoint)
            except (WireError, TimeoutError) as error:
                why = str(error) or "no answer in time"
                raise BenchError(f"{self.name}: {why}", hint="is it running? name its model with --url-model") from None
            if model is None:
                raise BenchError(f"{self.name} lists no models", hint="name one with --url-model")
        yield Running(self.endpoint, model)


@asynccontextmanager
async def engines_running(specs: Sequence[EngineSpec], run_dir: Path, timeout: float) -> AsyncIterator[list[Running]]:
    """All these engines at once, under the supervisor that `onebit serve` uses; a start that fails is not repeated.

    They are stopped, and gone, when the block is left. Raises EngineFailed.
    """
    changed = anyio.Event()

    def on_change(_: Engine) -> None:
        nonlocal changed
        changed.set()
        changed = anyio.Event()

    patience = Patience(start=timeout, attempts=1)
    engines = [
        Engine(
            spec,
            run_dir=run_dir,
            log=paths.log_dir() / f"bench-{spec.name}.log",
            on_change=on_change,
            patience=patience,
        )
        for spec in specs
    ]
    tasks = [asyncio.create_task(engine.run()) for engine in engines]
    try:
        while any(engine.state is State.STARTING for engine in engines):
            await changed.wait()
        for engine in engines:
            if engine.client is None:
                hint = f"its log: {engine.log}"
                raise EngineFailed(f"engine {engine.spec.name}: {engine.cause or 'it did not start'}", hint=hint)
        yield [_running(engine, engine.client) for engine in engines if engine.client is not None]
    finally:
        with anyio.CancelScope(shield=True):
            for engine in engines:
                engine.stop()
            await asyncio.gather(*tasks)


def _running(engine: Engine, client: EngineClient) -> Running:
    pids = (engine.pid,) if engine.pid else ()
    return Running(Endpoint.of_engine(client.address, client.key), engine.spec.alias, pids)


def engine_facts(spec: EngineSpec) -> dict[str, Any]:
    """What an engine is, for a row of results."""
    found = spec.build.device_for(spec.device)
    facts: dict[str, Any] = {
        "device": f"{spec.device}" + (f": {found.description}" if found else ""),
        "build": spec.build.version,
        "flags": f"-np {spec.slots} -c {spec.context} -b {spec.batch} -t {spec.threads}",
    }
    if spec.gpu_layers is not None:
        facts["flags"] += f" -ngl {spec.gpu_layers}"
    if spec.draft is not None:
        facts["flags"] += f" {spec.draft.kind} {spec.draft.length}"
    if spec.extra:
        facts["flags"] += " " + " ".join(spec.extra)
    return facts


def _family(pid: int) -> tuple[int, ...]:
    """A process and its descendants, as far as /proc tells."""
    return tuple(_walk(pid))


def _walk(pid: int) -> Iterator[int]:
    yield pid
    try:
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    except OSError:
        return
    for child in children:
        yield from _walk(int(child))
