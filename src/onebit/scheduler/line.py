"""The line of one model: those who wait, by tier; within a tier the API keys take turns; first come first served.

Synchronous and without a clock. Joining, leaving and finding the next one cost the same for ten and for 50,000.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Set

from onebit.scheduler.lease import Lease
from onebit.tiers import Tier

_HIGHEST_FIRST = tuple(sorted(Tier, reverse=True))
_NUMBERS = tuple(int(tier) for tier in _HIGHEST_FIRST)
_Queue = OrderedDict[Lease, None]  # lets anyone leave at once, and join in front


class Line:
    """Who waits, in the order in which they are served."""

    def __init__(self) -> None:
        # Lists indexed by tier: an enum member as a dict key is hashed in Python, 0.1 µs each time.
        self._tiers: list[OrderedDict[str, _Queue]] = [OrderedDict() for _ in _HIGHEST_FIRST]
        self._counts = [0] * len(_HIGHEST_FIRST)
        self.size = 0  # as len(), without the call: it is asked for several times in each admission

    def __len__(self) -> int:
        return self.size

    def __contains__(self, lease: Lease) -> bool:
        return lease in self._tiers[lease.tier].get(lease.ask.key, ())

    def count(self, tier: Tier) -> int:
        """How many of one tier wait."""
        return self._counts[tier]

    def has(self, key: str) -> bool:
        """Does a request of this API key wait?"""
        return any(key in keys for keys in self._tiers)

    def highest(self) -> Tier | None:
        """The highest tier that waits."""
        return next((tier for tier in _HIGHEST_FIRST if self._counts[tier]), None)

    def oldest(self, tier: Tier) -> float:
        """When the longest-waiting one of `tier` came. Raises ValueError when nobody waits there."""
        return min(next(iter(queue)).joined for queue in self._tiers[tier].values())

    def join(self, lease: Lease) -> None:
        """Stand behind the others of one's key; one that had been served before, in front of all of its tier."""
        keys = self._tiers[lease.tier]
        queue = keys.get(lease.ask.key)
        if queue is None:
            queue = keys[lease.ask.key] = OrderedDict()
        queue[lease] = None
        if lease.front:
            queue.move_to_end(lease, last=False)
            keys.move_to_end(lease.ask.key, last=False)
        self._counts[lease.tier] += 1
        self.size += 1

    def leave(self, lease: Lease, *, served: bool = False) -> bool:
        """Step out. False when it was not in line any more. `served`: the next turn is another key's."""
        tier = lease.tier
        keys = self._tiers[tier]
        key = lease.ask.key
        queue = keys.get(key)
        if queue is None or lease not in queue:
            return False
        del queue[lease]
        if not queue:
            del keys[key]
        elif served and len(keys) > 1:
            keys.move_to_end(key)
        self._counts[tier] -= 1
        self.size -= 1
        return True

    def first(self, lowest: int, passed: Set[str]) -> Lease | None:
        """Who is next, of `lowest` and the tiers above it. `passed`: keys that may not run more now."""
        counts = self._counts
        for tier in _NUMBERS:
            if tier < lowest:
                return None
            if counts[tier]:
                for key, queue in self._tiers[tier].items():
                    if key not in passed:
                        for lease in queue:
                            return lease
        return None

    def pop(self, lowest: int, passed: Set[str]) -> Lease | None:
        """`first`, and out of the line with it: the next turn is another key's."""
        counts = self._counts
        for tier in _NUMBERS:
            if tier < lowest:
                return None
            if counts[tier]:
                keys = self._tiers[tier]
                for key, queue in keys.items():
                    if key not in passed:
                        lease, _ = queue.popitem(last=False)
                        if not queue:
                            del keys[key]
                        elif len(keys) > 1:
                            keys.move_to_end(key)
                        counts[tier] -= 1
                        self.size -= 1
                        return lease
        return None

    def put_back(self, lease: Lease) -> None:
        """It was popped, and cannot be served: it stands where it stood."""
        front, lease.front = lease.front, True
        self.join(lease)
        lease.front = front

    def in_order(self, lowest: int, passed: Set[str]) -> Iterator[Lease]:
        """All who may be served, in the order in which they would be. The line must not change meanwhile."""
        for tier in _HIGHEST_FIRST:
            if tier < lowest:
                return
            turns = [iter(queue) for key, queue in self._tiers[tier].items() if key not in passed]
            while turns:
                waiting = []
                for turn in turns:
                    for lease in turn:
                        yield lease
                        waiting.append(turn)
                        break
                turns = waiting

    def everyone(self) -> list[Lease]:
        """All who wait, in no order that matters."""
        return [lease for queue in self._queues() for lease in queue]

    def to_displace(self, tier: Tier, key: str) -> Lease | None:
        """Who gives up the last place in a full line to a newcomer: one of a lower tier, or of a key with more places.

        The youngest of the key that has the most, in the lowest tier; None: the newcomer has the weakest claim.
        """
        lowest = next((t for t in reversed(_HIGHEST_FIRST) if self._counts[t]), None)
        if lowest is None or lowest > tier:
            return None
        keys = self._tiers[lowest]
        longest = max(keys, key=lambda name: len(keys[name]))
        if lowest == tier and (longest == key or len(keys[longest]) <= len(keys.get(key, ())) + 1):
            return None
        return next(reversed(keys[longest]))

    def since(self, before: float) -> list[Lease]:
        """Those who joined at this time or earlier."""
        found = []
        for queue in self._queues():
            for lease in queue:
                if lease.joined <= before:
                    found.append(lease)
                elif not lease.front:  # one in front may have come later than those behind it
                    break
        return found

    def longest(self) -> float | None:
        """When the one who has waited longest joined; None: nobody waits."""
        times = []
        for queue in self._queues():
            for lease in queue:
                times.append(lease.joined)
                if not lease.front:
                    break
        return min(times, default=None)

    def to_lift(self, before: float) -> list[Lease]:
        """Those below the highest tier who came into theirs at this time or earlier."""
        return [
            lease
            for tier in _HIGHEST_FIRST[1:]
            for queue in self._tiers[tier].values()
            for lease in queue
            if max(lease.joined, lease.lifted) <= before
        ]

    def _queues(self) -> Iterator[_Queue]:
        return (queue for keys in self._tiers for queue in keys.values())
