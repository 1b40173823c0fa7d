"""Where weights lie, and which of them are the same memory under several names."""

from __future__ import annotations

from collections.abc import Mapping, Set
from typing import NamedTuple


class Place(NamedTuple):
    """The memory of a weight, from its first byte to its last."""

    device: str
    begin: int  # address
    end: int  # of the first byte behind it
    holder: tuple[int, str] | None = None  # the module that it is a parameter of, which may have several names


NOWHERE = Place("", 0, 0)
"""Of what has no memory, or not in one piece."""


def shared(places: Mapping[str, Place], written: Set[str]) -> tuple[str, str] | None:
    """Two names that a merge into the weights `written` would confuse, if there are any: of memory that they share.

    That is memory written under two names, and memory written under one and used under another, by another module:
    there, the adapter is not meant to be.
    """
    begun: list[str] = []  # those that reach beyond the beginning of the one that is looked at
    for name in sorted(places, key=lambda name: (places[name], name)):
        place = places[name]
        begun = [other for other in begun if places[other].device == place.device and places[other].end > place.begin]
        for other in begun:
            both, either = {name, other} <= written, name in written or other in written
            if both or (either and (place.holder is None or place.holder != places[other].holder)):
                return other, name
        if place.end > place.begin:
            begun.append(name)
    return None
