"""Who gets the memory: plain values in, a decision out."""

from __future__ import annotations

from dataclasses import replace
from math import inf

from hypothesis import given
from hypothesis import strategies as st

from onebit.memory.policy import Arrangement, Holder, Rules, Wanted, arrange
from onebit.memory.residency import Residency
from onebit.tiers import Tier

NOW = 1000.0
RULES = Rules(protect=60, min_residency=5, max_hold=30)
PAID, SUBSCRIBER, FREE, BACKGROUND = Tier.PAID, Tier.SUBSCRIBER, Tier.FREE, Tier.BACKGROUND


def holder(name: str, size: int = 10, **more: object) -> Holder:
    base = Holder(name, {"card": size}, loaded_at=NOW - 500, idle_since=NOW - 100, loaded_for=FREE)
    return replace(base, **more)  # type: ignore[arg-type]


def served(tier: Tier, seconds_ago: float) -> tuple[float, ...]:
    return tuple(NOW - seconds_ago if t == tier else -inf for t in sorted(Tier))


def want(name: str, size: int = 10, tier: Tier = FREE, since: float = NOW - 1) -> Wanted:
    return Wanted(name, {"card": size}, tier, since)


def decide(total: int, holders: list[Holder], wanted: list[Wanted]) -> Arrangement:
    return arrange({"card": total}, holders, wanted, RULES, NOW)


def test_what_fits_is_loaded_and_nobody_goes() -> None:
    assert decide(20, [holder("a")], [want("b")]) == Arrangement(load=("b",))


def test_the_highest_tier_first_then_the_longest_waiting() -> None:
    wanted = [want("b", since=1), want("c", since=0), want("d", tier=PAID, since=5)]
    assert decide(20, [], wanted).load == ("d", "c")


def test_an_idle_model_of_the_same_tier_goes() -> None:
    assert decide(10, [holder("a", served=served(FREE, 1))], [want("b")]).evict == ("a",)


def test_a_model_that_served_a_higher_tier_lately_is_protected_for_the_time_left() -> None:
    decision = decide(10, [holder("a", served=served(PAID, 20))], [want("b")])
    assert decision.evict == () and decision.refuse == {"b": 40}
    assert decide(10, [holder("a", served=served(PAID, 61))], [want("b")]).evict == ("a",)


def test_the_same_tier_is_not_protected_by_what_it_did_lately() -> None:
    assert decide(10, [holder("a", served=served(PAID, 1))], [want("b", tier=PAID)]).evict == ("a",)


def test_requests_of_the_same_tier_finish_first() -> None:
    decision = decide(10, [holder("a", running=FREE)], [want("b")])
    assert decision.evict == () and not decision.refuse and not decision.hold
    assert decision.look_again == NOW - 1 + RULES.max_hold


def test_after_max_hold_a_busy_model_takes_no_more_and_its_waiters_count_no_more() -> None:
    late = want("b", since=NOW - 31)
    assert decide(10, [holder("a", running=FREE, waiting=FREE)], [late]).hold == {"a": FREE}
    assert decide(10, [holder("a", waiting=FREE)], [late]).evict == ("a",)
    assert decide(10, [holder("a", waiting=FREE)], [want("b")]).evict == ()


def test_a_paid_request_pushes_out_a_busy_free_model() -> None:
    assert decide(10, [holder("a", running=FREE, waiting=FREE)], [want("b", tier=PAID)]).evict == ("a",)


def test_a_free_request_never_pushes_out_what_runs_for_a_higher_tier() -> None:
    decision = decide(10, [holder("a", running=SUBSCRIBER)], [want("b")])
    assert decision.evict == () and decision.refuse == {"b": 60}


def test_background_waits_where_others_are_refused() -> None:
    decision = decide(10, [holder("a", served=served(PAID, 20))], [want("b", tier=BACKGROUND)])
    assert not decision.refuse and decision.evict == () and decision.look_again is not None


def test_a_young_model_stays_against_its_own_tier_but_not_against_a_higher_one() -> None:
    young = holder("a", loaded_at=NOW - 1)
    assert decide(10, [young], [want("b")]).evict == ()
    assert decide(10, [young], [want("b")]).look_again == NOW + 4
    assert decide(10, [young], [want("b", tier=PAID)]).evict == ("a",)
    overdue = decide(10, [replace(young, running=FREE)], [want("b", since=NOW - 100)])
    assert not overdue.hold  # else it would be kept, and serve nobody


def test_a_pinned_model_never_leaves() -> None:
    decision = decide(10, [holder("a", pinned=True)], [want("b", tier=PAID)])
    assert decision.evict == () and decision.refuse == {"b": inf}


