"""The line of one model: those who wait, by tier; within a tier the API keys take turns; first come first served.

Synchronous and without a clock. Joining, leaving and finding the next one cost the same for ten and for 50,000.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator

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
        self._size = 0

    def __len__(self) -> int:
        return self._size

    def __contains__(self, lease: Lease) -> bool:
        return lease in self._tiers[lease.tier].get(lease.ask.key, ())

    def count(self, tier: Tier) -> int:
        """How many of one tier wait."""
        return self._counts[tier]

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
        self._size += 1

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
        self._size -= 1
        return True

    def first(self, lowest: int, passed: Callable[[str], bool]) -> Lease | None:
        """Who is next, of `lowest` and the tiers above it. `passed`: keys that may not run more now."""
        for tier in _NUMBERS:
            if tier < lowest:
                return None
            if self._counts[tier]:
                for key, queue in self._tiers[tier].items():
                    if not passed(key):
                        return next(iter(queue))
        return None

    def in_order(self, lowest: int, passed: Callable[[str], bool]) -> Iterator[Lease]:
        """All who may be served, in the order in which they would be. The line must not change meanwhile."""
        for tier in _HIGHEST_FIRST:
            if tier < lowest:
                return
            turns = [iter(queue) for key, queue in self._tiers[tier].items() if not passed(key)]
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
        return [lease for keys in self._tiers for queue in keys.values() for lease in queue]

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

    def lift(self, before: float) -> list[Lease]:
        """Move those who joined before this time one tier up, and say who they are. The clock starts anew for them."""
        lifted = []
        for tier in _HIGHEST_FIRST[1:]:
            for queue in list(self._tiers[tier].values()):
                for lease in list(queue):
                    if lease.lifted >= before:
                        break  # those behind it came later
                    self.leave(lease)
                    lease.tier = Tier(tier + 1)
                    self.join(lease)
                    lifted.append(lease)
        return lifted
