"""The line: requests that wait, first come first served, bounded.

Synchronous and without a clock; the gate hands out what the line decides.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Set
from dataclasses import dataclass, field

import anyio

from onebit.errors import OnebitError
from onebit.scheduler.choose import Need
from onebit.scheduler.slots import Claim


@dataclass(eq=False, slots=True)
class Waiter:
    """One waiting request, with an event of its own. Exactly one of `claim` and `error` is set before the event."""

    need: Need
    event: anyio.Event = field(default_factory=anyio.Event)
    claim: Claim | None = None
    error: OnebitError | None = None


class Line:
    """FIFO of waiters. Joining and leaving are O(1): a dict keeps insertion order."""

    def __init__(self) -> None:
        self._waiters: dict[Waiter, None] = {}

    def __len__(self) -> int:
        return len(self._waiters)

    def __iter__(self) -> Iterator[Waiter]:
        return iter(tuple(self._waiters))

    def join(self, waiter: Waiter, *, front: bool = False) -> None:
        """Stand at the end, or in front: only for a request whose engine died under it."""
        if front:
            self._waiters = {waiter: None, **self._waiters}
        else:
            self._waiters[waiter] = None

    def leave(self, waiter: Waiter) -> bool:
        """Step out. False when the waiter was not in line any more: it had been served."""
        if waiter in self._waiters:
            del self._waiters[waiter]
            return True
        return False

    def hand_over(
        self,
        claim: Callable[[Need, Set[str]], Claim | None],
        contenders: Callable[[Need], frozenset[str]],
    ) -> None:
        """Give free slots to waiters in their order, until nothing fits.

        A waiter that must go on waiting blocks the engines it could use for everyone behind it: else a request
        for four slots would starve behind a stream of requests for one. A waiter that fits elsewhere may pass.
        """
        blocked: frozenset[str] = frozenset()
        everyone: frozenset[str] | None = None
        for waiter in self:
            granted = claim(waiter.need, blocked)
            if granted is not None:
                del self._waiters[waiter]
                waiter.claim = granted
                waiter.event.set()
                continue
            blocked |= contenders(waiter.need)
            everyone = contenders(Need()) if everyone is None else everyone
            if blocked >= everyone:
                return
