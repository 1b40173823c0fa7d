"""The gate: handing over, refusing, and cancellation in every order. Time is steered, never slept away."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import anyio
import pytest
from anyio.lowlevel import checkpoint
from hypothesis import given, settings
from hypothesis import strategies as st

from onebit.errors import InvalidRequest, QueueFull, Unavailable, WaitTooLong
from onebit.memory.residency import Step
from onebit.scheduler.audit import check
from onebit.scheduler.choose import EngineView, Need, Standing
from onebit.scheduler.gate import Gate, Limits
from onebit.scheduler.lease import Ask, Lease
from onebit.scheduler.model import Model, ModelSpec
from onebit.tiers import Tier

pytestmark = pytest.mark.anyio


def resident(spec: ModelSpec) -> Model:
    model = Model(spec)
    model.step(Step.LOAD)
    model.step(Step.LOADED)
    return model


def make(*engines: EngineView, max_waiting: int = 100, max_wait: float = 1000, **more: Any) -> Gate:
    model = resident(ModelSpec("m", engines or (EngineView("a", 1),), {}, frozenset({"card"})))
    return Gate([model], Limits(max_waiting, max_wait), **more)


@dataclass
class Client:
    """A request in a task of its own, that holds its lease until it is told to go."""

    gate: Gate
    need: Need = field(default_factory=Need)
    left: str | None = None
    tier: Tier = Tier.FREE
    key: str = ""
    scope: anyio.CancelScope = field(default_factory=anyio.CancelScope)
    go: anyio.Event = field(default_factory=anyio.Event)
    lease: Lease | None = None
    error: Exception | None = None
    ended: bool = False

    async def run(self) -> None:
        with self.scope:
            try:
                ask = Ask("m", self.need, self.tier, self.key)
                async with self.gate.admit(ask, left=self.left) as lease:
                    self.lease = lease
                    await self.go.wait()
            except (QueueFull, Unavailable, WaitTooLong, InvalidRequest) as error:
                self.error = error
        self.ended = True

    @property
    def holds(self) -> bool:
        return self.lease is not None and not self.ended


async def settle() -> None:
    for _ in range(5):
        await checkpoint()


@asynccontextmanager
async def clients(gate: Gate, *given: Client) -> AsyncIterator[list[Client]]:
    async with anyio.create_task_group() as group:
        for client in given:
            group.start_soon(client.run)
            await settle()  # so that they stand in line in this order
        yield list(given)
        group.cancel_scope.cancel()
    check(gate)
    assert gate.in_use == 0
    assert gate.waiting == 0


@asynccontextmanager
async def clients_beside(gate: Gate, client: Client) -> AsyncIterator[Client]:
    """One more, while others are there."""
    async with anyio.create_task_group() as group:
        group.start_soon(client.run)
        await settle()
        yield client
        group.cancel_scope.cancel()


async def test_first_come_first_served_one_at_a_time() -> None:
    gate = make()
    async with clients(gate, *(Client(gate) for _ in range(4))) as queue:
        for position, client in enumerate(queue):
            assert [c.holds for c in queue] == [i == position for i in range(4)]
            check(gate)
            client.go.set()
            await settle()


async def test_the_slot_is_handed_over_before_anyone_else_can_look() -> None:
    gate = make()
    async with clients(gate, Client(gate), Client(gate)) as (first, second):
        first.go.set()
        await checkpoint()  # first leaves its block; second has not run yet
        assert gate.models["m"].slots.claim(Need()) is None
        await settle()
        assert second.holds


async def test_a_newcomer_does_not_overtake_the_line() -> None:
    gate = make(EngineView("a", 2))
    many = Client(gate, Need(sequences=2))
    async with clients(gate, Client(gate), many, Client(gate)) as (first, _, newcomer):
        assert not many.holds and not newcomer.holds  # one slot is free, but it is spoken for
        first.go.set()
        await settle()
        assert many.holds and not newcomer.holds


async def test_a_waiter_with_other_needs_may_pass() -> None:
    gate = make(EngineView("mtp", 1, drafting=True), EngineView("plain", 1, rank=1))
    async with clients(gate, Client(gate), Client(gate), Client(gate, Need(plain=True)), Client(gate)) as queue:
        assert [c.holds for c in queue] == [True, True, False, False]
        assert queue[0].lease is not None and queue[0].lease.engine == "mtp"
        queue[0].go.set()
        await settle()
        assert not queue[2].holds  # it waits for the plain engine
        assert queue[3].holds


@pytest.mark.parametrize("how", ["cancelled", "too late"])
async def test_one_that_leaves_the_line_lets_those_behind_it_pass(how: str) -> None:
    """It kept the free slots for itself while it waited for more."""
    gate = make(EngineView("a", 4), max_wait=1000 if how == "cancelled" else 0.05)
    long, many = Client(gate), Client(gate, Need(sequences=4))
    async with clients(gate, long, many):
        if how == "cancelled":
            async with clients_beside(gate, Client(gate)) as behind:
                assert not behind.holds
                many.scope.cancel()
                await settle()
                assert behind.holds
        else:
            while many.error is None:
                await checkpoint()
            assert isinstance(many.error, WaitTooLong)
            async with clients_beside(gate, Client(gate)) as behind:
                assert behind.holds


async def test_cancelled_first_then_granted() -> None:
    """Order one: the waiter is gone when the slot comes free; the next one gets it."""
    gate = make()
    async with clients(gate, Client(gate), Client(gate), Client(gate)) as (first, second, third):
        second.scope.cancel()
        first.go.set()
        await settle()
        assert second.lease is None and third.holds


async def test_granted_first_then_cancelled_in_the_same_tick() -> None:
    """Order two: the slot was handed over, and the cancellation comes before the waiter has run."""
    gate = make()
    async with clients(gate, Client(gate), Client(gate), Client(gate)) as (first, second, third):
        first.go.set()
        await checkpoint()
        second.scope.cancel()
        await settle()
        assert second.ended and third.holds


async def test_a_deadline_in_the_tick_of_the_grant_keeps_the_grant() -> None:
    gate = make(max_wait=0.05)
    async with clients(gate, Client(gate), Client(gate)) as (first, second):
        while second.error is None and not second.holds:
            if gate.waiting:
                first.go.set()
            await checkpoint()
        assert second.holds


async def test_a_full_line_refuses_with_the_time_to_wait() -> None:
    gate = make(max_waiting=1)
    async with clients(gate, Client(gate), Client(gate), Client(gate)) as (_, waiting, refused):
        assert not waiting.ended
        assert isinstance(refused.error, QueueFull)
        assert refused.error.status == 429
        assert refused.error.retry_after is not None and 1 <= refused.error.retry_after <= 60


async def test_the_deadline_refuses_with_503() -> None:
    gate = make(max_wait=0)
    async with clients(gate, Client(gate), Client(gate)) as (_, late):
        await anyio.wait_all_tasks_blocked()
        assert isinstance(late.error, WaitTooLong)
        assert late.error.status == 503
        assert late.error.retry_after is not None


async def test_retry_after_follows_the_rate_at_which_slots_come_free() -> None:
    """Ten releases, 2 s apart, three in line: a fourth waits about 8 s."""
    now = 0.0
    gate = make(max_waiting=3, clock=lambda: now)
    for _ in range(10):
        async with gate.admit(Ask("m")):
            now += 2
    async with clients(gate, *(Client(gate) for _ in range(5))) as queue:
        assert isinstance(queue[4].error, QueueFull)
        assert queue[4].error.retry_after == pytest.approx(8, abs=1)


async def test_a_request_whose_engine_died_goes_to_the_front() -> None:
    gate = make()
    first, second, again = Client(gate), Client(gate), Client(gate, left="a")
    async with clients(gate, first, second, again):
        first.go.set()
        await settle()
        assert again.holds and not second.holds


async def test_a_request_whose_engine_died_takes_another_one_even_past_the_line() -> None:
    gate = make(EngineView("a", 2), EngineView("b", 1, rank=1, drafting=True))
    held, many, again = Client(gate), Client(gate, Need(sequences=2, plain=True)), Client(gate, left="a")
    async with clients(gate, held, many, again):
        assert not many.holds and again.holds
        assert again.lease is not None and again.lease.engine == "b"


async def test_waiting_for_an_engine_that_starts() -> None:
    gate = make(EngineView("a", 1, standing=Standing.COMING))
    async with clients(gate, Client(gate)) as (client,):
        assert not client.holds
        gate.engine_changed("m", "a", Standing.OPEN)
        await settle()
        assert client.holds


async def test_when_the_last_engine_is_given_up_everyone_is_told_why() -> None:
    gate = make(EngineView("a", 1, standing=Standing.COMING))
    async with clients(gate, Client(gate), Client(gate)) as queue:
        gate.engine_changed("m", "a", Standing.GONE, "there is no device vulkan here")
        await settle()
        for client in queue:
            assert isinstance(client.error, Unavailable)
            assert "there is no device vulkan here" in client.error.message
        with pytest.raises(Unavailable, match="no device vulkan"):
            async with gate.admit(Ask("m")):
                pass


async def test_logprobs_are_refused_when_every_engine_drafts() -> None:
    gate = make(EngineView("mtp", 1, drafting=True))
    with pytest.raises(InvalidRequest, match="logprobs") as caught:
        async with gate.admit(Ask("m", Need(plain=True))):
            pass
    assert caught.value.param == "logprobs"


async def test_closing_refuses_those_in_line_and_lets_the_running_finish() -> None:
    gate = make()
    async with clients(gate, Client(gate), Client(gate)) as (running, waiting):
        gate.close(lambda: Unavailable("closing"))
        await settle()
        assert running.holds and isinstance(waiting.error, Unavailable)
        async with anyio.create_task_group() as group:
            group.start_soon(gate.idle)
            running.go.set()  # the group ends: idle() returned


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("arrive"), st.integers(1, 4), st.booleans()),
        st.tuples(st.just("finish"), st.integers(0, 20), st.booleans()),
        st.tuples(st.just("cancel"), st.integers(0, 20), st.booleans()),
        st.tuples(st.just("engine"), st.integers(0, 2), st.booleans()),
        st.tuples(st.just("tick"), st.just(0), st.booleans()),
    ),
    max_size=60,
)


@given(STEPS)
@settings(max_examples=150)
def test_any_schedule_leaves_the_books_balanced(steps: list[tuple[str, int, bool]]) -> None:
    """Arrivals, ends, cancellations and engines going up and down in any order: no slot is lost or given twice."""
    anyio.run(_schedule, steps)


async def _schedule(steps: list[tuple[str, int, bool]]) -> None:
    engines = [
        EngineView("mtp", 2, drafting=True, rows_per_sequence=4, row_limit=8),
        EngineView("plain", 4, rank=1),
        EngineView("third", 3, rank=1, standing=Standing.COMING),
    ]
    gate = make(*engines, max_waiting=10)
    crowd: list[Client] = []
    async with anyio.create_task_group() as group:
        for what, number, flag in steps:
            if what == "arrive":
                crowd.append(Client(gate, Need(sequences=number, plain=flag)))
                group.start_soon(crowd[-1].run)
            elif what == "tick":
                await settle()
            elif what == "engine":
                gate.engine_changed("m", engines[number].name, Standing.OPEN if flag else Standing.COMING)
            elif crowd:
                client = crowd[number % len(crowd)]
                if what == "finish":
                    client.go.set()
                else:
                    client.scope.cancel()
            if flag:
                await checkpoint()
            check(gate)
        await anyio.wait_all_tasks_blocked()
        check(gate)
        held = sum(c.lease.slots for c in crowd if c.lease is not None and not c.ended)
        assert held == gate.in_use
        for engine in engines:
            gate.engine_changed("m", engine.name, Standing.OPEN)
        for client in crowd:
            client.go.set()
        await anyio.wait_all_tasks_blocked()
        assert all(c.ended for c in crowd), "somebody waits although everything is free"
    check(gate)
    assert gate.in_use == 0 and gate.waiting == 0
