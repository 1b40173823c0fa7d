"""What the models take: guessed before the first load, measured after it, remembered for the next."""

from __future__ import annotations

import functools
from collections.abc import Awaitable, Callable, Sequence

import anyio
import anyio.to_thread

from onebit.engines.spec import EngineSpec
from onebit.engines.supervisor import Engine
from onebit.memory.cards import Nvidia
from onebit.memory.estimate import Estimate, corrected
from onebit.memory.footprint import process_bytes, seen_free
from onebit.memory.pools import HOST, on_host, pool_of
from onebit.memory.remembered import Remembered
from onebit.memory.rooms import Room, rooms

_CHANGE = 0.01  # a smaller one is not worth a write
_SHARE_SEEN = 0.5  # of a model's bytes must be seen to be free again: others may take some at once


class Gauge:
    """Reads and remembers. `memory`: the operator's budget in bytes; None: what the devices report counts."""

    def __init__(self, memory: int | None, remembered: Remembered | None = None) -> None:
        self.memory = memory
        self._remembered = remembered or Remembered()
        self._nvidia = Nvidia.open()
        self._guesses: dict[tuple[str, str], Estimate] = {}  # by model and engine
        self._stored: dict[tuple[str, str], int] = {}

    def pool(self, spec: EngineSpec) -> str:
        """The pool that an engine draws on."""
        return pool_of(spec.device, spec.build, single=self.memory is not None)

    def rooms(self, specs: Sequence[EngineSpec]) -> dict[str, Room]:
        """What may be used of each pool that these need."""
        return rooms(specs, self.memory, nvidia=self._nvidia)

    def needs(self, spec: EngineSpec, guess: Estimate) -> int:
        """Bytes to reserve for an engine: from what it held the last time, if it ever ran, else the guess."""
        self._guesses[spec.alias, spec.name] = guess
        return corrected(guess, self._remembered.recall(spec), host=on_host(spec.device, spec.build))

    async def measure(self, engines: Sequence[Engine]) -> dict[str, int]:
        """Bytes by pool that these engines hold; a pool in which one of them cannot be measured is left out."""
        held: dict[str, int] = {}
        unknown = set()
        for engine in engines:
            size = await self._measured(engine)
            pool = self.pool(engine.spec)
            if size is None:
                unknown.add(pool)
            else:
                held[pool] = held.get(pool, 0) + size
        return {pool: size for pool, size in held.items() if pool not in unknown}

    def ending(self, engines: Sequence[Engine]) -> Callable[[], Awaitable[None]]:
        """Called before the engines end; what it returns waits, afterwards, until their memory is seen to be free.

        Of main memory the ended process is evidence enough. A card's driver frees a while after.
        """
        wanted: dict[str, tuple[EngineSpec, int]] = {}
        for spec in (engine.spec for engine in engines):
            pool = pool_of(spec.device, spec.build, single=False)
            if pool != HOST and (free := self._free(spec)) is not None:
                before = wanted[pool][1] if pool in wanted else free
                wanted[pool] = spec, before + int(_SHARE_SEEN * self._stored.get((spec.alias, spec.name), 0))

        async def see_free() -> None:
            for spec, size in wanted.values():
                await seen_free(functools.partial(self._free, spec), size)

        return see_free

    def _free(self, spec: EngineSpec) -> int | None:
        """Bytes free on an engine's card now; None where that is not read from the card itself."""
        (room,) = rooms([spec], None, nvidia=self._nvidia).values()
        return room.free if room.live else None

    async def _measured(self, engine: Engine) -> int | None:
        spec, pid = engine.spec, engine.pid
        if pid is None:
            return None
        host = on_host(spec.device, spec.build)
        nvml = None if self._nvidia is None else self._nvidia.process
        # In a thread: the kernel walks the whole page table for a PSS, 0.1 s and more for a large model.
        size = await anyio.to_thread.run_sync(functools.partial(process_bytes, pid, host, nvidia=nvml))
        if size is None:
            return None
        if abs(size - self._stored.get((spec.alias, spec.name), 0)) > _CHANGE * size:
            self._stored[spec.alias, spec.name] = size
            await anyio.to_thread.run_sync(self._remembered.store, spec, size)
        return corrected(self._guesses[spec.alias, spec.name], size, host=host)
