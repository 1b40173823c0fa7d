"""Who is served next: against a plain list, whatever comes and goes."""

from __future__ import annotations

from collections import defaultdict

from hypothesis import given, settings
from hypothesis import strategies as st

from onebit.scheduler.lease import Ask, Lease
from onebit.scheduler.line import Line
from onebit.tiers import Tier

NOBODY: frozenset[str] = frozenset()


def lease(number: int, tier: Tier = Tier.FREE, key: str = "", *, front: bool = False) -> Lease:
    made = Lease(None, None, Ask("m", tier=tier, key=key))  # type: ignore[arg-type]  # a line knows neither
    made.joined = float(number)
    made.front = front
    return made


def served(line: Line, lowest: int = 0, passed: frozenset[str] = NOBODY) -> list[float]:
    """Numbers in the order in which they are popped."""
    order = []
    while (first := line.first(lowest, passed)) is not None:
        assert line.pop(lowest, passed) is first
        order.append(first.joined)
    return order


def filled(*leases: Lease) -> Line:
    line = Line()
    for one in leases:
        line.join(one)
    return line


def test_the_highest_tier_first_and_within_it_the_keys_take_turns() -> None:
    flood = [lease(n, key="flood") for n in range(5)]
    line = filled(*flood, lease(10, key="one"), lease(11, Tier.PAID), lease(12, Tier.BACKGROUND), lease(13, key="one"))
    assert served(line) == [11, 0, 10, 1, 13, 2, 3, 4, 12]


def test_below_the_lowest_tier_and_keys_at_their_bound_are_passed() -> None:
    line = filled(lease(0, key="a"), lease(1, key="b"), lease(2, Tier.BACKGROUND), lease(3, Tier.PAID, "a"))
    assert served(line, lowest=1, passed=frozenset({"a"})) == [1]
    assert served(line) == [3, 0, 2]


def test_one_that_was_served_before_goes_in_front_of_its_tier_only() -> None:
    line = filled(lease(0, key="a"), lease(1, key="b"), lease(2, key="b", front=True), lease(3, Tier.PAID))
    assert served(line) == [3, 2, 0, 1]


def test_put_back_stands_where_it_stood() -> None:
    line = filled(lease(0, key="a"), lease(1, key="a"), lease(2, key="b"))
    first = line.pop(0, NOBODY)
    assert first is not None
    line.put_back(first)
    assert served(line) == [0, 2, 1]


def test_a_full_line_gives_up_the_youngest_of_the_weakest() -> None:
    line = filled(*(lease(n, key="flood") for n in range(5)), lease(10, key="one"), lease(11, Tier.PAID, "shop"))

    def out(tier: Tier, key: str) -> float | None:
        found = line.to_displace(tier, key)
        return None if found is None else found.joined

    assert out(Tier.PAID, "shop") == 4
    assert out(Tier.FREE, "new") == 4  # the flood has five places, it would have one
    assert out(Tier.FREE, "flood") is None
    assert out(Tier.BACKGROUND, "new") is None


def test_equals_are_not_displaced_by_turns_for_ever() -> None:
    line = filled(lease(0, key="a"), lease(1, key="a"), lease(2, key="b"))
    assert line.to_displace(Tier.FREE, "b") is None  # two and one: one and two would be no better
    assert line.to_displace(Tier.FREE, "c") is not None


def test_who_has_waited_too_long_even_behind_one_in_front() -> None:
    late, old = lease(50, key="a", front=True), lease(1, key="a")
    line = filled(old, lease(60, key="a"), late)
    assert line.since(10) == [old]
    assert line.longest() == 1


def test_those_who_leave_are_not_carried_along() -> None:
    line = Line()
    crowd = [lease(n) for n in range(1000)]
    for one in crowd:
        line.join(one)
    for one in crowd[:-1]:
        assert line.leave(one) and not line.leave(one)
    (turn,) = line._turns()
    assert len(turn.queue) < 100
    assert served(line) == [999]


STEP = st.tuples(st.sampled_from(["join", "front", "leave", "pop"]), st.sampled_from(Tier), st.sampled_from("abc"))


@given(st.lists(STEP, max_size=120), st.integers(0, 3), st.frozensets(st.sampled_from("abc"), max_size=2))
@settings(max_examples=300, deadline=None)
def test_as_a_plain_list_would(steps: list[tuple[str, Tier, str]], lowest: int, passed: frozenset[str]) -> None:
    """The model: a list a key, a list of keys a tier, served from the front, turned after each."""
    line = Line()
    queues: dict[Tier, defaultdict[str, list[Lease]]] = {tier: defaultdict(list) for tier in Tier}
    rings: dict[Tier, list[str]] = {tier: [] for tier in Tier}
    everyone: list[Lease] = []

    def gone(one: Lease) -> None:
        queues[one.tier][one.ask.key].remove(one)
        if not queues[one.tier][one.ask.key]:
            rings[one.tier].remove(one.ask.key)
        everyone.remove(one)

    for number, (what, tier, key) in enumerate(steps):
        if what in ("join", "front"):
            one = lease(number, tier, key, front=what == "front")
            line.join(one)
            everyone.append(one)
            if key not in rings[tier]:
                rings[tier].append(key)
            queues[tier][key].insert(0 if one.front else len(queues[tier][key]), one)
            if one.front:
                rings[tier].remove(key)
                rings[tier].insert(0, key)
        elif what == "leave" and everyone:
            one = everyone[number % len(everyone)]
            assert line.leave(one)
            gone(one)
        elif what == "pop":
            expected = None
            for level in sorted(Tier, reverse=True):
                keys = [k for k in rings[level] if k not in passed]
                if level >= lowest and keys:
                    expected = queues[level][keys[0]][0]
                    break
            found = line.pop(lowest, passed)
            assert found is expected
            if found is not None:
                gone(found)
                if found.ask.key in rings[found.tier]:
                    rings[found.tier].remove(found.ask.key)
                    rings[found.tier].append(found.ask.key)
        assert line.size == len(everyone) and set(line.everyone()) == set(everyone)
        assert [line.count(t) for t in Tier] == [sum(one.tier is t for one in everyone) for t in Tier]
        assert line.highest() == max((one.tier for one in everyone), default=None)
        assert all(line.has(k) == any(one.ask.key == k for one in everyone) for k in "abc")
        if not passed:
            for one in everyone:
                assert one in list(line.in_order(0, NOBODY))
