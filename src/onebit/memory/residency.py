"""Is a model in memory? Its way in and out as a table; an event that does not belong to a state raises."""

from __future__ import annotations

from enum import Enum
from types import MappingProxyType


class Residency(Enum):
    """Where a model is on its way into memory and out of it."""

    ABSENT = "unloaded"
    LOADING = "loading"
    RESIDENT = "loaded"
    LEAVING = "unloading"  # no new requests; those it has may finish, then its processes end


class Step(Enum):
    """What can happen to it."""

    LOAD = "load"
    LOADED = "loaded"
    UNLOAD = "unload"  # evicted, idle too long, taken out of the config, or all its engines have failed
    GONE = "gone"  # its processes have ended and the memory was seen to be free


STEPS: MappingProxyType[tuple[Residency, Step], Residency] = MappingProxyType(
    {
        (Residency.ABSENT, Step.LOAD): Residency.LOADING,
        (Residency.LOADING, Step.LOADED): Residency.RESIDENT,
        (Residency.LOADING, Step.UNLOAD): Residency.LEAVING,
        (Residency.RESIDENT, Step.UNLOAD): Residency.LEAVING,
        (Residency.LEAVING, Step.LOADED): Residency.LEAVING,  # told to leave while it loaded
        (Residency.LEAVING, Step.GONE): Residency.ABSENT,
    }
)


class IllegalStepError(RuntimeError):
    """A step that the state does not know: a bug in the caller."""


def after(residency: Residency, step: Step) -> Residency:
    """The state after `step`. Raises IllegalStepError when the table has no such row."""
    try:
        return STEPS[residency, step]
    except KeyError:
        raise IllegalStepError(f"{step.value!r} while {residency.value!r}") from None
