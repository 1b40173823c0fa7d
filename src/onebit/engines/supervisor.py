"""One supervised engine: started, watched, started again, given up on, stopped. Its task alone moves its state."""

from __future__ import annotations

import errno
import os
import secrets
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from time import monotonic

import anyio

from onebit.engines.causes import Cause, diagnose
from onebit.engines.client import EngineClient
from onebit.engines.llama_server import Address, address_for, arguments, environment
from onebit.engines.process import Child
from onebit.engines.spec import EngineSpec
from onebit.engines.state import Event, State, next_state

# Where an engine computes on the cores that the router runs on, the router must not stand in line behind it for each
# token that it only passes on. On one evening this took what it added to the first token from 4.0 to 2.3 ms (median, 16
# streams on two cores), on another day nothing that could be told from noise.
_NICE = 5


@dataclass(frozen=True, slots=True)
class Patience:
    """How long the supervisor waits for what, in seconds."""

    start: float = 900.0  # a large model from a cold disk takes minutes; Vulkan shaders a minute more
    poll: float = 0.1  # between two looks while it starts; a tiny model is ready in 0.05 s
    watch: float = 2.0  # between two looks while it runs
    silence: float = 20.0  # /health unanswered: it is answered by threads of its own, even when the model is busy
    stall: float = 30.0  # busy, but not a byte: ask its decode loop for a sign of life
    decode: float = 180.0  # the loop answers between two batches; a batch of 128 takes up to a minute on llvmpipe
    backoff: float = 0.5  # before the first restart, doubling
    backoff_cap: float = 30.0
    proven: float = 60.0  # ready for this long: its next crash counts as the first
    stop: float = 2.0  # between TERM, TERM and KILL
    attempts: int = 5  # failed starts or quick crashes in a row, then it is given up


