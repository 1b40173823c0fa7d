"""One request's way through the gate: it waits, holds slots for the length of a block, and gives them back."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING

from onebit.errors import OnebitError
from onebit.scheduler.choose import Need
from onebit.tiers import Tier

if TYPE_CHECKING:
    from onebit.scheduler.gate import Gate
    from onebit.scheduler.line import Turn
    from onebit.scheduler.model import Model
    from onebit.scheduler.slots import Claim


@dataclass(frozen=True, slots=True)
class Ask:
    """What a request asks of the gate. `key`: the name of its API key, empty: it came without one."""

    model: str
    need: Need = field(default_factory=Need)
    tier: Tier = Tier.FREE
    key: str = ""


class Stop(Enum):
    """Why the gate ends a request before it is done."""

    PREEMPTED = "preempted"  # background work gives way; it may stand in line again, in front
    EVICTED = "evicted"  # its model must make room, and the grace period is over


class Lease:
    """The block that holds a request's claim on slots of one engine, and on its model's place in memory.

    `async with gate.admit(ask) as lease`: entering waits, leaving gives all of it back. It is guard, waiter and claim
    in one object, and a class: contextlib's decorator alone was 4 of an admission's 15 µs (measured).
    """

    # Slots: with a dict for each instance, and what is not set yet on the class, an admission took a tenth longer.
    __slots__ = (
        *("_gate", "_on_stop", "ask", "claim", "error", "front", "future", "joined", "left", "lifted", "model"),
        *("passed", "stopped", "tier", "turn"),
    )

    def __init__(self, gate: Gate, model: Model, ask: Ask, left: str | None = None, front: bool = False) -> None:
        self._gate = gate
        self.model = model
        self.ask = ask
        self.tier = ask.tier  # what counts: waiting long may have lifted it
        self.left = left  # the engine that died under it before
        self.front = front  # it was served before, and goes before the others of its tier
        self.passed = 0  # slots of those that went before it because their adapters were in use
        self.joined = self.lifted = 0.0  # when it began to wait, and when waiting brought it into its present tier
        self.turn: Turn | None = None  # where it stands in line, while it does
        self.future: asyncio.Future[None] | None = None  # while it waits
        self.claim: Claim | None = None
        self.error: OnebitError | None = None
        self.stopped: Stop | None = None
        self._on_stop: Callable[[], None] | None = None

    @property
    def engine(self) -> str:
        """The engine's name. Only inside the block."""
        assert self.claim is not None  # noqa: S101  (a bug in the caller, not bad input)
        return self.claim.engine

    @property
    def slots(self) -> int:
        """How many slots it holds."""
        return self.claim.slots if self.claim is not None else 0

    def on_stop(self, end: Callable[[], None]) -> None:
        """Have `end` called when the gate ends this request; at once, when it has done so already."""
        self._on_stop = end
        if self.stopped is not None:
            end()

    def stop(self, why: Stop) -> None:
        """The gate's: end what runs in the block."""
        if self.stopped is None:
            self.stopped = why
            if self._on_stop is not None:
                self._on_stop()

    async def __aenter__(self) -> Lease:
        future = self._gate.enter(self)
        if future is not None:
            try:
                await future
            except BaseException:
                self._gate.step_out(self)
                raise
            if self.error is not None:
                raise self.error
        return self

    async def __aexit__(self, _: object, __: object, ___: object) -> None:
        self._gate.give_back(self)
