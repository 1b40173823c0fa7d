"""The load: N users who ask without a pause (closed loop), or requests that come when they come (open loop)."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from time import perf_counter

from onebit.bench.answer import Answer
from onebit.bench.arrivals import Arrival


async def closed_loop(ask: Callable[[], Awaitable[Answer]], users: int, answers: int = 1) -> list[list[Answer]]:
    """`users` at once, each asks `answers` times, the next as soon as the last has ended. The answers by user."""

    async def user() -> list[Answer]:
        return [await ask() for _ in range(answers)]

    with _undisturbed():
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(user()) for _ in range(users)]
    return [task.result() for task in tasks]


async def open_loop(
    ask: Callable[[Arrival, float], Awaitable[Answer]],
    arrivals: Sequence[Arrival],
    done: Callable[[], None] = lambda: None,
    most: int = 4096,
) -> list[Answer]:
    """Send each request when it is due, whatever became of those before. The answers in order of arrival.

    `ask` gets the arrival and the time at which it is due.

    Times are counted from when a request was due, so a generator or a server that falls behind cannot hide it.
    At most `most` are open at once: a bound on sockets, which real users do not have; those over it are sent late.
    """
    places = asyncio.Semaphore(most)

    async def one(arrival: Arrival, due: float) -> Answer:
        await asyncio.sleep(max(0.0, due - perf_counter()))
        async with places:
            answer = await ask(arrival, due)
        done()
        return answer

    start = perf_counter() + 0.05
    with _undisturbed():
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(one(arrival, start + arrival.at)) for arrival in arrivals]
    return [task.result() for task in tasks]


@contextmanager
def _undisturbed() -> Iterator[None]:
    """No garbage collection while it is measured: a full one holds the time stamps of tokens back."""
    gc.collect()
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()
