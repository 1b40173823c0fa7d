"""The four tiers of a request, highest first: paid, subscriber, free, background."""

from __future__ import annotations

from enum import IntEnum


class Tier(IntEnum):
    """Who goes first. A higher number does; background runs only on an otherwise idle card, and always yields."""

    BACKGROUND = 0
    FREE = 1
    SUBSCRIBER = 2
    PAID = 3

    @property
    def label(self) -> str:
        """As people write it: `paid`."""
        return self.name.lower()


TIERS = {tier.label: tier for tier in sorted(Tier, reverse=True)}
"""By label, highest first."""
