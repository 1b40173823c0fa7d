"""Work that is done by several threads at once, of which the calling one is the first.

The others are woken on another processor than the caller's, where one can say so (Linux). Left to itself, Linux in a
virtual machine takes a processor that sleeps for one that the host took away (KVM's "preempted" flag is set for both),
and wakes the thread on the processor that the caller goes on working on. There it waits until the load is balanced, 1
to 4 ms later, which is longer than many a merge takes.
"""

from __future__ import annotations

import ctypes
import os
import sys
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import suppress
from functools import cache, partial
from typing import Generic, TypeVar

T = TypeVar("T")

MOST_HELPERS = 256  # more works than that take turns


def help_with(works: Sequence[Callable[[], object]]) -> None:
    """Have other threads call them, soon, if there can be any. Does not wait for that."""
    with suppress(RuntimeError):  # "can't start new thread", or Python is about to end
        _helpers().begin(works)


def together(works: Sequence[Callable[[], T]]) -> list[T]:
    """Run all of them at once, the first one on this thread. Their results, in order; the first exception, if any.

    What no other thread has begun when this one is done with its own, it does as well. Returns when all have ended,
    whatever happens: nobody writes to the caller's arrays any more. Ctrl-C comes after.
    """
    parts = [_Part(work) for work in works]
    try:
        if len(parts) > 1:
            help_with([part.run for part in parts[1:]])
    finally:
        in_spite_of_ctrl_c(partial(_finish, parts))
    return [part.done.result() for part in parts]


def in_spite_of_ctrl_c(work: Callable[[], object]) -> None:
    """Begin it again, after every Ctrl-C, until it has come to its end. Ctrl-C comes after."""
    interrupted = None
    while True:
        try:
            work()
            break
        except KeyboardInterrupt as error:
            interrupted = error
    if interrupted is not None:
        raise interrupted


class _Part(Generic[T]):
    """A work that is done once, by whoever comes first."""

    def __init__(self, work: Callable[[], T]) -> None:
        self._work = work
        self._taken = threading.Lock()
        self.done: Future[T] = Future()

    def run(self) -> None:
        if not self._taken.acquire(blocking=False):
            return
        try:
            self.done.set_result(self._work())
        except BaseException as error:
            self.done.set_exception(error)


def _finish(parts: Sequence[_Part[T]]) -> None:
    for part in parts:
        part.run()
    wait([part.done for part in parts])


class _Helpers:
    """Threads that stay, for the whole process; as many as were ever busy at once."""

    def __init__(self) -> None:
        self._idle: set[int] = set()
        self._pool = ThreadPoolExecutor(
            MOST_HELPERS, "onebit-kernel", lambda: self._idle.add(threading.get_native_id())
        )

    def begin(self, works: Sequence[Callable[[], object]]) -> None:
        home = _processors()
        elsewhere = home - {_processor()}
        if elsewhere:
            for thread in tuple(self._idle):
                _keep_to(thread, elsewhere)
        for work in works:
            self._pool.submit(self._run, work, home)

    def _run(self, work: Callable[[], object], home: set[int]) -> None:
        thread = threading.get_native_id()
        self._idle.discard(thread)
        try:
            _keep_to(thread, home)
            work()
        finally:
            self._idle.add(thread)


@cache
def _helpers() -> _Helpers:
    return _Helpers()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_helpers.cache_clear)  # a child has none of its parent's threads

if sys.platform == "linux":
    _processor: Callable[[], int] = ctypes.CDLL(None).sched_getcpu

    def _processors() -> set[int]:
        return os.sched_getaffinity(0)

    def _keep_to(thread: int, processors: set[int]) -> None:
        with suppress(OSError):  # it ended, or the processors were taken from us meanwhile: then it runs where it may
            os.sched_setaffinity(thread, processors)

else:

    def _processor() -> int:
        return -1

    def _processors() -> set[int]:
        return set()

    def _keep_to(thread: int, processors: set[int]) -> None:
        """Other systems are left alone."""
