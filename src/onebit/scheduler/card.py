"""A card, as the gate sees it: is there work above background on it, and which background requests must yield?"""

from __future__ import annotations

from collections.abc import Iterable

from onebit.scheduler.lease import Lease, Stop
from onebit.tiers import Tier


class Card:
    """Counts the requests above background that run or wait for it; knows the background ones that run."""

    __slots__ = ("above", "background", "name")

    def __init__(self, name: str) -> None:
        self.name = name
        self.above = 0
        self.background: dict[Lease, None] = {}

    def came(self) -> None:
        """A request above background runs or waits: what is background here ends at once."""
        self.above += 1
        if self.background:
            for lease in tuple(self.background):
                lease.stop(Stop.PREEMPTED)

    def check_invariants(self, running: Iterable[Lease], waiting: Iterable[Lease]) -> None:
        """The counts are those of the requests there are. Raises AssertionError."""
        running, waiting = tuple(running), tuple(waiting)
        above = sum(lease.tier is not Tier.BACKGROUND for lease in running + waiting)
        if above != self.above:
            raise AssertionError(f"{self.name}: {self.above} counted above background, {above} there")
        for lease in running:
            if lease.tier is Tier.BACKGROUND and lease.stopped is None and above:
                raise AssertionError(f"{self.name}: background work runs beside a higher tier")
            if (lease in self.background) != (lease.tier is Tier.BACKGROUND):
                raise AssertionError(f"{self.name}: a background request is not known as one")
