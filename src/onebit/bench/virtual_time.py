"""An event loop on which waiting takes no time: a day of arrivals is simulated in seconds."""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Coroutine
from typing import Any, TypeVar

_T = TypeVar("_T")

_TICK_S = 1e-9
"""Each turn of the loop takes this long. On a clock that stands still, a timer that is due but for the rounding of its
last digit comes back for ever (met: a deadline set as `joined + limit - now`, checked as `joined < now - limit`)."""


class _NoWaiting(selectors.SelectSelector):
    """Where the loop would sleep until its next timer, the clock is moved there."""

    clock = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        """Nothing is ever ready: simulations do no I/O."""
        if timeout is None:
            raise RuntimeError("all tasks wait for each other: this would never end")
        self.clock += max(_TICK_S, timeout)
        return []


class VirtualLoop(asyncio.SelectorEventLoop):
    """An asyncio loop with a clock of its own, in seconds from 0. For tasks that do no I/O."""

    def __init__(self) -> None:
        self._no_waiting = _NoWaiting()
        super().__init__(self._no_waiting)

    def time(self) -> float:
        """The simulated time."""
        return self._no_waiting.clock


def run_virtual(main: Coroutine[Any, Any, _T]) -> _T:
    """`asyncio.run` in simulated time."""
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        return runner.run(main)
