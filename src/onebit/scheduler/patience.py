"""How long anyone waits: deadlines, and the lift that long waiting may bring. One timer for all who wait."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from onebit.scheduler.refusals import too_late
from onebit.tiers import Tier

if TYPE_CHECKING:
    from onebit.scheduler.gate import Gate

_LIFT_EVERY_S = 1.0
_LEAST_S = 0.001  # rounding may leave nothing of a wait that is not over: that must not become a busy loop


class Patience:
    """Asleep while nobody waits. All have the same patience, so the first of each queue is the first to lose it."""

    def __init__(self, gate: Gate) -> None:
        self.awake = False
        self._gate = gate
        self._timer: asyncio.TimerHandle | None = None

    def wake(self) -> None:
        """Somebody waits: look when they will have waited for too long."""
        self.awake = True
        self._look_in(self._gate.limits.max_wait)

    def look_again(self) -> None:
        """The limits have changed: who waits may have waited for too long by now."""
        if self.awake:
            self._look_in(0)

    def _look_in(self, seconds: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        if self._gate.limits.max_wait_boost is not None:
            seconds = min(seconds, _LIFT_EVERY_S)
        self._timer = asyncio.get_running_loop().call_later(max(0.0, seconds), self._look)

    def _look(self) -> None:
        self._timer = None
        gate = self._gate
        now, limits = gate.clock(), gate.limits
        oldest = None
        for model in tuple(gate.models.values()):
            for lease in model.line.since(now - limits.max_wait):
                gate.refuse(lease, too_late(model, now, limits.max_wait))
            if limits.max_wait_boost is not None:
                for lease in model.line.to_lift(now - limits.max_wait_boost):
                    gate.lifted(lease, Tier(lease.tier + 1))
                    lease.lifted = now
            gate.hand_over(model)  # those who left kept engines from those behind them
            if (first := model.line.longest()) is not None:
                oldest = first if oldest is None else min(oldest, first)
        if oldest is None:
            self.awake = False
        else:
            self._look_in(max(_LEAST_S, oldest + limits.max_wait - gate.clock()))