def test_the_least_protected_goes_first_then_the_longest_idle_for_its_reload() -> None:
    models = [
        holder("subscriber", served=served(SUBSCRIBER, 10)),
        holder("free", served=served(FREE, 10)),
        holder("nobody", served=served(FREE, 500)),
    ]
    assert decide(30, models, [want("b", tier=PAID)]).evict == ("nobody",)
    assert decide(30, models, [want("b", 20, tier=PAID)]).evict == ("nobody", "free")
    cheap, dear = holder("cheap", load_seconds=1), holder("dear", load_seconds=100, idle_since=NOW - 500)
    assert decide(20, [dear, cheap], [want("b")]).evict == ("cheap",)


def test_no_more_go_than_it_takes() -> None:
    small, large = holder("small", 4, idle_since=NOW - 900), holder("large", 10)
    assert decide(14, [small, large], [want("b", 8)]).evict == ("large",)


def test_room_that_is_being_made_is_spoken_for() -> None:
    leaving = holder("a", state=Residency.LEAVING)
    assert decide(10, [leaving], [want("b", since=0), want("c", since=1)]) == Arrangement()


def test_a_small_one_passes_only_into_what_the_first_does_not_need() -> None:
    leaving = holder("a", 10, state=Residency.LEAVING)
    assert decide(15, [leaving], [want("b", 12, since=0), want("c", 3, since=1)]).load == ("c",)
    assert decide(15, [leaving], [want("b", 12, since=0), want("c", 4, since=1)]).load == ()


def test_more_was_measured_than_there_is() -> None:
    assert decide(10, [holder("a", 14)], [want("b", 0)]).load == ("b",)
    assert decide(10, [holder("a", 14)], [want("b", 5)]).evict == ("a",)


def test_idle_models_unload_and_the_others_are_looked_at_again() -> None:
    old, young = holder("old", idle_unload=60.0), holder("young", idle_unload=200.0)
    decision = decide(30, [old, young, holder("never")], [])
    assert decision.idle == ("old",) and decision.look_again == NOW + 100


def test_two_pools() -> None:
    card, host = holder("card"), replace(holder("host"), bytes={"host": 10})
    both = Wanted("b", {"card": 10, "host": 10}, FREE, NOW)
    assert arrange({"card": 10, "host": 30}, [card, host], [both], RULES, NOW).evict == ("card",)


TIMES = st.floats(0, 2000)
HOLDERS = st.lists(
    st.builds(
        Holder,
        name=st.uuids().map(str),
        bytes=st.fixed_dictionaries({"card": st.integers(0, 20)}),
        state=st.sampled_from([Residency.LOADING, Residency.RESIDENT, Residency.LEAVING]),
        pinned=st.booleans(),
        running=st.none() | st.sampled_from(Tier),
        waiting=st.none() | st.sampled_from(Tier),
        served=st.tuples(TIMES, TIMES, TIMES, TIMES),
        loaded_for=st.none() | st.sampled_from(Tier),
        loaded_at=TIMES,
        idle_since=TIMES,
        load_seconds=st.floats(0, 100),
    ),
    max_size=6,
)
WANTED = st.lists(
    st.builds(
        Wanted,
        name=st.uuids().map(str),
        bytes=st.fixed_dictionaries({"card": st.integers(1, 30)}),
        tier=st.sampled_from(Tier),
        since=TIMES,
    ),
    max_size=4,
)


@given(st.integers(0, 60), HOLDERS, WANTED)
def test_whatever_comes(total: int, holders: list[Holder], wanted: list[Wanted]) -> None:
    decision = arrange({"card": total}, holders, wanted, RULES, NOW)
    by_name = {h.name: h for h in holders}
    tiers = {w.name: w.tier for w in wanted}
    used = sum(h.bytes["card"] for h in holders)
    loaded = sum(w.bytes["card"] for w in wanted if w.name in decision.load)
    assert loaded == 0 or used + loaded <= total, "more is loaded than there is room for"
    assert len(set(decision.evict)) == len(decision.evict)
    highest = max(tiers.values(), default=None)
    for name in decision.evict:
        assert highest is not None
        victim = by_name[name]
        assert not victim.pinned and victim.state is not Residency.LEAVING
        assert victim.running is None or victim.running < highest
        assert all(victim.served[t] + RULES.protect <= NOW for t in Tier if t > highest)
    for name, seconds in decision.refuse.items():
        assert seconds > 0 and (tiers[name] is not BACKGROUND or seconds == inf)
    told = {*decision.load, *decision.refuse}
    assert told <= tiers.keys() and not set(decision.load) & decision.refuse.keys()
    # Somebody whose turn is not now, and who is not refused, has something to wait for.
    for name in tiers.keys() - told:
        waits_for = (
            decision.evict
            or decision.look_again
            or any(
                h.state is Residency.LEAVING or h.running is not None or h.state is Residency.LOADING for h in holders
            )
        )
        assert waits_for or decision.load, name
