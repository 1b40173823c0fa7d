"""What an admission costs: onebit's gate beside a broadcast gate, anyio's, and a bare line of futures.

Each of N waiters, all there from the beginning, takes one of 8 slots, lets the loop turn once, and gives it back.
The contenders take turns within each round, so that what the machine does meanwhile hits all alike.
"""

from __future__ import annotations

import asyncio
import gc
import random
import statistics
from collections import deque
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from time import perf_counter, thread_time

import anyio

from onebit.memory.policy import Holder, Rules, Wanted, arrange
from onebit.memory.residency import Step
from onebit.scheduler.choose import EngineView
from onebit.scheduler.gate import Gate, Limits
from onebit.scheduler.lease import Ask
from onebit.scheduler.model import Model, ModelSpec
from onebit.tiers import Tier

SLOTS = 8
FIFO, BROADCAST = "bare FIFO of futures", "broadcast (notify_all)"
Admit = Callable[[int], AbstractAsyncContextManager[object]]
"""Makes the block that holds a slot, for waiter number n."""


@dataclass(frozen=True, slots=True)
class Run:
    """One contender's pass. `p99_over_ideal`: the 99th percentile of the waits, over that of a perfect line."""

    rate: float  # admissions per second of the one thread's CPU time: neighbours on the machine count less
    p99_over_ideal: float


def onebit_gate() -> Admit:
    """The real one, with tiers, keys that take turns, deadlines, a bound and a memory: everything on."""
    model = Model(ModelSpec("m", (EngineView("a", SLOTS),), {"card": 1}, frozenset({"card"})))
    model.step(Step.LOAD)
    model.step(Step.LOADED)
    gate = Gate([model], Limits(max_waiting=1_000_000, max_in_flight=(("key-0", SLOTS),)))
    tiers = (Tier.PAID, Tier.SUBSCRIBER, Tier.FREE)
    asks = [Ask("m", tier=tiers[i % 3], key=f"key-{i % 10}") for i in range(30)]
    return lambda number: gate.admit(asks[number % 30])


def fifo() -> Admit:
    """The least there can be: a count and a line of futures, no tiers, no deadlines, no cancellation."""
    free = SLOTS
    line: deque[asyncio.Future[None]] = deque()

    class Slot:
        async def __aenter__(self) -> None:
            nonlocal free
            if free and not line:
                free -= 1
                return
            future = asyncio.get_running_loop().create_future()
            line.append(future)
            await future

        async def __aexit__(self, *_: object) -> None:
            nonlocal free
            if line:
                line.popleft().set_result(None)
            else:
                free += 1

    return lambda _: Slot()


def broadcast() -> Admit:
    """What many servers do: everyone is woken, one gets it, the rest go back to sleep."""
    free = SLOTS
    condition = asyncio.Condition()

    @asynccontextmanager
    async def slot() -> AsyncIterator[None]:
        nonlocal free
        async with condition:
            while not free:
                await condition.wait()
            free -= 1
        try:
            yield
        finally:
            async with condition:
                free += 1
                condition.notify_all()

    return lambda _: slot()


def semaphore() -> Admit:
    """anyio.Semaphore."""
    held = anyio.Semaphore(SLOTS, fast_acquire=True)
    return lambda _: held


def limiter() -> Admit:
    """anyio.CapacityLimiter."""
    held = anyio.CapacityLimiter(SLOTS)
    return lambda _: held


CONTENDERS: Mapping[str, Callable[[], Admit]] = {
    "onebit": onebit_gate,
    FIFO: fifo,
    "anyio.Semaphore": semaphore,
    "anyio.CapacityLimiter": limiter,
    BROADCAST: broadcast,
}


async def one_run(make: Callable[[], Admit], waiters: int) -> Run:
    """All waiters through a fresh gate."""
    admit = make()
    waits: list[float] = []

    async def waiter(number: int) -> None:
        async with admit(number):
            waits.append(perf_counter() - began)
            await asyncio.sleep(0)

    tasks = [asyncio.ensure_future(waiter(number)) for number in range(waiters)]
    gc.collect()
    began, worked = perf_counter(), thread_time()
    await asyncio.gather(*tasks)
    seconds, worked = perf_counter() - began, thread_time() - worked
    waits.sort()
    ideal = 0.99 * seconds  # in a line that moves evenly, 99 % have been served after 99 % of the time
    return Run(waiters / worked, waits[int(0.99 * waiters)] / ideal)


async def measure(waiters: int, rounds: int, names: Sequence[str]) -> dict[str, list[Run]]:
    """`rounds` interleaved runs of each contender, after one that warms up."""
    found: dict[str, list[Run]] = {name: [] for name in names}
    for number in range(-1, rounds):
        order = list(names)
        random.Random(number).shuffle(order)  # noqa: S311
        for name in order:
            run = await one_run(CONTENDERS[name], waiters)
            if number >= 0:
                found[name].append(run)
    return found


def victim_choice_ms(models: int, rounds: int = 50) -> float:
    """Milliseconds that the policy takes to choose whom to evict, of `models` in memory; the median."""
    chance = random.Random(1)  # noqa: S311
    holders = [
        Holder(
            f"m{i}",
            {"card": chance.randrange(1, 20)},
            idle_since=chance.random() * 100,
            loaded_at=0.0,
            load_seconds=chance.random() * 30,
            served=(0.0, chance.random() * 100, chance.random() * 100, chance.random() * 50),
        )
        for i in range(models)
    ]
    total = sum(h.bytes["card"] for h in holders)
    wanted = [Wanted("new", {"card": 40}, Tier.PAID, 100.0)]
    times = []
    for _ in range(rounds):
        began = perf_counter()
        decision = arrange({"card": total}, holders, wanted, Rules(), 120.0)
        times.append((perf_counter() - began) * 1000)
        if not decision.evict:
            raise AssertionError("nobody was chosen")
    return statistics.median(times)
