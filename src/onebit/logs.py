"""The server's log: one line for each request and each event, for people or as JSON. Never a prompt, never a key.

Whatever reads stderr may be slow, or may never read at all: lines go through a bounded queue to a thread of their own,
which never blocks in a write, and what does not fit is dropped and counted.
"""

from __future__ import annotations

import io
import json
import logging
import os
import select
import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any, Generic, TypeVar

from onebit.router.journal import Entry

_QUEUE_LINES = 10_000  # about 3 MB; a reader that is behind by more has gone away
_PIECE = 4096  # PIPE_BUF: what poll(2) calls writable takes so much without blocking
_GATHER_S = 0.05  # after the first line, for those that come with it
_PAUSE_S = 0.25  # between two looks at a pipe that is full, and for being told to end
_LAST_LINES_S = 1.0  # for the rest of the queue when the server ends

Span = tuple[str, str]
"""Text and its style, in Rich's words."""
T = TypeVar("T")


# --- what a line says --------------------------------------------------------------------------------------------


def request_fields(entry: Entry, seconds: float) -> dict[str, Any]:
    """All that is told of a request. Times in seconds, None: it did not come to that."""
    return {
        "id": entry.id,
        "key": entry.key or None,
        "tier": entry.tier or None,
        "model": entry.model or None,
        "engine": entry.engine or None,
        "path": entry.path,
        "wait": _since(entry.began, entry.admitted),
        "first_token": _since(entry.began, entry.first) if entry.admitted is not None else None,
        "prompt_tokens": entry.prompt_tokens,
        "tokens": entry.tokens,
        "preemptions": entry.preemptions,
        "outcome": entry.outcome,
        "status": entry.status or None,  # None: the client left before it got any
        "seconds": round(seconds, 4),
    }


def _since(began: float, end: float | None) -> float | None:
    return None if end is None else round(end - began, 4)


def as_json(record: logging.LogRecord) -> str:
    """One line of JSON. An event's own fields are those that `extra={"facts": …}` brought."""
    fields: dict[str, Any] = {
        "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z"),
        "level": record.levelname.lower(),
        "logger": record.name,
        "message": record.getMessage(),
    }
    entry = getattr(record, "entry", None)
    if isinstance(entry, Entry):
        fields |= request_fields(entry, getattr(record, "seconds", 0.0))
    fields |= getattr(record, "facts", {})
    if record.exc_info and record.exc_info[0] is not None:
        fields["exception"] = logging.Formatter().formatException(record.exc_info)
    return json.dumps(fields, ensure_ascii=False, default=str)


_LEVEL_STYLES = {logging.WARNING: "yellow", logging.ERROR: "red", logging.CRITICAL: "red"}


def for_people(record: logging.LogRecord) -> list[Span]:
    """One line, what matters first; a request that neither waited nor failed fits 80 columns."""
    time = (f"{datetime.fromtimestamp(record.created):%H:%M:%S} ", "dim")
    entry = getattr(record, "entry", None)
    if isinstance(entry, Entry):
        return [time, *_request_line(entry, getattr(record, "seconds", 0.0))]
    style = _LEVEL_STYLES.get(record.levelno, "")
    word = f"{record.levelname.lower()}: " if style else ""
    spans = [time, (word, style), (_printable(record.getMessage().rstrip("\n")), "")]
    if record.exc_info and record.exc_info[0] is not None:
        spans.append(("\n" + logging.Formatter().formatException(record.exc_info), "dim"))
    return spans


def _request_line(entry: Entry, seconds: float) -> Iterator[Span]:
    good = entry.outcome == "ok" and entry.status < 400
    style = "green" if good else "yellow" if entry.status < 500 else "red"
    yield (f"{entry.status or '---'}", style)
    yield (f" {_seconds(seconds):>6} s", "")
    yield (f" {entry.tokens:>5} tok" if entry.tokens is not None else " " * 10, "")
    yield (f" {entry.model or entry.path}" + (f"/{entry.engine}" if entry.engine else ""), "bold")
    yield ("".join(f" {word}" for word in (entry.tier, entry.key) if word), "cyan")
    if not good:
        yield (f" {entry.outcome}", style)
    if entry.admitted is not None and entry.admitted - entry.began >= 0.005:
        yield (f" wait {_seconds(entry.admitted - entry.began)}", "")
    if entry.first is not None and entry.admitted is not None and entry.began + seconds - entry.first >= 0.005:
        yield (f" first {_seconds(entry.first - entry.began)}", "")  # else it came in one piece
    if entry.preemptions:
        yield (f" gave way {entry.preemptions}×", "")
    yield (f" {entry.id}", "dim")


