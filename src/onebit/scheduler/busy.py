"""Which cards have work above background on them, and which background requests run there and must yield."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence, Set

from onebit.scheduler.lease import Lease, Stop
from onebit.tiers import Tier

Placed = tuple[Set[str], Lease]  # a request and its model's cards


class Busy:
    """Counts, by card, the requests above background that run or wait; knows the background ones that run."""

    def __init__(self) -> None:
        self._above: defaultdict[str, int] = defaultdict(int)
        self._background: defaultdict[str, dict[Lease, None]] = defaultdict(dict)

    def idle(self, cards: Set[str]) -> bool:
        """May background work begin on all of these?"""
        return not any(self._above[card] for card in cards)

    def came(self, cards: Set[str]) -> None:
        """A request above background runs or waits for these: what is background there ends at once."""
        for card in cards:
            self._above[card] += 1
            for lease in tuple(self._background[card]):
                lease.stop(Stop.PREEMPTED)

    def went(self, cards: Set[str]) -> bool:
        """It neither runs nor waits any more. True when a card has fallen idle by that."""
        fell = False
        for card in cards:
            self._above[card] -= 1
            fell = fell or not self._above[card]
        return fell

    def began(self, cards: Set[str], lease: Lease) -> None:
        """A background request runs."""
        for card in cards:
            self._background[card][lease] = None

    def ended(self, cards: Set[str], lease: Lease) -> None:
        """It does not run any more."""
        for card in cards:
            self._background[card].pop(lease, None)

    def check_invariants(self, running: Sequence[Placed], waiting: Sequence[Placed]) -> None:
        """The counts are those of the requests there are. Raises AssertionError."""
        above: defaultdict[str, int] = defaultdict(int)
        for cards, lease in (*running, *waiting):
            for card in cards:
                above[card] += lease.tier is not Tier.BACKGROUND
        for card in above.keys() | self._above.keys():
            if above[card] != self._above[card]:
                raise AssertionError(f"{card}: {self._above[card]} counted above background, {above[card]} there")
        for cards, lease in running:
            if lease.tier is Tier.BACKGROUND and lease.stopped is None and any(above[card] for card in cards):
                raise AssertionError("background work runs beside a higher tier")
