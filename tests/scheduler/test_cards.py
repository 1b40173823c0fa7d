"""Requests, slots and memory together, in any order of events, on steered time: nothing is lost or given twice."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Coroutine, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from onebit.errors import LoadFailed, OnebitError, Protected, QueueFull, WaitTooLong
from onebit.memory.ledger import MemoryLedger
from onebit.memory.policy import Rules
from onebit.memory.residency import Residency
from onebit.scheduler.audit import check
from onebit.scheduler.cards import Cards
from onebit.scheduler.choose import EngineView, Need, Standing
from onebit.scheduler.gate import Gate, Limits
from onebit.scheduler.lease import Ask, Stop
from onebit.scheduler.model import Model, ModelSpec
from onebit.tiers import Tier
from tests.support.virtual_time import VirtualTimeLoop, run_virtual

FREE, PAID, BACKGROUND = Tier.FREE, Tier.PAID, Tier.BACKGROUND


@dataclass
class World:
    """Loads and unloads that take their time, and fail when told to."""

    load_s: float = 1.0
    unload_s: float = 0.2
    grace_s: float = 5.0
    fails: set[str] = field(default_factory=set)
    loads: list[str] = field(default_factory=list)
    cards: Cards = None  # type: ignore[assignment]
    tasks: set[asyncio.Task[None]] = field(default_factory=set)
    leave: dict[str, asyncio.Event] = field(default_factory=dict)

    def load(self, name: str) -> None:
        self.loads.append(name)
        self.leave[name] = asyncio.Event()
        self._start(self._life(name))

    def unload(self, name: str) -> None:
        self.leave[name].set()

    def crash(self, name: str) -> None:
        """All engines of a loaded model have failed."""
        if self.cards.gate.models[name].residency is Residency.RESIDENT:
            self.cards.failed(name, "crashed")

    async def _life(self, name: str) -> None:
        await asyncio.sleep(self.load_s)
        if not self.leave[name].is_set():
            if name in self.fails:
                self.cards.failed(name, "out of memory")
            else:
                self.cards.gate.engine_changed(name, "a", Standing.OPEN)
                self.cards.loaded(name)
                await self.leave[name].wait()
        try:
            async with asyncio.timeout(self.grace_s):
                await self.cards.emptied(name)
        except TimeoutError:
            self.cards.stop_running(name)
            await self.cards.emptied(name)
        await asyncio.sleep(self.unload_s)
        self.cards.gone(name)

    def _start(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.ensure_future(work)
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)


RULES = Rules(protect=60, min_residency=0, max_hold=30)


def make(world: World, total: int, *specs: ModelSpec, rules: Rules = RULES, limits: Limits | None = None) -> Gate:
    loop = asyncio.get_running_loop()
    gate = Gate([Model(spec) for spec in specs], limits or Limits(), clock=loop.time)
    world.cards = Cards(gate, MemoryLedger({"card": total}), rules, world)
    return gate


def spec(name: str, size: int = 10, slots: int = 2, **more: object) -> ModelSpec:
    view = EngineView("a", slots, standing=Standing.COMING)
    return ModelSpec(name, (view,), {"card": size}, frozenset({"card"}), **more)  # type: ignore[arg-type]


@dataclass
class Request:
    """One client; `outcome` is what became of it."""

    gate: Gate
    ask: Ask
    work_s: float = 1.0
    outcome: str = ""
    admitted: float | None = None
    error: OnebitError | None = None
    task: asyncio.Task[None] | None = None

    def start(self) -> Request:
        self.task = asyncio.ensure_future(self.run())
        return self

    async def run(self) -> None:
        front = False
        try:
            while True:
                stopped = asyncio.Event()
                async with self.gate.admit(self.ask, front=front) as lease:
                    lease.on_stop(stopped.set)
                    self.admitted = asyncio.get_running_loop().time()
                    check(self.gate)
                    try:
                        async with asyncio.timeout(self.work_s):
                            await stopped.wait()
                    except TimeoutError:
                        self.outcome = "done"
                        return
                if lease.stopped is Stop.EVICTED:
                    self.outcome = "evicted"
                    return
                front = True
        except OnebitError as error:
            self.error, self.outcome = error, error.code or "refused"
        except asyncio.CancelledError:
            self.outcome = "cancelled"


async def finish(*requests: Request) -> None:
    for request in requests:
        assert request.task is not None
        await asyncio.wait([request.task])
        request.outcome = request.outcome or "cancelled"  # before it had begun


def test_two_that_wait_for_one_load_cause_one_start() -> None:
    async def main() -> None:
        world = World()
        gate = make(world, 10, spec("m"))
        first, second = Request(gate, Ask("m")).start(), Request(gate, Ask("m")).start()
        await asyncio.sleep(0.5)
        assert first.task is not None
        first.task.cancel()
        await finish(first, second)
        assert world.loads == ["m"] and second.outcome == "done"

    run_virtual(main())


def test_one_place_two_models_both_are_served() -> None:
    async def main() -> None:
        world = World()
        gate = make(world, 10, spec("a"), spec("b"))
        a = Request(gate, Ask("a")).start()
        await asyncio.sleep(0.1)
        b = Request(gate, Ask("b")).start()
        await finish(a, b)
        assert (a.outcome, b.outcome) == ("done", "done") and world.loads == ["a", "b"]

    run_virtual(main())


def test_few_swaps_and_bounded_waits() -> None:
    """A B A A C A B C, with room for one."""

    async def main() -> None:
        world = World()
        gate = make(world, 10, spec("a"), spec("b"), spec("c"))
        requests = []
        for name in "abaacabc":
            requests.append(Request(gate, Ask(name)).start())
            await asyncio.sleep(0.1)
        await finish(*requests)
        assert {r.outcome for r in requests} == {"done"}
        assert world.loads == ["a", "b", "c"]

    run_virtual(main())


def test_the_longest_waiting_is_passed_over_for_max_hold_at_most() -> None:
    async def main() -> None:
        world = World()
        gate = make(world, 10, spec("a", slots=1), spec("b"))
        loop = asyncio.get_running_loop()
        crowd = [Request(gate, Ask("a"), work_s=2).start() for _ in range(40)]
        await asyncio.sleep(0.5)
        b = Request(gate, Ask("b")).start()
        began = loop.time()
        await finish(b)
        assert b.outcome == "done" and b.admitted is not None
        assert 30 <= b.admitted - began <= 30 + 2 + world.load_s + world.unload_s + 0.1
        await finish(*crowd)
        assert {r.outcome for r in crowd} == {"done"} and world.loads == ["a", "b", "a"]

    run_virtual(main())


def test_free_meets_protection_and_is_told_how_long() -> None:
    async def main() -> None:
        world = World()
        gate = make(world, 10, spec("a"), spec("b"))
        await finish(Request(gate, Ask("a", tier=PAID)).start())
        await asyncio.sleep(20)
        b = Request(gate, Ask("b")).start()
        await finish(b)
        assert isinstance(b.error, Protected) and b.error.retry_after == pytest.approx(40, abs=0.1)
        await asyncio.sleep(41)
        again = Request(gate, Ask("b")).start()
        await finish(again)
        assert again.outcome == "done"

    run_virtual(main())


def test_paid_pushes_out_a_busy_free_model_after_the_grace_period() -> None:
    async def main() -> None:
        world = World()
        gate = make(world, 10, spec("a"), spec("b"))
        short, long = Request(gate, Ask("a"), work_s=3).start(), Request(gate, Ask("a"), work_s=100).start()
        await asyncio.sleep(2)
        paid = Request(gate, Ask("b", tier=PAID)).start()
        await asyncio.sleep(0.1)
        late = Request(gate, Ask("a")).start()
        await finish(short, long, paid, late)
        assert (short.outcome, long.outcome, paid.outcome) == ("done", "evicted", "done")
        assert late.outcome == "memory_protected"

    run_virtual(main())


def test_a_failed_load_cools_down_and_is_tried_again() -> None:
    async def main() -> None:
        world = World(fails={"m"})
        gate = make(world, 10, spec("m"))
        one, two = Request(gate, Ask("m")).start(), Request(gate, Ask("m")).start()
        await finish(one, two)
        assert isinstance(one.error, LoadFailed) and "out of memory" in one.error.message
        assert one.error.retry_after == pytest.approx(10)
        third = Request(gate, Ask("m")).start()
        await finish(third)
        assert isinstance(third.error, LoadFailed) and world.loads == ["m"]
        world.fails.clear()
        await asyncio.sleep(10)
        fourth = Request(gate, Ask("m")).start()
        await finish(fourth)
        assert fourth.outcome == "done" and world.loads == ["m", "m"]

    run_virtual(main())


def test_requests_timed_to_fall_on_the_idle_unload() -> None:
    async def main() -> None:
        world = World(load_s=0.05, unload_s=0.05)
        gate = make(world, 10, spec("m", idle_unload=1.0))
        for i in range(1000):
            request = Request(gate, Ask("m"), work_s=0.01).start()
            await finish(request)
            assert request.outcome == "done"
            await asyncio.sleep(0.9 + i % 21 / 100)
        assert 100 < len(world.loads) < 1000

    run_virtual(main())


def test_paid_does_not_wait_behind_five_hundred() -> None:
    async def main() -> None:
        world = World()
        gate = make(world, 10, spec("m", slots=1))
        crowd = [Request(gate, Ask("m", key="crowd"), work_s=1).start() for _ in range(500)]
        await asyncio.sleep(2.5)
        paid = Request(gate, Ask("m", tier=PAID, key="shop")).start()
        began = asyncio.get_running_loop().time()
        await finish(paid)
        assert paid.admitted is not None and paid.admitted - began <= 1
        await finish(*crowd)

    run_virtual(main())


def test_background_yields_and_comes_back() -> None:
    async def main() -> None:
        world = World()
        gate = make(world, 10, spec("m", slots=4))
        batch = [Request(gate, Ask("m", tier=BACKGROUND), work_s=5).start() for _ in range(20)]
        waits = []
        for _ in range(10):
            await asyncio.sleep(7)
            paid = Request(gate, Ask("m", tier=PAID), work_s=0.5).start()
            began = asyncio.get_running_loop().time()
            await finish(paid)
            assert paid.admitted is not None
            waits.append(paid.admitted - began)
        await finish(*batch)
        assert {r.outcome for r in batch} == {"done"} and max(waits) == 0

    run_virtual(main())


def test_a_loaded_model_never_waits_for_another_ones_load() -> None:
    async def main() -> None:
        world = World()
        gate = make(world, 20, spec("x"), spec("y"))
        await finish(Request(gate, Ask("y")).start())
        world.load_s = 10
        x = Request(gate, Ask("x")).start()
        for _ in range(20):
            y = Request(gate, Ask("y"), work_s=0.1).start()
            began = asyncio.get_running_loop().time()
            await finish(y)
            assert y.admitted == began
        await finish(x)
        assert x.outcome == "done"

    run_virtual(main())


def test_pinned_models_leave_no_room() -> None:
    async def main() -> None:
        world = World()
        gate = make(world, 10, spec("a", pinned=True, preload=True), spec("b"))
        world.cards.want("a")
        await asyncio.sleep(2)
        b = Request(gate, Ask("b", tier=PAID)).start()
        await finish(b)
        assert b.outcome == "does_not_fit" and b.error is not None and not b.error.again

    run_virtual(main())


def test_another_config_changes_adds_and_removes() -> None:
    async def main() -> None:
        world = World()
        gate = make(world, 30, spec("kept"), spec("changed"), spec("removed"))
        requests = [Request(gate, Ask(name), work_s=4).start() for name in ("kept", "changed", "removed")]
        await asyncio.sleep(2)
        world.cards.renew(spec("changed", slots=1))
        world.cards.remove("removed")
        world.cards.add(spec("new"))
        waits = Request(gate, Ask("changed")).start()
        new = Request(gate, Ask("new")).start()
        await finish(*requests, waits, new)
        assert {r.outcome for r in (*requests, waits, new)} == {"done"}
        await asyncio.sleep(1)
        assert set(gate.models) == {"kept", "changed", "new"}
        assert world.loads.count("kept") == 1 and world.loads.count("changed") == 2
        assert gate.models["changed"].slots.views()[0].capacity == 1

    run_virtual(main())


# --- any schedule ------------------------------------------------------------------------------------------------

STEP = st.one_of(
    st.tuples(st.just("arrive"), st.integers(0, 3), st.sampled_from(Tier), st.integers(1, 40)),
    st.tuples(st.just("cancel"), st.integers(0, 50), st.just(FREE), st.just(0)),
    st.tuples(st.just("wait"), st.integers(0, 100), st.just(FREE), st.just(0)),
    st.tuples(st.just("crash"), st.integers(0, 3), st.just(FREE), st.just(0)),
    st.tuples(st.just("break"), st.integers(0, 3), st.just(FREE), st.just(0)),
    st.tuples(st.just("mend"), st.integers(0, 3), st.just(FREE), st.just(0)),
    st.tuples(st.just("tick"), st.just(0), st.just(FREE), st.just(0)),
)
Steps = Sequence[tuple[str, int, Tier, int]]
SPECS = (
    spec("a", 10, 2),
    spec("b", 6, 1, idle_unload=20.0),
    spec("c", 5, 3),
    ModelSpec("d", (EngineView("a", 4, standing=Standing.COMING),), {"card": 16}, frozenset({"card", "other"})),
)


@given(st.lists(STEP, max_size=80))
@settings(max_examples=120, deadline=None)
def test_any_schedule(steps: Steps) -> None:
    run_virtual(_any_schedule(steps))


def test_long_random_schedules() -> None:
    """Thousands of steps in one life."""
    chance = random.Random(7)
    kinds = ["arrive"] * 6 + ["wait"] * 4 + ["cancel", "cancel", "tick", "crash", "break", "mend", "mend"]
    steps: list[tuple[str, int, Tier, int]] = []
    for _ in range(4000):
        kind = chance.choice(kinds)
        number = chance.randrange(4) if kind in ("arrive", "crash", "break", "mend") else chance.randrange(60)
        steps.append((kind, number, chance.choice(list(Tier)), chance.randrange(1, 40)))
    run_virtual(_any_schedule(steps))


async def _any_schedule(steps: Steps) -> None:
    world = World()
    limits = Limits(max_waiting=6, max_wait=50, max_wait_boost=25, max_in_flight=(("k1", 1),))
    gate = make(world, 20, *SPECS, rules=Rules(15, 2, 8), limits=limits)
    crowd: list[Request] = []
    loop = asyncio.get_running_loop()
    assert isinstance(loop, VirtualTimeLoop)
    for what, number, tier, tenths in steps:
        name = "abcd"[number % 4]
        if what == "arrive":
            ask = Ask(name, Need(sequences=1 + tenths % 2), tier, f"k{tenths % 3}")
            crowd.append(Request(gate, ask, tenths / 10).start())
        elif what == "cancel" and crowd:
            task = crowd[number % len(crowd)].task
            assert task is not None
            task.cancel()
        elif what == "wait":
            await asyncio.sleep(number / 50)
        elif what == "crash":
            world.crash(name)
        elif what == "break":
            world.fails.add(name)
        elif what == "mend":
            world.fails.discard(name)
        else:
            await asyncio.sleep(0)
        check(gate)
        world.cards.check_invariants()
        used = world.cards.ledger.used()["card"]
        assert used <= 20, "more is reserved than there is"
        running = Counter(lease.ask.key for lease in gate.running())
        assert running["k1"] <= 1
    world.fails.clear()
    await finish(*crowd)
    assert all(r.outcome for r in crowd)
    allowed = {
        "done",
        "cancelled",
        "evicted",
        "load_failed",
        "memory_protected",
        "queue_full",
        "wait_timeout",
        "unavailable",
    }
    assert {r.outcome for r in crowd} <= allowed
    for request in crowd:
        if isinstance(request.error, (QueueFull, WaitTooLong, Protected)):
            assert request.error.retry_after is not None and 0 < request.error.retry_after <= 60
    await asyncio.sleep(200)
    assert gate.in_use == 0 and gate.waiting == 0
    check(gate)
    world.cards.check_invariants()
    assert gate.models["b"].residency is Residency.ABSENT  # idle for long
    world.cards.close()
