"""The life of an engine as a table. An event that does not belong to a state raises and changes nothing."""

from __future__ import annotations

from enum import Enum
from types import MappingProxyType


class State(Enum):
    """Where an engine is in its life."""

    STARTING = "starting"  # the process runs, the model is loading
    READY = "ready"
    DRAINING = "draining"  # no new requests; those it has may finish
    CRASHED = "crashed"  # the process is gone, the next start is waiting out its delay
    STOPPED = "stopped"  # on purpose, or not loaded yet
    FAILED = "failed"  # given up, with a cause


class Event(Enum):
    """What can happen to it."""

    LOAD = "load"  # from the outside: its model is wanted in memory
    BECAME_READY = "became ready"
    DIED = "died"  # exited by itself, or was killed because it hung
    DRAIN = "drain"
    STOP = "stop"
    START_AGAIN = "start again"
    GIVE_UP = "give up"


TRANSITIONS: MappingProxyType[tuple[State, Event], State] = MappingProxyType(
    {
        (State.STOPPED, Event.LOAD): State.STARTING,
        (State.FAILED, Event.LOAD): State.STARTING,
        (State.STARTING, Event.BECAME_READY): State.READY,
        (State.STARTING, Event.DIED): State.CRASHED,
        (State.STARTING, Event.DRAIN): State.DRAINING,
        (State.STARTING, Event.STOP): State.STOPPED,
        (State.READY, Event.DIED): State.CRASHED,
        (State.READY, Event.DRAIN): State.DRAINING,
        (State.READY, Event.STOP): State.STOPPED,
        (State.DRAINING, Event.BECAME_READY): State.DRAINING,
        (State.DRAINING, Event.DIED): State.STOPPED,
        (State.DRAINING, Event.DRAIN): State.DRAINING,
        (State.DRAINING, Event.STOP): State.STOPPED,
        (State.CRASHED, Event.START_AGAIN): State.STARTING,
        (State.CRASHED, Event.GIVE_UP): State.FAILED,
        (State.CRASHED, Event.DRAIN): State.STOPPED,
        (State.CRASHED, Event.STOP): State.STOPPED,
        (State.STOPPED, Event.DRAIN): State.STOPPED,
        (State.STOPPED, Event.STOP): State.STOPPED,
        (State.FAILED, Event.DRAIN): State.FAILED,
        (State.FAILED, Event.STOP): State.FAILED,
    }
)


class IllegalTransitionError(RuntimeError):
    """An event came in a state that does not know it: a bug in the caller."""


def next_state(state: State, event: Event) -> State:
    """The state after `event`. Raises IllegalTransitionError when the table has no such row."""
    try:
        return TRANSITIONS[state, event]
    except KeyError:
        raise IllegalTransitionError(f"{event.value!r} in state {state.value!r}") from None
