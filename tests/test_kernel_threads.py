"""Several threads at once: results, exceptions, Ctrl-C, and where they run."""

from __future__ import annotations

import multiprocessing
import os
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import wait
from functools import partial

import pytest

from onebit.kernels import threads
from onebit.kernels.threads import help_with, together


def test_results_are_in_order_and_the_first_is_the_callers() -> None:
    barrier = threading.Barrier(4)

    def who(number: int) -> tuple[int, int]:
        barrier.wait(30)
        return number, threading.get_ident()

    results = together([partial(who, number) for number in range(4)])
    assert [number for number, _ in results] == [0, 1, 2, 3]
    assert results[0][1] == threading.get_ident()
    assert len({thread for _, thread in results}) == 4


def test_what_nobody_has_begun_the_caller_does(monkeypatch: pytest.MonkeyPatch) -> None:
    late: list[Callable[[], object]] = []
    monkeypatch.setattr(threads, "help_with", late.extend)
    done: list[int] = []
    together([partial(done.append, number) for number in range(3)])
    for work in late:
        work()
    assert done == [0, 1, 2]


def test_all_run_at_once_also_for_two_callers() -> None:
    """Each waits for all of the others."""
    barrier = threading.Barrier(6)
    works = [partial(barrier.wait, 30)] * 3
    other = threading.Thread(target=together, args=(works,))
    other.start()
    together(works)
    other.join()
    assert not barrier.broken


def test_without_threads_the_caller_does_it_all(monkeypatch: pytest.MonkeyPatch) -> None:
    def start(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    helpers = threads._Helpers()
    monkeypatch.setattr(threads, "_helpers", lambda: helpers)
    done: list[int] = []
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", start)
        together([partial(done.append, number) for number in range(3)])
    assert done == [0, 1, 2]
    drained = threading.Event()
    helpers.begin([drained.set])  # a thread can be started now, and finds what was left in the queue before this
    assert drained.wait(30)
    assert done == [0, 1, 2]


def test_two_callers_at_once() -> None:
    counts = [0, 0]

    def call(caller: int) -> None:
        for _ in range(200):
            counts[caller] += sum(together([lambda: 1] * 4))

    other = threading.Thread(target=call, args=(1,))
    other.start()
    call(0)
    other.join()
    assert counts == [800, 800]


def test_helpers_are_not_waited_for_where_that_was_not_asked() -> None:
    go_on, ended = threading.Event(), threading.Event()

    def works() -> None:
        assert go_on.wait(30)
        ended.set()

    help_with([works])
    assert not ended.is_set()
    go_on.set()
    assert ended.wait(30)


@pytest.mark.parametrize("bad", [0, 1])
def test_an_exception_comes_when_all_have_ended(bad: int) -> None:
    begun, ended = threading.Event(), threading.Event()

    def fails() -> None:
        assert begun.wait(30)
        raise ZeroDivisionError

    def ends() -> None:
        begun.set()
        ended.set()

    with pytest.raises(ZeroDivisionError):
        together([fails, ends] if bad == 0 else [ends, fails])
    assert ended.is_set()


def test_ctrl_c_is_felt_when_nobody_writes_any_more(monkeypatch: pytest.MonkeyPatch) -> None:
    """The caller of a merge puts the weight back as it was: what a thread wrote after that would stay."""
    begun, go_on, written = (threading.Event() for _ in range(3))

    def interrupted() -> None:
        assert begun.wait(30)
        raise KeyboardInterrupt

    def writes() -> None:
        begun.set()
        assert go_on.wait(30)
        written.set()

    def waiting(others: object) -> object:
        if not go_on.is_set():
            go_on.set()
            raise KeyboardInterrupt  # again
        return wait(others)  # type: ignore[arg-type]

    monkeypatch.setattr(threads, "wait", waiting)
    with pytest.raises(KeyboardInterrupt):
        together([interrupted, writes])
    assert written.is_set()


@pytest.mark.skipif(sys.platform != "linux", reason="there one cannot say where a thread runs")
def test_helpers_may_run_wherever_the_caller_may() -> None:
    """Whatever they were woken with."""
    home = os.sched_getaffinity(0)
    barrier = threading.Barrier(3)  # each on a thread of its own

    def where() -> set[int]:
        barrier.wait(30)
        return os.sched_getaffinity(0)

    for allowed in (home, {min(home)}, home):
        os.sched_setaffinity(0, allowed)
        try:
            for _ in range(3):
                assert together([where] * 3) == [allowed] * 3
        finally:
            os.sched_setaffinity(0, home)


@pytest.mark.skipif(sys.platform != "linux", reason="there one cannot say where a thread runs")
def test_helpers_are_woken_on_another_processor(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[int, set[int]]] = []
    monkeypatch.setattr(threads, "MOST_HELPERS", 1)  # else a second one may begin while the first is not back yet
    monkeypatch.setattr(threads, "_processors", lambda: {0, 1, 2})
    monkeypatch.setattr(threads, "_processor", lambda: 1)
    monkeypatch.setattr(threads, "_keep_to", lambda thread, processors: asked.append((thread, processors)))
    helpers = threads._Helpers()
    ran: list[int] = []
    for times in (1, 2):
        helpers.begin([lambda: ran.append(threading.get_native_id())])
        while len(ran) < times or not helpers._idle:  # it says so a moment later
            time.sleep(0.001)
    (helper,) = set(ran)
    told = [processors for thread, processors in asked if thread == helper]  # other tests' helpers may be about
    assert told == [{0, 1, 2}, {0, 2}, {0, 1, 2}]  # the first time it was not there yet


def _in_a_child() -> None:
    sys.exit(together([lambda: 1, lambda: 2]) != [1, 2])


@pytest.mark.skipif("fork" not in multiprocessing.get_all_start_methods(), reason="no fork here")
def test_a_forked_child_has_helpers_of_its_own() -> None:
    together([lambda: None] * 2)
    child = multiprocessing.get_context("fork").Process(target=_in_a_child)
    child.start()
    child.join(30)
    hung = child.exitcode is None
    child.kill()
    assert not hung
    assert child.exitcode == 0
