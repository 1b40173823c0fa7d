"""The book of bytes: which model holds how much of each pool of memory. Synchronous; it does no I/O."""

from __future__ import annotations

from collections.abc import Mapping

Bytes = Mapping[str, int]
"""Bytes by pool."""


class MemoryLedger:
    """What is reserved of each pool. A reservation stands from before a load until the memory was seen to be free."""

    def __init__(self, totals: Bytes) -> None:
        """`totals`: bytes that may be used, by pool."""
        self.totals = dict(totals)
        self._held: dict[str, dict[str, int]] = {}

    def reserve(self, model: str, needs: Bytes) -> None:
        """Set bytes aside for `model`. Raises LedgerError when they do not fit or it holds some already."""
        if model in self._held:
            raise LedgerError(f"{model} holds memory already")
        free = self.free()
        if short := [pool for pool, size in needs.items() if size > free.get(pool, 0)]:
            raise LedgerError(f"{model} does not fit into {', '.join(short)}")
        self._held[model] = dict(needs)

    def correct(self, model: str, measured: Bytes) -> None:
        """What was measured replaces what was estimated; it may be more than there is."""
        self._held[model] = {**self._held[model], **measured}

    def release(self, model: str) -> None:
        """Give the bytes back. Raises KeyError when it holds none: a bug, not an event."""
        del self._held[model]

    def held(self, model: str) -> Bytes:
        """Bytes that `model` holds, by pool; none: empty."""
        return self._held.get(model, {})

    def free(self) -> dict[str, int]:
        """Bytes left in each pool; negative where more was measured than there is."""
        used = self.used()
        return {pool: total - used[pool] for pool, total in self.totals.items()}

    def used(self) -> dict[str, int]:
        """Bytes set aside in each pool."""
        used = dict.fromkeys(self.totals, 0)
        for held in self._held.values():
            for pool, size in held.items():
                used[pool] += size
        return used

    def check_invariants(self) -> None:
        """No pool is unknown, no number negative. Raises AssertionError."""
        for model, held in self._held.items():
            if not held.keys() <= self.totals.keys() or any(size < 0 for size in held.values()):
                raise AssertionError(f"{model} holds {held} of {self.totals}")


class LedgerError(RuntimeError):
    """A reservation that the book cannot take: a bug in the caller, which must ask `free` first."""