class Engine:
    """An engine and the process that is it at the moment."""

    def __init__(
        self,
        spec: EngineSpec,
        *,
        run_dir: Path,
        log: Path,
        on_change: Callable[[Engine], None],
        patience: Patience | None = None,
    ) -> None:
        self.spec = spec
        self.log = log
        self.state = State.STOPPED
        self.cause: str | None = None  # why it last ended, one sentence
        self.loads = 0  # by `load`
        self.starts = 0  # of processes: what is more than the loads are restarts
        self.doubted = False  # a request found its connection broken, and nobody has looked since
        self.client: EngineClient | None = None  # only while READY or DRAINING
        self._run_dir = run_dir
        self._on_change = on_change
        self._patience = patience or Patience()
        self._child: Child | None = None
        self._stop = anyio.Event()
        self._look = anyio.Event()

    @property
    def pid(self) -> int | None:
        """The process id while there is a process."""
        return self._child.pid if self._child else None

    @property
    def restarts(self) -> int:
        """Starts that nobody asked for."""
        return max(0, self.starts - self.loads)

    def doubt(self) -> None:
        """A request found its connection broken: take no others until it has been looked at, which is now."""
        self.doubted = True
        self._look.set()
        self._on_change(self)

    def load(self) -> None:
        """It is wanted: `run` follows. Raises IllegalTransitionError when it runs already."""
        self._stop = anyio.Event()
        self.loads += 1
        self._move(Event.LOAD)

    def drain(self) -> None:
        """Take no new requests; those it has may finish."""
        self._move(Event.DRAIN)

    def stop(self) -> None:
        """End it for good. `run` returns when the process is gone."""
        self._stop.set()
        self._look.set()

    async def run(self) -> None:
        """After `load`: keep the engine running until `stop`, or until it is given up. Leaves no process behind."""
        failures = 0
        while not self._stop.is_set():
            ready_for, cause = await self._one_life()
            if self._stop.is_set():
                break
            self.cause = cause.text
            self._move(Event.DIED)
            if self.state is State.STOPPED:  # it was draining
                return
            failures = 1 if ready_for >= self._patience.proven else failures + 1
            if not cause.retry or failures >= self._patience.attempts:
                self._move(Event.GIVE_UP)
                return
            with anyio.move_on_after(min(self._patience.backoff * 2 ** (failures - 1), self._patience.backoff_cap)):
                await self._stop.wait()
                break
            self._move(Event.START_AGAIN)
        self._move(Event.STOP)

    async def _one_life(self) -> tuple[float, Cause]:
        """Start a process, watch it until it ends. Returns (seconds it was ready, why it ended)."""
        address = address_for(self._run_dir, self.spec.name)
        if address.socket is not None:
            address.socket.unlink(missing_ok=True)  # a stale one makes the start fail
        key = secrets.token_urlsafe(24)
        self.starts += 1
        try:
            argv, env = arguments(self.spec, address), environment(self.spec, key, os.environ)
            child = Child(argv, env, self.log, nice=_NICE)
        except OSError as error:
            for_good = error.errno in (errno.ENOENT, errno.EACCES, errno.ENOEXEC)
            return 0.0, Cause(f"{self.spec.build.path} cannot be started: {error.strerror}", retry=not for_good)
        self._child = child
        client = None
        ready_at = None
        try:
            client, hung = await self._until_ready(child, address, key)
            if client is not None and hung is None and child.returncode is None:  # else it ended while it loaded
                ready_at = monotonic()
                self.client, self.doubted = client, False
                self._move(Event.BECAME_READY)
                hung = await self._until_ended(child, client)
        finally:
            self.client = None
            self.doubt()  # ending it may take a while, in which it must get nothing
            with anyio.CancelScope(shield=True):
                if client is not None:
                    client.close()  # a pending answer would keep it from obeying TERM
                returncode = await child.end(self._patience.stop)
                if address.socket is not None:
                    address.socket.unlink(missing_ok=True)
            self._child = None
        lived = 0.0 if ready_at is None else monotonic() - ready_at
        return lived, hung or diagnose(returncode, child.tail(), self.spec)

    async def _until_ready(self, child: Child, address: Address, key: str) -> tuple[EngineClient | None, Cause | None]:
        """(its client, None) when it is ready, (None, None) when it exited, else with the cause for giving it up."""
        client: EngineClient | None = None
        with anyio.move_on_after(self._patience.start):
            while child.returncode is None and not self._stop.is_set():
                if client is None and (address.socket is not None or child.port is not None):
                    client = EngineClient(Address(address.socket, child.port or 0), key)
                if client is not None:
                    with suppress(OSError):
                        if await client.healthy():
                            return client, None
                await self._pause(child, self._patience.poll)
            return (None, None) if child.returncode is not None else (client, Cause("stopped"))
        return client, Cause(f"it was not ready after {self._patience.start:g} s", retry=False)

    async def _until_ended(self, child: Child, client: EngineClient) -> Cause | None:
        """Returns None when it exited or is to stop, the cause when it hangs."""
        heard = monotonic()
        while child.returncode is None and not self._stop.is_set():
            await self._pause(child, self._patience.watch)
            if child.returncode is not None or self._stop.is_set():
                break
            with suppress(OSError):
                if await client.healthy():
                    heard = monotonic()
                    if self.doubted:
                        self.doubted = False
                        self._on_change(self)
            if monotonic() - heard > self._patience.silence:
                return Cause(f"it hung: no answer to /health for {self._patience.silence:g} s")
            if client.busy and monotonic() - client.last_byte > self._patience.stall:
                try:
                    await client.in_work(self._patience.decode)
                    client.last_byte = monotonic()
                except OSError:
                    if child.returncode is None:
                        return Cause("it hung: busy, but its decode loop gives no sign of life")
        return None

    async def _pause(self, child: Child, seconds: float) -> None:
        """Wait, but not past the process's end, a stop, or a doubt."""
        self._look = anyio.Event()
        if self._stop.is_set():
            return
        look = self._look
        with anyio.move_on_after(seconds):
            async with anyio.create_task_group() as group:

                async def ended() -> None:
                    await child.wait()
                    group.cancel_scope.cancel()

                group.start_soon(ended)
                await look.wait()
                group.cancel_scope.cancel()

    def _move(self, event: Event) -> None:
        state = next_state(self.state, event)
        if state is not self.state:
            self.state = state
            self._on_change(self)
