"""The slot ledger: choosing an engine and reserving its slots is one locked step.

Synchronous on purpose, so nothing can come between check and take. An early version of the router this
project grew from asked "is the first engine free?" for a whole burst before any request had claimed it.
"""

from __future__ import annotations

import itertools
import threading
from collections import OrderedDict
from collections.abc import Iterable, Set
from dataclasses import replace
from typing import NamedTuple

from onebit.scheduler.choose import AdapterSet, EngineView, Need, Standing, able, choose
from onebit.scheduler.profile import Grid
from onebit.scheduler.split import HOLD_GAIN, Decision, Split, pick

# Conversations remembered for the prompt cache. An engine holds as many warm prompts as it has slots, so a few
# thousand outlive every cache; an entry is about 100 bytes.
_REMEMBERED = 4096
_OPEN = Standing.OPEN
_NONE: frozenset[str] = frozenset()


class Claim(NamedTuple):
    """Slots taken on one engine, to be given back exactly once. (A frozen dataclass took twice as long to make.)"""

    id: int
    engine: str
    slots: int


class SlotLedger:
    """Who holds which slots. Thread-safe; every method is one short locked step."""

    def __init__(self, engines: Iterable[EngineView], grid: Grid | None = None, hold_gain: float = HOLD_GAIN) -> None:
        """`grid`: what was measured of two engines that share a card; with it, it decides instead of row limits.

        `hold_gain`: the share by which the others must gain for a request to wait beside a free slot.
        """
        self._lock = threading.Lock()
        self._grid = grid
        self._hold_gain = hold_gain
        self._split: Split | None = None  # what the load moves towards
        # Each engine with every number of slots in use, made once: two new views for every request were 4 % of the
        # router's work for an answer.
        self._loads: dict[str, tuple[EngineView, ...]] = {e.name: _loads(e) for e in engines}
        self._engines: dict[str, EngineView] = {name: loads[0] for name, loads in self._loads.items()}
        self._claims: dict[int, Claim] = {}
        self._served = dict.fromkeys(self._engines, 0)
        self._in_use = 0  # the sum over the engines
        self._ids = itertools.count(1)
        self._last: OrderedDict[int, str] = OrderedDict()
        self._sets: dict[str, AdapterSet] = {}  # what each engine decodes with, of models with adapters to choose
        self._look()
        self._hope()

    def claim(self, need: Need, blocked: Set[str] = frozenset(), waiting: int = 0) -> Claim | None:
        """Choose an engine for `need` and take its slots; None when there is no room now.

        `blocked`: engines that are spoken for. `waiting`: how many wait behind this one.
        """
        with self._lock:
            name = self._choose(need, blocked, waiting)
            if name is None:
                return None
            if need.conversation is not None and len(self._views) > 1:
                self._remember(need.conversation, name)
            engine = self._engines[name]
            claim = Claim(next(self._ids), name, engine.slots_for(need))
            self._claims[claim.id] = claim
            self._served[name] += 1
            self._in_use += claim.slots
            if need.adapters is not None:
                self._sets[name] = need.adapters
            self._engines[name] = self._loads[name][engine.in_use + claim.slots]
            self._look()
            return claim

    def has_room(self, need: Need, waiting: int = 0) -> bool:
        """Would `claim` give it slots now?"""
        with self._lock:
            return self._choose(need, frozenset(), waiting) is not None

    def _choose(self, need: Need, blocked: Set[str], waiting: int) -> str | None:
        views = self._views
        if need.adapters is not None:
            blocked = blocked | self._other_sets(need)
        if len(views) == 1 and not blocked:  # nothing to choose
            return views[0].name if not self.full and views[0].has_room(need) else None
        measured = self._grid is not None and not blocked and need.adapters is None  # it was measured without any
        if measured and (decision := self._measured_choice(need, waiting)) is not None:
            self._split = decision.split
            return None if decision.engine is None else views[decision.engine].name
        last = self._last.get(need.conversation) if need.conversation is not None else None
        return choose(views, need, last=last, blocked=blocked)

    def _measured_choice(self, need: Need, waiting: int) -> Decision | None:
        """By the profile, for a request of one sequence that both engines can serve; None: it does not say."""
        first, second = self._views
        both = first.standing is second.standing is _OPEN
        if (
            self._grid is None
            or not both
            or need.sequences != 1
            or not (first.may_serve(need) and second.may_serve(need))
        ):
            return None
        in_use, slots = (first.in_use, second.in_use), (first.limit, second.limit)
        return pick(self._grid, in_use, slots, waiting=waiting, previous=self._split, hold_gain=self._hold_gain)

    def hand_over(self, claim: Claim, need: Need) -> bool:
        """Let `claim` go on for `need`, its slots never free in between; False: that needs a choice.

        For the first in line: where nothing else is free, these are the slots it would be given anyway.
        """
        if self._alone and self.full and need.sequences == claim.slots and need.adapters is None:
            self._served[claim.engine] += 1
            return True
        engine = self._engines[claim.engine]
        if self._grid is not None or not self.full or engine.standing is not _OPEN:
            return False
        if engine.slots_for(need) != claim.slots:
            return False
        if need.plain and engine.drafting:
            return False
        if need.adapters is not None and need.adapters != self._sets.get(claim.engine):
            return False
        self._served[claim.engine] += 1
        if need.conversation is not None and len(self._views) > 1:
            with self._lock:
                self._remember(need.conversation, claim.engine)
        return True

    def release(self, claim: Claim) -> None:
        """Give the slots back. Raises KeyError when they were given back before: that is a bug, not an event."""
        with self._lock:
            del self._claims[claim.id]
            engine = self._engines[claim.engine]
            self._in_use -= claim.slots
            self._engines[claim.engine] = self._loads[claim.engine][engine.in_use - claim.slots]
            self._look()

    def set_standing(self, name: str, standing: Standing) -> None:
        """An engine came up, went down, or is gone for good. Claims on it stay until they are released."""
        with self._lock:
            self._engines[name] = replace(self._engines[name], standing=standing)
            self._loads[name] = _loads(self._engines[name])
            self._engines[name] = self._loads[name][self._engines[name].in_use]
            self._look()
            self._hope()

    def hopeless(self, need: Need) -> bool:
        """True when no engine can ever serve `need`: waiting makes no sense."""
        with self._lock:
            return not any(view.may_serve(need) for view in self._views)

    def contenders(self, need: Need) -> frozenset[str]:
        """The engines that could serve `need`, now or later."""
        with self._lock:
            return frozenset(e.name for e in able(self._views, need))

    def other_sets(self, need: Need) -> frozenset[str]:
        """The engines that decode with other adapters than `need` asks for: none of theirs is free for it.

        llama-server never decodes two sets in one batch. It would finish one slot after the other, in the order of
        their numbers, and who waits there can no longer be told from who works.
        """
        with self._lock:
            return self._other_sets(need)

    def sets_with_room(self) -> frozenset[AdapterSet] | None:
        """The sets of adapters that engines with a free slot decode with; None: one of them is idle, so any will do."""
        with self._lock:
            room = [view for view in self._views if view.spare > 0]
            if not all(view.in_use and view.name in self._sets for view in room):
                return None
            return frozenset(self._sets[view.name] for view in room)

    def views(self) -> tuple[EngineView, ...]:
        """A consistent picture of all engines."""
        with self._lock:
            return self._views

    def served(self) -> dict[str, int]:
        """Claims so far, by engine."""
        with self._lock:
            return dict(self._served)

    @property
    def in_use(self) -> int:
        """Slots claimed, over all engines."""
        return self._in_use

    def check_invariants(self) -> None:
        """The books balance: claimed + free = all, on every engine. Raises AssertionError."""
        with self._lock:
            if self._in_use != sum(c.slots for c in self._claims.values()):
                raise AssertionError(f"{self._in_use} slots counted, but the claims hold another number")
            for engine in self._engines.values():
                claimed = sum(c.slots for c in self._claims.values() if c.engine == engine.name)
                if engine is not self._loads[engine.name][engine.in_use]:
                    raise AssertionError(f"{engine.name}: not the view that belongs to its load")
                if claimed != engine.in_use or not 0 <= engine.in_use <= engine.limit:
                    raise AssertionError(
                        f"{engine.name}: {claimed} claimed, {engine.in_use} counted, of {engine.limit}"
                    )

    def _look(self) -> None:
        """After a change of any view: note what is asked for all the time."""
        views = self._views = tuple(self._engines.values())
        self.full = views[0].spare <= 0 if len(views) == 1 else all(view.spare <= 0 for view in views)

    def _hope(self) -> None:
        """After a change of standing: is there an engine that could serve anything?"""
        views = self._views
        self.limit = sum(v.limit for v in views)  # slots that may be in use at once
        self.serves_all = any(v.standing is not Standing.GONE and not v.drafting for v in views)
        # One engine that takes whatever fits: its slots go on without a question, which was 0.1 of an admission's 6 µs.
        self._alone = len(views) == 1 and views[0].standing is _OPEN and not views[0].drafting

    def _other_sets(self, need: Need) -> frozenset[str]:
        if need.adapters is None:
            return _NONE
        sets = self._sets.items()
        return frozenset(name for name, its in sets if its != need.adapters and self._engines[name].in_use)

    def _remember(self, conversation: int, engine: str) -> None:
        self._last[conversation] = engine
        self._last.move_to_end(conversation)
        if len(self._last) > _REMEMBERED:
            self._last.popitem(last=False)


def _loads(engine: EngineView) -> tuple[EngineView, ...]:
    return tuple(replace(engine, in_use=slots) for slots in range(engine.limit + 1))
