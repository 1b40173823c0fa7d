"""Which engine a request gets: a pure function from frozen values to a name."""

from __future__ import annotations

from collections.abc import Sequence, Set
from dataclasses import dataclass, field
from enum import Enum

AdapterSet = tuple[tuple[str, float], ...]  # names and scales: engines started later may number them anew
"""Adapters by number, and their scales, in order. Empty: the model as it is."""


class Standing(Enum):
    """Can an engine take a request?"""

    OPEN = "open"  # ready
    COMING = "coming"  # starting, or about to be started again: worth waiting for
    GONE = "gone"  # failed or stopped: never again


@dataclass(frozen=True, slots=True)
class Need:
    """What a request takes: how many sequences decode for it, and what it cannot have."""

    sequences: int = 1  # n answers × prompts in the body
    answers: int = 1  # n: llama-server refuses more than it has slots, while prompts may queue there
    plain: bool = False  # must not run on a drafting engine (logprobs)
    conversation: int | None = None  # hash of how the conversation began, None: unknown
    adapters: AdapterSet | None = None  # decode only with the same set beside; None: the model has none to choose


@dataclass(frozen=True, slots=True)
class EngineView:
    """What the choice may know of an engine. `in_use` and `capacity` count slots."""

    name: str
    capacity: int
    in_use: int = 0
    standing: Standing = Standing.OPEN
    rank: int = 0  # 0 fills first (the primary); equal ranks share
    row_limit: int | None = None  # --adaptive-at: batch rows that may be in flight; None: as many as slots
    rows_per_sequence: int = 1  # a drafting engine decodes draft length + 1 rows a sequence
    drafting: bool = False

    limit: int = field(init=False, compare=False)  # slots that may be in use: all, or what the row limit allows
    spare: int = field(init=False, compare=False)  # slots that are free now; none where it does not run

    def __post_init__(self) -> None:
        # Once a view, not once a look: as properties they were an eighth of an admission (measured).
        rows = self.capacity if self.row_limit is None else self.row_limit // self.rows_per_sequence
        limit = max(1, min(self.capacity, rows))
        object.__setattr__(self, "limit", limit)
        object.__setattr__(self, "spare", limit - self.in_use if self.standing is Standing.OPEN else 0)

    def slots_for(self, need: Need) -> int:
        """Slots that `need` takes here. More sequences than slots run one after another in all of them."""
        return need.sequences if need.sequences < self.limit else self.limit

    def may_serve(self, need: Need) -> bool:
        """Could this engine ever serve `need`?"""
        return self.standing is not Standing.GONE and not (need.plain and self.drafting)

    def has_room(self, need: Need) -> bool:
        """Can this engine serve `need` now?"""
        return self.spare >= self.slots_for(need) and not (need.plain and self.drafting)


def able(engines: Sequence[EngineView], need: Need) -> Sequence[EngineView]:
    """The engines that could serve `need`, now or later; those that would refuse it only if there are no others."""
    serving = [e for e in engines if e.may_serve(need)]
    return [e for e in serving if e.capacity >= need.answers] or serving


def choose(
    engines: Sequence[EngineView],
    need: Need,
    *,
    last: str | None = None,
    blocked: Set[str] = frozenset(),
) -> str | None:
    """The engine that serves `need` now, or None: it waits in line.

    Of the engines with room:

    1. A drafting engine comes last while any other engine works: drafting pays for a single user only
       (24.9 instead of 36.9 tok/s at 4 requests on Vulkan), so it hands over as soon as there are two.
    2. The lowest rank: the primary until its row limit, then the overflow; the primary again as it drains.
    3. Among equals the one that served this conversation last (`last`): its prompt cache is warm.
    4. Then the one with the smallest share of its slots in use.

    `blocked` engines are spoken for by requests further ahead in the line.
    """
    with_room = [e for e in able(engines, need) if e.name not in blocked and e.has_room(need)]
    if not with_room:
        return None
    if len(with_room) == 1:
        return with_room[0].name

    def order(engine: EngineView) -> tuple[bool, int, bool, float]:
        crowded = engine.drafting and any(e.in_use for e in engines if e.name != engine.name)  # 1
        return (crowded, engine.rank, engine.name != last, engine.in_use / engine.capacity)  # 1, 2, 3, 4

    return min(with_room, key=order).name
