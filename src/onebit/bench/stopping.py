"""Ctrl-C in a measurement: it ends the load and the engines, and what was measured is still shown."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Iterator
from contextlib import contextmanager

import anyio


@contextmanager
def stoppable() -> Iterator[anyio.CancelScope]:
    """A scope that the first Ctrl-C or TERM cancels; a second one ends the program as it always does."""
    loop = asyncio.get_running_loop()
    signals = (signal.SIGINT, signal.SIGTERM)
    with anyio.CancelScope() as scope:

        def stop(signum: signal.Signals) -> None:
            loop.remove_signal_handler(signum)
            scope.cancel()

        for signum in signals:
            loop.add_signal_handler(signum, stop, signum)
        try:
            yield scope
        finally:
            for signum in signals:
                loop.remove_signal_handler(signum)
