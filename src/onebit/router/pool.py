"""What is served: a model and its engines, and what an engine's state means to the gate."""

from __future__ import annotations

from dataclasses import dataclass

from onebit.engines.spec import EngineSpec
from onebit.engines.state import State
from onebit.engines.supervisor import Engine
from onebit.router.adapters import Adapters
from onebit.scheduler.choose import EngineView, Standing


@dataclass(slots=True)
class Pool:
    """A model and all that answers for it. Another config gives it other engines, when the old ones have ended."""

    model: str
    context: int  # tokens in each slot
    created: int  # Unix time
    engines: dict[str, Engine]
    adapters: Adapters | None = None  # the adapters that requests may choose

    def ready(self, left: str | None = None) -> Engine | None:
        """Any engine that answers, for what needs no slot; `left`, which died under it, last. None: none does."""
        for engine in sorted(self.engines.values(), key=lambda e: e.spec.name == left):
            if engine.client is not None and not engine.doubted:
                return engine
        return None


def view_of(spec: EngineSpec) -> EngineView:
    """An engine as the choice sees it, before it has started."""
    return EngineView(
        spec.name,
        spec.slots,
        standing=Standing.COMING,
        rank=spec.rank,
        row_limit=spec.row_limit,
        rows_per_sequence=spec.rows_per_sequence,
        drafting=spec.draft is not None,
    )


_STANDINGS = {
    State.STARTING: Standing.COMING,
    State.READY: Standing.OPEN,
    State.CRASHED: Standing.COMING,
    State.DRAINING: Standing.GONE,
    State.STOPPED: Standing.GONE,
    State.FAILED: Standing.GONE,
}


def standing_of(engine: Engine) -> Standing:
    """What an engine's state means for those who wait."""
    standing = _STANDINGS[engine.state]
    return Standing.COMING if engine.doubted and standing is Standing.OPEN else standing
