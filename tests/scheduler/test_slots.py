"""Lock-and-claim: from many threads and tasks at once, the burst is split exactly."""

from __future__ import annotations

import threading

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st

from onebit.scheduler.choose import EngineView, Need, Standing
from onebit.scheduler.profile import Grid
from onebit.scheduler.slots import Claim, SlotLedger

ROUNDS = 1000


def adaptive() -> SlotLedger:
    return SlotLedger([EngineView("first", 8, rank=0, row_limit=8), EngineView("second", 16, rank=1)])


def counts(claims: list[Claim | None]) -> tuple[int, int, int]:
    names = [c.engine if c else None for c in claims]
    return names.count("first"), names.count("second"), names.count(None)


def test_a_burst_from_many_threads_is_split_exactly_every_time() -> None:
    """24 at once on 8 + 16 slots, 1,000 times in a row; a 25th gets nothing."""
    ledger = adaptive()
    burst = 25
    barrier = threading.Barrier(burst + 1)
    claims: list[Claim | None] = [None] * burst

    def client(index: int) -> None:
        for _ in range(ROUNDS):
            barrier.wait()
            claims[index] = ledger.claim(Need(conversation=index))
            barrier.wait()

    threads = [threading.Thread(target=client, args=(i,)) for i in range(burst)]
    for thread in threads:
        thread.start()
    seen = set()
    for _ in range(ROUNDS):
        barrier.wait()
        barrier.wait()
        seen.add(counts(claims))
        ledger.check_invariants()
        for claim in claims:
            if claim is not None:
                ledger.release(claim)
    for thread in threads:
        thread.join()
    assert seen == {(8, 16, 1)}
    assert ledger.in_use == 0


@pytest.mark.anyio
async def test_a_burst_from_many_tasks_is_split_exactly_every_time() -> None:
    ledger = adaptive()
    for _ in range(ROUNDS):
        claims: list[Claim | None] = []

        async def client(into: list[Claim | None] = claims) -> None:
            await anyio.sleep(0)
            into.append(ledger.claim(Need()))

        async with anyio.create_task_group() as group:
            for _ in range(24):
                group.start_soon(client)
        assert counts(claims) == (8, 16, 0)
        ledger.check_invariants()
        for claim in claims:
            assert claim is not None
            ledger.release(claim)


def test_a_claim_is_given_back_exactly_once() -> None:
    ledger = adaptive()
    claim = ledger.claim(Need())
    assert claim is not None
    ledger.release(claim)
    with pytest.raises(KeyError):
        ledger.release(claim)
    ledger.check_invariants()
    assert ledger.in_use == 0


def test_claims_outlive_the_engine_they_are_on() -> None:
    """An engine that dies keeps its claims until their requests have noticed; then the books balance again."""
    ledger = adaptive()
    claim = ledger.claim(Need(sequences=3))
    assert claim == Claim(1, "first", 3)
    ledger.set_standing("first", Standing.COMING)
    other = ledger.claim(Need())
    assert other is not None and other.engine == "second"
    ledger.release(claim)
    ledger.release(other)
    ledger.check_invariants()


def test_a_conversation_stays_where_its_cache_is() -> None:
    ledger = SlotLedger([EngineView("a", 4), EngineView("b", 4)])
    held = ledger.claim(Need())
    assert held is not None and held.engine == "a"
    first = ledger.claim(Need(conversation=7))
    assert first is not None and first.engine == "b"  # the emptier one
    ledger.release(held)
    ledger.release(first)
    busy = [ledger.claim(Need()) for _ in range(2)]
    assert [c.engine for c in busy if c] == ["a", "b"]
    again = ledger.claim(Need(conversation=7))
    assert again is not None and again.engine == "b"


def test_the_memory_of_conversations_is_bounded() -> None:
    ledger = SlotLedger([EngineView("a", 1), EngineView("b", 1)])  # with one engine there is nothing to remember
    for conversation in range(10_000):
        claim = ledger.claim(Need(conversation=conversation))
        assert claim is not None
        ledger.release(claim)
    assert len(ledger._last) == 4096


SOME, OTHERS = (("a", 1.0),), (("b", 1.0),)  # sets of adapters


