"""The line of one model: those who wait, by tier; within a tier the API keys take turns; first come first served.

Synchronous and without a clock. Joining, leaving and serving cost the same for ten and for 50,000. Each key has a
deque, and each tier a ring of those whose turn it is. Whoever leaves is only marked, and dropped when the deque comes
to it: taking from the front of a deque takes 0.06 µs, from that of an ordered dict, whose middle can be left, 1.3
(measured).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Set

from onebit.scheduler.lease import Lease
from onebit.tiers import Tier

_HIGHEST_FIRST = tuple(sorted(Tier, reverse=True))
_NUMBERS = tuple(int(tier) for tier in _HIGHEST_FIRST)
_DEAD_KEPT = 32  # and as many as wait: more of those who left are not carried along


class Turn:
    """One key's queue within a tier. `live`: how many of it still wait."""

    __slots__ = ("key", "live", "queue", "tier")

    def __init__(self, key: str, tier: int) -> None:
        self.key = key
        self.tier = int(tier)  # as an index of a list, an enum's member takes four times as long
        self.live = 0
        self.queue: deque[Lease] = deque()

    def __iter__(self) -> Iterator[Lease]:
        """Those who wait, in their order."""
        return (lease for lease in self.queue if lease.turn is self)

    def first(self) -> Lease:
        """Who has waited longest. Somebody must wait."""
        queue = self.queue
        while queue[0].turn is not self:
            queue.popleft()
        return queue[0]


class Line:
    """Who waits, in the order in which they are served."""

    def __init__(self) -> None:
        # Lists indexed by tier: an enum member as a dict key is hashed in Python, 0.1 µs each time.
        self._rings: list[deque[Turn]] = [deque() for _ in Tier]
        self._by_key: list[dict[str, Turn]] = [{} for _ in Tier]
        self._counts = [0 for _ in Tier]
        self.size = 0  # as len(), without the call: it is asked for several times in each admission

    def __len__(self) -> int:
        return self.size

    def count(self, tier: Tier) -> int:
        """How many of one tier wait."""
        return self._counts[tier]

    def has(self, key: str) -> bool:
        """Does a request of this API key wait?"""
        return any(key in turns for turns in self._by_key)

    def highest(self) -> Tier | None:
        """The highest tier that waits."""
        return next((tier for tier in _HIGHEST_FIRST if self._counts[tier]), None)

    def oldest(self, tier: Tier) -> float:
        """When the longest-waiting one of `tier` came. Raises ValueError when nobody waits there."""
        return min(turn.first().joined for turn in self._by_key[tier].values())

    def join(self, lease: Lease) -> None:
        """Stand behind the others of one's key; one that had been served before, in front of all of its tier."""
        key = lease.ask.key
        turns = self._by_key[lease.tier]
        turn = turns.get(key)
        if turn is None:
            turn = turns[key] = Turn(key, lease.tier)
            self._rings[turn.tier].append(turn)
        if lease.front:
            turn.queue.appendleft(lease)
            self._rings[turn.tier].remove(turn)
            self._rings[turn.tier].appendleft(turn)
        else:
            turn.queue.append(lease)
        lease.turn = turn
        turn.live += 1
        self._counts[turn.tier] += 1
        self.size += 1

    def leave(self, lease: Lease) -> bool:
        """Step out. False when it was not in line any more."""
        turn = lease.turn
        if turn is None:
            return False
        lease.turn = None
        self._counts[turn.tier] -= 1
        self.size -= 1
        turn.live -= 1
        if not turn.live:
            del self._by_key[turn.tier][turn.key]
            self._rings[turn.tier].remove(turn)
        elif len(turn.queue) > 2 * turn.live + _DEAD_KEPT:
            turn.queue = deque(turn)
        return True

    def pop(self, lowest: int, passed: Set[str]) -> Lease | None:
        """`first`, and out of the line with it: the next turn is another key's."""
        counts = self._counts
        for tier in _NUMBERS:
            if tier < lowest:
                return None
            if not counts[tier]:
                continue
            ring = self._rings[tier]
            turn = ring[0]
            if passed and turn.key in passed:
                other = next((other for other in ring if other.key not in passed), None)
                if other is None:
                    continue
                turn = other
                ring.remove(turn)
                ring.appendleft(turn)
            lease = turn.queue.popleft()
            while lease.turn is not turn:  # it left
                lease = turn.queue.popleft()
            lease.turn = None
            counts[tier] -= 1
            self.size -= 1
            turn.live -= 1
            if not turn.live:
                ring.popleft()
                del self._by_key[tier][turn.key]
            elif len(ring) > 1:
                ring.rotate(-1)
            return lease
        return None

    def put_back(self, lease: Lease) -> None:
        """It was popped, and cannot be served: it stands where it stood."""
        front, lease.front = lease.front, True
        self.join(lease)
        lease.front = front

    def first(self, lowest: int, passed: Set[str]) -> Lease | None:
        """Who is next, of `lowest` and the tiers above it. `passed`: keys that may not run more now."""
        for tier in _NUMBERS:
            if tier < lowest:
                return None
            for turn in self._rings[tier]:
                if turn.key not in passed:
                    return turn.first()
        return None

    def in_order(self, lowest: int, passed: Set[str]) -> Iterator[Lease]:
        """All who may be served, in the order in which they would be. The line must not change meanwhile."""
        for tier in _NUMBERS:
            if tier < lowest:
                return
            turns = [iter(turn) for turn in self._rings[tier] if turn.key not in passed]
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
        return [lease for turn in self._turns() for lease in turn]

    def to_displace(self, tier: Tier, key: str) -> Lease | None:
        """Who gives up the last place in a full line to a newcomer: one of a lower tier, or of a key with more places.

        The youngest of the key that has the most, in the lowest tier; None: the newcomer has the weakest claim.
        """
        lowest = next((t for t in reversed(_HIGHEST_FIRST) if self._counts[t]), None)
        if lowest is None or lowest > tier:
            return None
        turns = self._by_key[lowest]
        longest = max(turns.values(), key=lambda turn: turn.live)
        own = turns[key].live if key in turns else 0
        if lowest == tier and (longest.key == key or longest.live <= own + 1):
            return None
        return next(lease for lease in reversed(longest.queue) if lease.turn is longest)

    def since(self, before: float) -> list[Lease]:
        """Those who joined at this time or earlier."""
        found = []
        for turn in self._turns():
            for lease in turn:
                if lease.joined <= before:
                    found.append(lease)
                elif not lease.front:  # one in front may have come later than those behind it
                    break
        return found

    def longest(self) -> float | None:
        """When the one who has waited longest joined; None: nobody waits."""
        times = []
        for turn in self._turns():
            for lease in turn:
                times.append(lease.joined)
                if not lease.front:
                    break
        return min(times, default=None)

    def to_lift(self, before: float) -> list[Lease]:
        """Those below the highest tier who came into theirs at this time or earlier."""
        below = (turn for turns in self._by_key[: _HIGHEST_FIRST[0]] for turn in turns.values())
        return [lease for turn in below for lease in turn if max(lease.joined, lease.lifted) <= before]

    def _turns(self) -> Iterator[Turn]:
        return (turn for turns in self._by_key for turn in turns.values())
