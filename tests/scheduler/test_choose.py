"""The choice of an engine, with plain values."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from onebit.scheduler.choose import EngineView, Need, Standing, able, choose

PRIMARY = EngineView("vulkan", capacity=8, rank=0, row_limit=8)
OVERFLOW = EngineView("rocm", capacity=16, rank=1)
ONE = Need()


def used(engine: EngineView, slots: int) -> EngineView:
    return replace(engine, in_use=slots)


def test_the_primary_fills_first_then_the_overflow_then_the_line() -> None:
    """Case 2 of the docstring."""
    for load in range(24):
        engines = (used(PRIMARY, min(load, 8)), used(OVERFLOW, max(0, load - 8)))
        assert choose(engines, ONE) == ("vulkan" if load < 8 else "rocm")
    assert choose((used(PRIMARY, 8), used(OVERFLOW, 16)), ONE) is None


def test_the_primary_is_preferred_again_as_it_drains() -> None:
    assert choose((used(PRIMARY, 7), used(OVERFLOW, 5)), ONE) == "vulkan"


def test_a_limit_below_the_slots_holds() -> None:
    engine = replace(PRIMARY, capacity=16, row_limit=8, in_use=8)
    assert choose((engine,), ONE) is None


def test_among_equals_the_one_that_served_the_conversation_last() -> None:
    """Case 3."""
    a, b = EngineView("a", 4, in_use=0), EngineView("b", 4, in_use=3)
    assert choose((a, b), ONE, last="b") == "b"
    assert choose((a, replace(b, in_use=4)), ONE, last="b") == "a"


def test_a_warm_cache_does_not_beat_the_rank() -> None:
    assert choose((used(PRIMARY, 0), used(OVERFLOW, 1)), ONE, last="rocm") == "vulkan"


def test_then_the_least_loaded() -> None:
    """Case 4: 3 of 16 is less than 1 of 4."""
    assert choose((EngineView("a", 4, in_use=1), EngineView("b", 16, in_use=3)), ONE) == "b"


def test_a_drafting_engine_serves_a_single_user_only() -> None:
    """Case 1: it hands over as soon as there are two, and gets nobody while the other engine works."""
    mtp = EngineView("mtp", 2, rank=0, row_limit=8, rows_per_sequence=4, drafting=True)
    plain = EngineView("plain", 16, rank=1)
    assert choose((mtp, plain), ONE) == "mtp"
    assert choose((mtp, used(plain, 1)), ONE) == "plain"
    assert choose((mtp, used(plain, 16)), ONE) == "mtp"  # better than waiting


def test_with_drafting_the_limit_counts_rows() -> None:
    """8 rows are 2 requests of 3 drafted tokens and one of their own each."""
    mtp = EngineView("mtp", 8, row_limit=8, rows_per_sequence=4, drafting=True)
    assert mtp.limit == 2
    assert choose((used(mtp, 1),), ONE) == "mtp"
    assert choose((used(mtp, 2),), ONE) is None
    assert replace(mtp, rows_per_sequence=17).limit == 1  # a draft longer than the limit still serves one


def test_logprobs_never_go_to_a_drafting_engine() -> None:
    mtp = EngineView("mtp", 1, drafting=True)
    plain = EngineView("plain", 1, rank=1)
    assert choose((mtp, plain), Need(plain=True)) == "plain"
    assert choose((mtp, used(plain, 1)), Need(plain=True)) is None


def test_several_answers_go_where_there_are_as_many_slots() -> None:
    """llama-server refuses an n over its slots; several prompts it queues."""
    mtp, plain = EngineView("mtp", 1, drafting=True), EngineView("plain", 16, rank=1)
    assert choose((mtp, plain), Need(sequences=2, answers=2)) == "plain"
    assert choose((mtp, plain), Need(sequences=2, answers=1)) == "mtp"
    assert choose((PRIMARY, OVERFLOW), Need(sequences=12, answers=12)) == "rocm"
    assert choose((PRIMARY, OVERFLOW), Need(sequences=99, answers=99)) == "vulkan"  # which says why not


def test_an_engine_that_is_not_open_gets_nothing() -> None:
    for standing in (Standing.COMING, Standing.GONE):
        assert choose((replace(PRIMARY, standing=standing), OVERFLOW), ONE) == "rocm"
        assert choose((replace(PRIMARY, standing=standing),), ONE) is None


def test_blocked_engines_are_spoken_for() -> None:
    assert choose((PRIMARY, OVERFLOW), ONE, blocked=frozenset({"vulkan"})) == "rocm"


def test_more_sequences_than_slots_take_them_all() -> None:
    assert PRIMARY.slots_for(Need(sequences=100)) == 8
    assert choose((used(PRIMARY, 1), used(OVERFLOW, 1)), Need(sequences=100)) is None
    assert choose((PRIMARY, OVERFLOW), Need(sequences=100)) == "vulkan"


views = st.builds(
    EngineView,
    name=st.sampled_from("abcd"),
    capacity=st.integers(1, 32),
    in_use=st.integers(0, 40),
    standing=st.sampled_from(Standing),
    rank=st.integers(0, 2),
    row_limit=st.none() | st.integers(1, 40),
    rows_per_sequence=st.integers(1, 8),
    drafting=st.booleans(),
)
needs = st.builds(Need, sequences=st.integers(1, 40), answers=st.integers(1, 40), plain=st.booleans())


@given(st.lists(views, unique_by=lambda v: v.name, max_size=4), needs, st.sampled_from([None, *"abcd"]))
def test_a_choice_always_has_room_and_none_means_that_nobody_has(
    engines: list[EngineView], need: Need, last: str | None
) -> None:
    name = choose(engines, need, last=last)
    with_room = {e.name for e in able(engines, need) if e.has_room(need)}
    assert (name in with_room) if with_room else name is None
    for engine in engines:
        if engine.name == name:
            assert engine.standing is Standing.OPEN
            assert engine.in_use + engine.slots_for(need) <= engine.limit <= engine.capacity
            assert not (need.plain and engine.drafting)


@given(st.lists(views, unique_by=lambda v: v.name, max_size=4), needs)
def test_the_choice_does_not_depend_on_the_order_of_the_list(engines: list[EngineView], need: Need) -> None:
    one, other = choose(engines, need), choose(engines[::-1], need)
    if one != other:  # only a perfect tie may fall either way
        a, b = ({e.name: e for e in engines}[n] for n in (one, other) if n is not None)
        assert (a.rank, a.in_use / a.capacity) == (b.rank, b.in_use / b.capacity)
