"""Every pair of the transition table."""

from __future__ import annotations

import itertools

import pytest

from onebit.engines.state import TRANSITIONS, Event, IllegalTransitionError, State, next_state


@pytest.mark.parametrize(("state", "event"), list(itertools.product(State, Event)))
def test_every_pair_is_in_the_table_or_raises(state: State, event: Event) -> None:
    if (state, event) in TRANSITIONS:
        assert next_state(state, event) is TRANSITIONS[state, event]
    else:
        with pytest.raises(IllegalTransitionError, match=state.value):
            next_state(state, event)


def test_what_is_over_stays_over_unless_it_is_wanted_again() -> None:
    for over in (State.STOPPED, State.FAILED):
        after = {event: state for (before, event), state in TRANSITIONS.items() if before is over}
        assert after.pop(Event.LOAD) is State.STARTING
        assert set(after.values()) == {over}


def test_every_state_can_be_stopped() -> None:
    for state in State:
        assert next_state(state, Event.STOP) in (State.STOPPED, State.FAILED)


def test_every_state_can_be_reached_from_the_first() -> None:
    reached = {State.STARTING}
    for _ in State:
        reached |= {after for (before, _), after in TRANSITIONS.items() if before in reached}
    assert reached == set(State)
