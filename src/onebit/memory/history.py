"""What the memory has seen: loads, failures, evictions, as numbers."""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass, field

from onebit.tiers import Tier


@dataclass(slots=True)
class Loads:
    """One model's."""

    loaded: int = 0
    failed: int = 0
    seconds: float = 0.0


@dataclass(slots=True)
class History:
    """Counts since the start. An unload: (model, reason, highest tier that ran, highest that wanted the place)."""

    loads: defaultdict[str, Loads] = field(default_factory=lambda: defaultdict(Loads))
    unloads: Counter[tuple[str, str, str, str]] = field(default_factory=Counter)

    def loaded(self, name: str, seconds: float) -> None:
        """A load succeeded."""
        self.loads[name].loaded += 1
        self.loads[name].seconds += seconds

    def failed(self, name: str) -> None:
        """A load failed, or all engines of a loaded model did."""
        self.loads[name].failed += 1

    def unloaded(self, name: str, reason: str, tier: Tier | None, wanted: Tier | None) -> None:
        """A model was told to go."""
        self.unloads[
            name, reason, tier.label if tier is not None else "", wanted.label if wanted is not None else ""
        ] += 1
