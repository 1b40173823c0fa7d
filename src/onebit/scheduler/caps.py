"""How many requests of an API key may run at once."""

from __future__ import annotations

from collections.abc import Iterable, Mapping


class Caps:
    """Counts what runs of the keys that have a bound. Keys without one cost a look into an empty dict."""

    __slots__ = ("full", "limits", "running")

    def __init__(self, limits: Mapping[str, int], running: Iterable[str]) -> None:
        """`limits`: by key name. `running`: the key of each request that runs now."""
        self.limits = dict(limits)
        self.running = dict.fromkeys(self.limits, 0)
        self.full: set[str] = {key for key, limit in self.limits.items() if limit <= 0}  # may not run more now
        for key in running:
            self.began(key)

    def began(self, key: str) -> None:
        """One more runs."""
        if key in self.limits:
            self.running[key] += 1
            if self.running[key] >= self.limits[key]:
                self.full.add(key)

    def ended(self, key: str) -> bool:
        """One has ended. True when the key may run more now, and could not before."""
        if key not in self.limits:
            return False
        self.running[key] -= 1
        if self.running[key] < self.limits[key] and key in self.full:
            self.full.discard(key)
            return True
        return False
