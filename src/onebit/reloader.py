"""SIGHUP: read the config again, away from the event loop; or stop, when it was the terminal that went."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from time import monotonic
from typing import TypeVar

import anyio

from onebit import running
from onebit.errors import OnebitError
from onebit.offer import Offer
from onebit.reload import Parts, Proposal, apply

T = TypeVar("T")
Read = Callable[[Mapping[str, Offer]], Proposal]
"""Reads the config and plans its models, but those that are offered already. Blocks; raises OnebitError."""

_log = logging.getLogger("onebit.reload")


class Reloader:
    """Applies the config anew, each time it is asked to. What became of it is logged, and told in the run folder."""

    def __init__(self, server: Parts, read: Read, folder: Path) -> None:
        self._server = server
        self._read = read
        self._folder = folder
        self._asked = anyio.Event()

    def ask(self) -> None:
        """Once more. Asked while a reload runs: there is another one after it, for the file may have changed since."""
        self._asked.set()

    async def run(self) -> None:
        """Reload when asked, until cancelled."""
        while True:
            await self._asked.wait()
            self._asked = anyio.Event()
            outcome = {"began": monotonic(), **await self._reload()}
            try:
                running.tell_outcome(self._folder, outcome)
            except OSError as error:
                _log.error("the outcome of the reload could not be written: %s", error)

    async def _reload(self) -> dict[str, str | bool | None]:
        try:
            proposal = await _in_thread(lambda: self._read(dict(self._server.offers)))
            changes = apply(self._server, proposal)
        except OnebitError as error:
            _log.error("the config was not applied, nothing has changed: %s", error.message)
            return {"ok": False, "message": error.message, "hint": error.hint}
        except Exception as error:  # a bug, or a full disk, must not end a server that works
            _log.exception("the config was not applied")
            return {"ok": False, "message": f"{type(error).__name__}: {error}", "hint": "the server's log has more"}
        for warning in proposal.warnings:
            _log.warning("%s", warning)
        _log.info("the config was applied: %s", changes)
        return {"ok": True, "message": str(changes), "hint": None}


async def _in_thread(work: Callable[[], T]) -> T:
    """In a thread that does not hold up the end of the process: a download may take hours, and cannot be cancelled."""
    loop = asyncio.get_running_loop()
    future: asyncio.Future[T] = loop.create_future()

    def done(result: T | None, error: BaseException | None) -> None:
        if future.done():  # nobody waits any more
            return
        if error is not None:
            future.set_exception(error)
        else:
            future.set_result(result)  # type: ignore[arg-type]  # without an error there is one

    def run() -> None:
        result, failure = None, None
        try:
            result = work()
        except BaseException as error:
            failure = error
        with suppress(RuntimeError):  # the loop has ended
            loop.call_soon_threadsafe(done, result, failure)

    threading.Thread(target=run, name="reload", daemon=True).start()
    return await future


class HangUp:
    """What SIGHUP means: a reload, unless it comes because the terminal the server was started on has gone.

    Without this a server in a window that is closed would go on, out of sight, with the card. Started by `nohup`, it
    is meant to.
    """

    def __init__(self) -> None:
        self._had_terminal = _terminal() and signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN

    def is_the_end(self) -> bool:
        """Has the terminal gone?"""
        return self._had_terminal and not _terminal()


def _terminal() -> bool:
    try:
        os.close(os.open("/dev/tty", os.O_RDWR | os.O_NOCTTY))
    except OSError:
        return False
    return True
