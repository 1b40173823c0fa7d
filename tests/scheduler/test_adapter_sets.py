"""Requests with different adapters: an engine has one set at a time, in batches, and nobody is passed for ever."""

from __future__ import annotations

import anyio
import pytest
from anyio.lowlevel import checkpoint
from hypothesis import given, settings
from hypothesis import strategies as st

from onebit.scheduler.audit import check
from onebit.scheduler.choose import AdapterSet, EngineView, Need
from onebit.tiers import Tier
from tests.scheduler.test_gate import Client, clients, make, settle

pytestmark = pytest.mark.anyio

BASE: AdapterSet = ()
A: AdapterSet = (("a", 1.0),)
B: AdapterSet = (("b", 1.0),)
HALF_A: AdapterSet = (("a", 0.5),)


def asks(adapters: AdapterSet | None, sequences: int = 1) -> Need:
    return Need(sequences=sequences, adapters=adapters)


@pytest.mark.parametrize(("first", "second"), [(A, B), (A, BASE), (BASE, A), (A, HALF_A)])
async def test_two_sets_never_decode_on_one_engine(first: AdapterSet, second: AdapterSet) -> None:
    gate = make(EngineView("a", 4))
    async with clients(gate, Client(gate, asks(first)), Client(gate, asks(second))) as (one, other):
        assert one.holds and not other.holds
        check(gate)  # nobody waits for what is free: a slot beside another set is not
        one.go.set()
        await settle()
        assert other.holds


async def test_two_engines_take_a_set_each() -> None:
    gate = make(EngineView("a", 2), EngineView("b", 2))
    needs = [A, B, B, A, BASE]
    async with clients(gate, *(Client(gate, asks(n)) for n in needs)) as queue:
        assert [c.holds for c in queue] == [True, True, True, True, False]
        engines = [c.lease.engine for c in queue if c.lease is not None]
        assert engines[0] == engines[3] != engines[1] == engines[2]


async def test_those_with_the_set_in_use_go_first_until_a_batch_is_full_and_no_more() -> None:
    """B is passed by as many A as there are slots, though A come all the time."""
    gate = make(EngineView("a", 3))
    running = [Client(gate, asks(A)) for _ in range(3)]
    b, later = Client(gate, asks(B)), [Client(gate, asks(A)) for _ in range(8)]
    async with clients(gate, *running, b, *later):
        everyone = [*running, *later]
        for _ in range(20):
            if b.holds:
                break
            next(c for c in everyone if c.holds).go.set()
            await settle()
            check(gate)
        assert b.holds
        assert sum(c.ended for c in everyone) == 6  # the three that ran, and three that passed
        b.go.set()
        await settle()
        assert [c.holds for c in later] == [False] * 3 + [True] * 3 + [False] * 2


@pytest.mark.parametrize("sequences", [1, 2, 4])
async def test_what_passes_is_counted_in_slots(sequences: int) -> None:
    gate = make(EngineView("a", 8))
    running = [Client(gate, asks(A, sequences)) for _ in range(8 // sequences)]
    b, later = Client(gate, asks(B)), [Client(gate, asks(A, sequences)) for _ in range(24)]
    async with clients(gate, *running, b, *later):
        everyone = [*running, *later]
        while not b.holds:
            next(c for c in everyone if c.holds).go.set()
            await settle()
        assert sum(c.ended for c in everyone) * sequences == 8 + 8  # those that ran, and one batch more


async def test_a_batch_is_gathered_from_the_whole_line() -> None:
    gate = make(EngineView("a", 4))
    needs = [A, B, BASE, A, B, A, BASE, B, A]
    async with clients(gate, *(Client(gate, asks(n)) for n in needs)) as queue:
        turns = []
        while held := [c for c in queue if c.holds]:
            turns.append([c.need.adapters for c in held])
            for client in held:
                client.go.set()
            await settle()
            check(gate)
        assert turns == [[A] * 4, [B] * 3, [BASE] * 2]


async def test_nobody_passes_a_higher_tier() -> None:
    gate = make(EngineView("a", 2))
    paid = Client(gate, asks(B), tier=Tier.PAID)
    async with clients(gate, Client(gate, asks(A)), paid, Client(gate, asks(A))) as (first, _, free):
        assert not paid.holds and not free.holds
        first.go.set()
        await settle()
        assert paid.holds and not free.holds


async def test_one_that_needs_more_slots_of_the_set_in_use_is_not_passed() -> None:
    gate = make(EngineView("a", 3))
    async with clients(gate, Client(gate, asks(A, 2)), Client(gate, asks(A, 2)), Client(gate, asks(A))) as queue:
        assert [c.holds for c in queue] == [True, False, False]


async def test_a_waiter_that_leaves_lets_those_of_the_set_in_use_pass() -> None:
    gate = make(EngineView("a", 2))
    gone = Client(gate, asks(B), tier=Tier.PAID)
    async with clients(gate, Client(gate, asks(A)), gone, Client(gate, asks(A))) as (_, __, waits):
        gone.scope.cancel()
        await settle()
        assert waits.holds


async def test_a_model_without_adapters_knows_no_sets() -> None:
    gate = make(EngineView("a", 2))
    async with clients(gate, Client(gate), Client(gate)) as queue:
        assert all(c.holds for c in queue)


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("arrive"), st.integers(0, 3), st.sampled_from([1, 1, 1, 2]), st.sampled_from(Tier)),
        st.tuples(st.just("finish"), st.integers(0, 20), st.just(0), st.just(Tier.FREE)),
        st.tuples(st.just("cancel"), st.integers(0, 20), st.just(0), st.just(Tier.FREE)),
    ),
    max_size=50,
)


@given(STEPS, st.integers(1, 2))
@settings(max_examples=150)
def test_any_schedule_serves_everyone_one_set_at_a_time(steps: list[tuple[str, int, int, Tier]], engines: int) -> None:
    anyio.run(_schedule, steps, engines)


async def _schedule(steps: list[tuple[str, int, int, Tier]], engines: int) -> None:
    gate = make(*(EngineView(f"e{i}", 3, rank=i) for i in range(engines)), max_waiting=40)
    crowd: list[Client] = []
    async with anyio.create_task_group() as group:
        for what, number, sequences, tier in steps:
            if what == "arrive":
                need = asks((BASE, A, B, HALF_A)[number], sequences)
                crowd.append(Client(gate, need, tier=tier, key=f"key-{number % 2}"))
                group.start_soon(crowd[-1].run)
            elif crowd:
                client = crowd[number % len(crowd)]
                if what == "finish":
                    client.go.set()
                else:
                    client.scope.cancel()
            await checkpoint()
            check(gate)
        for client in crowd:
            client.go.set()
        await anyio.wait_all_tasks_blocked()
        assert all(c.ended for c in crowd), "somebody waits although everything is free"
    check(gate)
    assert gate.in_use == 0 and gate.waiting == 0
