"""A child process that cannot outlive us, whose output is always drained and whose end is always noticed."""

from __future__ import annotations

import asyncio
import ctypes
import logging
import os
import re
import signal
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from logging.handlers import RotatingFileHandler
from pathlib import Path
from typing import IO

import anyio

_RING_LINES = 200  # kept for diagnosing an exit; llama-server's start prints about 60
_LINE_BYTES = 4096  # longer lines are cut: an engine that prints garbage must not fill our memory
_LOG_BYTES = 8 << 20
_LOG_FILES = 3

_PR_SET_PDEATHSIG = 1
_libc = ctypes.CDLL(None, use_errno=True) if sys.platform == "linux" else None
_LISTENING = re.compile(rb"listening on http://127\.0\.0\.1:(\d+)")


def die_with_parent(parent: int, signum: signal.Signals) -> Callable[[], None]:
    """For the child, between fork and exec: the kernel sends it `signum` when the parent ends, even by SIGKILL.

    The signal is tied to the *thread* that forked, so children are started from the main thread only.
    """
    prctl = _libc.prctl if _libc is not None else None

    def prepare() -> None:
        if prctl is not None:
            prctl(_PR_SET_PDEATHSIG, signum, 0, 0, 0)
            if os.getppid() != parent:  # it died before the call
                os._exit(1)

    return prepare


class Child:
    """A started process in its own group. Must be made on the event loop's thread."""

    def __init__(self, argv: Sequence[str], env: Mapping[str, str], log: Path, *, nice: int = 0) -> None:
        """Start `argv`, `nice` steps below our own priority. Raises OSError when it cannot be executed."""
        self._loop = asyncio.get_running_loop()
        self._exited = anyio.Event()
        self._ring: deque[str] = deque(maxlen=_RING_LINES)
        self.port: int | None = None  # from the log line, when the engine chose one
        self._log = _open_log(log)
        try:
            self._process = subprocess.Popen(
                list(argv),
                env=dict(env),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                start_new_session=True,  # its own group: a Ctrl-C at the terminal reaches us, not the engines
                preexec_fn=die_with_parent(os.getpid(), signal.SIGKILL),  # one system call, prepared before the fork
            )
        except BaseException:
            self._log.close()
            raise
        if nice:
            with suppress(OSError):  # before it has threads, which inherit it
                os.setpriority(os.PRIO_PROCESS, self._process.pid, os.getpriority(os.PRIO_PROCESS, 0) + nice)
        self._output: IO[bytes] = self._process.stdout  # type: ignore[assignment]  # we asked for a pipe
        self._reader = threading.Thread(target=self._drain, name=f"log of {self.pid}", daemon=True)
        self._reader.start()
        threading.Thread(target=self._reap, name=f"end of {self.pid}", daemon=True).start()

    @property
    def pid(self) -> int:
        """The process id, which is its group's id too."""
        return self._process.pid

    @property
    def returncode(self) -> int | None:
        """As subprocess gives it; None while it runs."""
        return self._process.returncode

    def tail(self) -> list[str]:
        """The last lines it printed."""
        return list(self._ring)

    async def wait(self) -> int:
        """Return its exit status when it has ended and its output was read."""
        await self._exited.wait()
        return self._process.wait()

    def send(self, signum: signal.Signals) -> None:
        """Signal its whole group; nothing happens when it is gone."""
        with suppress(ProcessLookupError):
            os.killpg(self.pid, signum)

    async def end(self, patience: float) -> int:
        """TERM, TERM again, KILL, `patience` seconds apart. Returns the exit status.

        llama-server ignores a first TERM for as long as a non-streaming request is pending (over 90 s measured);
        the second makes it exit at once.
        """
        for signum in (signal.SIGTERM, signal.SIGTERM, signal.SIGKILL):
            self.send(signum)
            with anyio.move_on_after(patience):
                return await self.wait()
        return await self.wait()

    def _drain(self) -> None:
        pipe = self._output
        while line := pipe.readline(_LINE_BYTES):
            if self.port is None and (found := _LISTENING.search(line)):
                self.port = int(found[1])
            text = line.decode("utf-8", "replace").rstrip("\n")
            self._ring.append(text)
            self._log.handle(logging.LogRecord("engine", logging.INFO, "", 0, text, None, None))
        pipe.close()
        with suppress(OSError):  # on a full disk it fails once more over the lines that could not be written
            self._log.close()

    def _reap(self) -> None:
        self._process.wait()
        self._reader.join(1.0)  # a grandchild may hold the pipe open; the exit must be told all the same
        with suppress(RuntimeError):  # the loop is closed: nobody waits any more
            self._loop.call_soon_threadsafe(self._exited.set)


class _QuietHandler(RotatingFileHandler):
    """A full disk must not stop an engine, nor fill the terminal with tracebacks."""

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802 - the library's name
        """Drop the line; the ring still has it."""


def _open_log(path: Path) -> logging.Handler:
    try:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        path.parent.chmod(0o700)
        handler: logging.Handler = _QuietHandler(path, maxBytes=_LOG_BYTES, backupCount=_LOG_FILES, encoding="utf-8")
    except OSError:
        return logging.NullHandler()
    handler.setFormatter(logging.Formatter("%(message)s"))
    return handler