@pytest.mark.parametrize("engines", [1, 2])
@pytest.mark.parametrize(
    ("engine", "held", "standing", "follows", "goes_on"),
    [
        (EngineView("a", 2), Need(2), Standing.OPEN, Need(2), True),
        (EngineView("a", 2), Need(2), Standing.OPEN, Need(7), True),  # one after the other, in all slots
        (EngineView("a", 2), Need(2), Standing.OPEN, Need(1), False),
        (EngineView("a", 2), Need(1), Standing.OPEN, Need(1), False),  # another slot is free: that needs a choice
        (EngineView("a", 2), Need(2), Standing.COMING, Need(2), False),
        (EngineView("a", 2), Need(2), Standing.GONE, Need(2), False),
        (EngineView("a", 2, drafting=True), Need(2), Standing.OPEN, Need(2), True),
        (EngineView("a", 2, drafting=True), Need(2), Standing.OPEN, Need(2, plain=True), False),
        (EngineView("a", 2), Need(2, adapters=SOME), Standing.OPEN, Need(2, adapters=SOME), True),
        (EngineView("a", 2), Need(2, adapters=SOME), Standing.OPEN, Need(2, adapters=OTHERS), False),
    ],
)
def test_slots_go_on_only_to_whom_they_would_be_given(
    engines: int, engine: EngineView, held: Need, standing: Standing, follows: Need, goes_on: bool
) -> None:
    full = [EngineView("b", 1, rank=1)] if engines == 2 else []
    ledger = SlotLedger([engine, *full])
    claim = ledger.claim(held, blocked=frozenset("b"))
    assert claim is not None and claim.engine == "a"
    assert all(ledger.claim(Need(adapters=held.adapters), blocked=frozenset("a")) for _ in full)
    ledger.set_standing("a", standing)
    assert ledger.hand_over(claim, follows) is goes_on
    assert ledger.served()["a"] == 1 + goes_on
    ledger.check_invariants()


def test_slots_that_go_on_take_their_conversation_along() -> None:
    ledger = SlotLedger([EngineView("a", 1), EngineView("b", 1)])
    a, b = ledger.claim(Need()), ledger.claim(Need())
    assert a is not None and b is not None and b.engine == "b"
    assert ledger.hand_over(b, Need(conversation=7))
    ledger.release(a)
    ledger.release(b)
    again = ledger.claim(Need(conversation=7))
    assert again is not None and again.engine == "b"


def test_hopeless_is_when_nobody_ever_can() -> None:
    ledger = SlotLedger([EngineView("mtp", 1, drafting=True), EngineView("plain", 1)])
    assert not ledger.hopeless(Need(plain=True))
    ledger.set_standing("plain", Standing.COMING)
    assert not ledger.hopeless(Need(plain=True))
    ledger.set_standing("plain", Standing.GONE)
    assert ledger.hopeless(Need(plain=True))
    assert not ledger.hopeless(Need())


# --- with a profile ----------------------------------------------------------------------------------------------


def measured(hold_gain: float = 0.1) -> SlotLedger:
    """8 + 16 slots; both together lose, and nine on the first are a cliff: as on the card that started this."""
    first = {n: 50.0 * min(n, 8) / 8 for n in range(1, 9)}
    second = {n: 68.0 * min(n, 16) / 16 for n in range(1, 17)}
    points = {(a, 0): t for a, t in first.items()} | {(0, b): t for b, t in second.items()}
    points |= {(a, b): 0.8 * max(first[a], second[b]) for a in first for b in second}
    views = [EngineView("first", 8), EngineView("second", 16, rank=1)]
    return SlotLedger(views, Grid(points), hold_gain)


def in_use(ledger: SlotLedger) -> tuple[int, int]:
    first, second = ledger.views()
    return first.in_use, second.in_use


def test_with_a_profile_the_first_fills_and_the_ninth_waits() -> None:
    ledger = measured()
    for n in range(1, 9):
        assert ledger.claim(Need()) is not None
        assert in_use(ledger) == (n, 0)
    assert not ledger.has_room(Need()) and ledger.claim(Need()) is None  # 50 for eight, 40 for nine
    assert not ledger.full
    ledger.check_invariants()


def test_a_crowd_that_waits_is_part_of_the_load() -> None:
    ledger = measured()
    for _ in range(8):
        ledger.claim(Need())
    assert not ledger.has_room(Need(), waiting=1)
    claim = ledger.claim(Need(), waiting=3)  # twelve: 51 on the second engine alone, what it moves towards
    assert claim is not None and claim.engine == "second"


def test_waiting_beside_a_free_slot_is_a_matter_of_the_gain() -> None:
    ledger = measured(hold_gain=0.5)
    claims = [ledger.claim(Need()) for _ in range(9)]
    assert None not in claims and in_use(ledger) == (8, 1)


def test_what_the_profile_does_not_cover_goes_by_the_fixed_rules() -> None:
    ledger = measured()
    claim = ledger.claim(Need(sequences=4))
    assert claim is not None and claim.engine == "first"
    ledger.set_standing("first", Standing.COMING)
    alone = ledger.claim(Need())
    assert alone is not None and alone.engine == "second"


@given(st.lists(st.booleans(), max_size=80))
def test_with_a_profile_the_books_balance_and_nothing_stands_still(steps: list[bool]) -> None:
    ledger = measured()
    held: list[Claim] = []
    for arrive in steps:
        if arrive and (claim := ledger.claim(Need())) is not None:
            held.append(claim)
        elif held:
            ledger.release(held.pop(0))
        ledger.check_invariants()
    while held:
        ledger.release(held.pop())
    assert ledger.claim(Need()) is not None  # with nothing at work nobody is held back
