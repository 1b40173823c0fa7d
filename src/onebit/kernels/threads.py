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
from functools import cache
from typing import TypeVar

T = TypeVar("T")


def help_with(work: Callable[[], object], helpers: int) -> None:
    """Have so many other threads call it, soon. Does not wait for them."""
    _helpers(helpers).begin([work] * helpers)


def together(works: Sequence[Callable[[], T]]) -> list[T]:
    """Run all of them at once, the first one on this thread. Their results, in order; the first exception, if any.

    Returns when all have ended, whatever happens: nobody writes to the caller's arrays any more. Ctrl-C comes after.
    """
    others: list[Future[T]] = []
    try:
        if len(works) > 1:
            others += _helpers(len(works) - 1).begin(works[1:])
        first = works[0]()
    finally:
        _outlast(others)
    return [first, *(other.result() for other in others)]


def _outlast(others: Sequence[Future[T]]) -> None:
    interrupted = None
    while any(not other.done() for other in others):
        try:
            wait(others)
        except KeyboardInterrupt as error:
            interrupted = error
    if interrupted is not None:
        raise interrupted


class _Helpers:
    """Threads that stay. Callers of the same number of them share them: their works take turns."""

    def __init__(self, count: int) -> None:
        self._idle: set[int] = set()
        self._pool = ThreadPoolExecutor(count, "onebit-kernel", lambda: self._idle.add(threading.get_native_id()))

    def begin(self, works: Sequence[Callable[[], T]]) -> list[Future[T]]:
        home = _processors()
        elsewhere = home - {_processor()}
        if elsewhere:
            for thread in tuple(self._idle):
                _keep_to(thread, elsewhere)
        return [self._pool.submit(self._run, work, home) for work in works]

    def _run(self, work: Callable[[], T], home: set[int]) -> T:
        thread = threading.get_native_id()
        self._idle.discard(thread)
        try:
            _keep_to(thread, home)
            return work()
        finally:
            self._idle.add(thread)


@cache
def _helpers(count: int) -> _Helpers:
    return _Helpers(count)


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
