"""One model's page in the gate's book: its slots, its line, its place in memory, and what it has been doing."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from math import inf

from onebit.memory.policy import Holder, Wanted
from onebit.memory.residency import Residency, Step, after
from onebit.scheduler.choose import EngineView
from onebit.scheduler.lease import Lease
from onebit.scheduler.line import Line
from onebit.scheduler.profile import Grid
from onebit.scheduler.slots import SlotLedger
from onebit.scheduler.split import HOLD_GAIN
from onebit.tiers import Tier

_RATE_WINDOW = 32  # releases that the drain rate is measured over
_COOL_S, _COOL_CAP_S = 10.0, 300.0  # after a failed load, doubling


@dataclass(frozen=True, slots=True)
class ModelSpec:
    """What the gate must know of a model. `needs`: bytes by pool. `cards`: where its engines compute."""

    name: str
    engines: tuple[EngineView, ...]
    needs: Mapping[str, int]
    cards: frozenset[str] = frozenset()
    pinned: bool = False
    preload: bool = False
    idle_unload: float | None = None  # seconds
    grid: Grid | None = None  # what was measured of its two engines together
    hold_gain: float = HOLD_GAIN


class Model:
    """The mutable page. Only the gate writes it."""

    def __init__(self, spec: ModelSpec) -> None:
        self.line = Line()
        self.running: dict[int, Lease] = {}  # by the claim's id: a slot handed on changes one entry
        self.releases: deque[float] = deque(maxlen=_RATE_WINDOW)
        self.residency = Residency.ABSENT
        self.served = [-inf, -inf, -inf, -inf]  # by tier: when one last ended here
        self.hold: Tier | None = None  # takes no requests of this tier and below: another model's turn has come
        self.loaded_for: Tier | None = None
        self.load_began = -inf
        self.loaded_at = -inf
        self.idle_since = -inf
        self.absent_since = -inf
        self.load_seconds = 1.0
        self.measured: dict[str, int] = {}  # bytes by pool that it was last seen to hold
        self.asked_at: float | None = None  # by the operator, to be loaded without a request
        self.failures = 0
        self.cool_until = -inf
        self.cause: str | None = None  # why it could not be loaded
        self.emptied: asyncio.Event | None = None  # somebody waits for its last request to end
        self.leaving_for_good = False
        self.successor: ModelSpec | None = None  # what it becomes once it has left
        self.renew(spec)

    def renew(self, spec: ModelSpec) -> None:
        """Take another spec, while nothing runs."""
        self.spec, self.successor = spec, None
        self.slots = SlotLedger(spec.engines, spec.grid, spec.hold_gain)
        self.needs = dict(spec.needs)
        self.causes: dict[str, str] = {}  # why an engine is gone, one sentence each

    @property
    def name(self) -> str:
        """What clients name it."""
        return self.spec.name

    def step(self, step: Step) -> None:
        """Move on in the table of residency."""
        self.residency = after(self.residency, step)

    def highest_running(self) -> Tier | None:
        """The highest tier that runs here."""
        return max((lease.tier for lease in self.running.values()), default=None)

    def count_running(self, tier: Tier) -> int:
        """How many of a tier run here."""
        return sum(lease.tier is tier for lease in self.running.values())

    def failed(self, now: float, cause: str) -> None:
        """A load failed, or all its engines did: cool down."""
        self.cause = cause
        self.cool_until = now + min(_COOL_S * 2**self.failures, _COOL_CAP_S)
        self.failures += 1

    def holder(self, held: Mapping[str, int]) -> Holder:
        """As the policy sees one that holds memory."""
        return Holder(
            self.name,
            held,
            self.residency,
            self.spec.pinned and not self.leaving_for_good,
            self.highest_running(),
            self.line.highest(),
            (self.served[0], self.served[1], self.served[2], self.served[3]),
            self.loaded_for,
            self.loaded_at,
            self.idle_since,
            self.load_seconds,
            self.spec.idle_unload,
        )

    def wanted(self) -> Wanted | None:
        """As the policy sees one that is waited for and not in memory; None when nobody waits."""
        tier = self.line.highest()
        if tier is not None:
            # One that has just had its turn is not passed over, however long its waiters have stood in line.
            return Wanted(self.name, self.needs, tier, max(self.line.oldest(tier), self.absent_since))
        if self.asked_at is not None:
            return Wanted(self.name, self.needs, Tier.FREE, self.asked_at)
        return None