def _seconds(seconds: float) -> str:
    return f"{seconds:.2f}" if seconds < 100 else f"{seconds:.0f}"


def _printable(text: str) -> str:
    """Without control characters: causes quote what engines printed."""
    return "".join(c for c in text if c.isprintable() or c == "\n")


def plain(spans: list[Span]) -> str:
    """The text alone."""
    return "".join(text for text, _ in spans)


def lost_record(count: int) -> logging.LogRecord:
    """The line that stands for those which are missing."""
    text = f"{count} lines of the log were dropped: whatever reads it is too slow"
    return logging.LogRecord("onebit.logs", logging.WARNING, "", 0, text, None, None)


# --- the way of a line -------------------------------------------------------------------------------------------


class Sink(Generic[T]):
    """Takes lines without ever blocking; `emit` gets them on a thread of the sink's own."""

    def __init__(self, emit: Callable[[T], None], lost: Callable[[int], T], limit: int = _QUEUE_LINES) -> None:
        """`emit` may raise OSError: its line is lost. `lost`: the line that says how many were."""
        self.dropped = 0
        self._emit = emit
        self._lost = lost
        self._limit = limit
        self._queue: deque[T] = deque()
        self._more = threading.Condition()
        self._ended = False
        self._thread = threading.Thread(target=self._run, name="log", daemon=True)
        self._thread.start()

    def put(self, line: T) -> None:
        """Take a line, or drop it when the queue is full."""
        with self._more:
            if self._ended or len(self._queue) >= self._limit:
                self.dropped += 1
            else:
                self._queue.append(line)
                if len(self._queue) == 1:
                    self._more.notify()

    def end(self) -> None:
        """Write what is left, within a second."""
        with self._more:
            self._ended = True
            self._more.notify()
        self._thread.join(_LAST_LINES_S)

    def _run(self) -> None:
        told = 0
        while True:
            with self._more:
                if not self._queue and not self._ended:
                    while not self._queue and not self._ended:
                        self._more.wait()
                    # Woken for each line, this thread and the loop take the interpreter from each other all the time.
                    self._more.wait_for(lambda: self._ended, _GATHER_S)
                if not self._queue:
                    return
                line, dropped = self._queue.popleft(), self.dropped
            try:
                self._emit(line)
                if dropped > told:
                    self._emit(self._lost(dropped - told))
                    told = dropped
            except (OSError, ValueError):  # a full disk, a reader that has gone, a file that was closed
                self.dropped += 1


class SinkFile(io.TextIOBase):
    """A sink as a file to print to."""

    def __init__(self, sink: Sink[str]) -> None:
        self._sink = sink

    def writable(self) -> bool:
        """As a file's."""
        return True

    def write(self, text: str) -> int:
        """As a file's."""
        self._sink.put(text)
        return len(text)


def to_pipe(fd: int) -> Callable[[str], None]:
    """Write to a descriptor, waiting where it is full. To be called on a thread that may be left behind.

    Past Python's own buffer: its lock, held by a thread that is stuck in a write, would end the process with a fatal
    error instead of an exit code.
    """

    def emit(text: str) -> None:
        data = memoryview(text.encode("utf-8", "replace"))
        poll = select.poll()
        poll.register(fd, select.POLLOUT)
        while data:
            if any(events & select.POLLOUT for _, events in poll.poll(_PAUSE_S * 1000)):
                data = data[os.write(fd, data[:_PIECE]) :]
            elif any(events & (select.POLLERR | select.POLLNVAL) for _, events in poll.poll(0)):
                raise BrokenPipeError("nobody reads the log")

    return emit


class _Handler(logging.Handler):
    def __init__(self, write: Callable[[logging.LogRecord], None]) -> None:
        super().__init__()
        self._write = write

    def emit(self, record: logging.LogRecord) -> None:
        try:
            self._write(record)
        except Exception:
            self.handleError(record)


@contextmanager
def logging_to(write: Callable[[logging.LogRecord], None]) -> Iterator[None]:
    """Everything that `onebit.*` logs from INFO on goes to `write`, and only there; of all others, from WARNING on."""
    logger, root = logging.getLogger("onebit"), logging.getLogger()
    handler, others = _Handler(write), _Handler(write)
    others.setLevel(logging.WARNING)
    before = logger.level, logger.propagate
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    logger.propagate = False  # else the root logger's handler would write each line again
    # Without a handler there, logging itself writes what uvicorn and asyncio complain of to stderr, from the event
    # loop: where nobody reads it, the whole server would stand still.
    root.addHandler(others)
    try:
        yield
    finally:
        root.removeHandler(others)
        logger.removeHandler(handler)
        logger.setLevel(before[0])
        logger.propagate = before[1]
