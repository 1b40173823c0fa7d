"""Who gets the memory, and who must go: a pure function of frozen values. No clock, no log, no I/O.

The rules, in the order in which they count:

* The highest tier that waits for a model comes first; within a tier the model that has waited longest.
* A model is protected from a tier T by what it did for a higher one in the last `protect` seconds, and by requests of
  a higher tier that run on it or wait for it. Who meets that protection is refused with the time that is left of it.
* By requests of tier T itself that run on it or wait for it, and for `min_residency` seconds after its load, it is
  only kept: whoever wants its place waits. But once that one has waited for `max_hold`, the model takes no more
  requests of T and below, finishes those it has, and goes.
* Requests of lower tiers keep nothing: they get the grace period.
* Of the models that may go: the least protected first, then the longest idle in terms of what its reload costs, and no
  more of them than it takes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import inf
from typing import NamedTuple

from onebit.memory.residency import Residency
from onebit.tiers import Tier

Bytes = Mapping[str, int]
_NEVER = (-inf, -inf, -inf, -inf)


@dataclass(frozen=True, slots=True)
class Rules:
    """Times in seconds."""

    protect: float = 60.0
    min_residency: float = 5.0
    max_hold: float = 30.0


@dataclass(frozen=True, slots=True)
class Holder:
    """A model that holds memory. Times are on the clock that `now` is on."""

    name: str
    bytes: Bytes
    state: Residency = Residency.RESIDENT
    pinned: bool = False
    running: Tier | None = None  # the highest tier that runs on it
    waiting: Tier | None = None  # the highest tier that waits for it
    served: tuple[float, float, float, float] = _NEVER  # by tier: when a request of it last ended here
    loaded_for: Tier | None = None
    loaded_at: float = -inf
    idle_since: float = -inf
    load_seconds: float = 1.0
    idle_unload: float | None = None  # seconds


@dataclass(frozen=True, slots=True)
class Wanted:
    """A model that is not in memory, and that requests wait for."""

    name: str
    bytes: Bytes
    tier: Tier  # the highest that waits
    since: float  # when the longest-waiting request of that tier came


@dataclass(frozen=True, slots=True)
class Arrangement:
    """What to do now. Models not named go on as they are."""

    load: tuple[str, ...] = ()
    evict: tuple[str, ...] = ()
    idle: tuple[str, ...] = ()  # unload: nobody has asked for them
    hold: Mapping[str, Tier] = field(default_factory=dict)  # take no requests of this tier and below
    refuse: Mapping[str, float] = field(default_factory=dict)  # seconds until trying again makes sense; inf: never
    look_again: float | None = None  # at this time something may have changed by itself


class _Stay(NamedTuple):
    """Why a model stays for now: `refuse` says that its claim is stronger than that of whoever wants its place."""

    until: float
    refuse: bool = False
    hold: bool = False  # it can be made to go by taking no more requests


def arrange(
    totals: Bytes, holders: Sequence[Holder], wanted: Sequence[Wanted], rules: Rules, now: float
) -> Arrangement:
    """Decide loads, evictions, holds and refusals. `totals`: bytes by pool."""
    free = _after(totals, holders)
    coming = {pool: sum(h.bytes.get(pool, 0) for h in holders if h.state is Residency.LEAVING) for pool in totals}
    load: list[str] = []
    evict: list[str] = []
    hold: dict[str, Tier] = {}
    refuse: dict[str, float] = {}
    look: list[float] = []
    for want in sorted(wanted, key=lambda w: (-w.tier, w.since)):
        if not _fits(want.bytes, totals):
            refuse[want.name] = inf
            continue
        if _fits(want.bytes, free):
            load.append(want.name)
            _take(want.bytes, free)
            continue
        if _fits(want.bytes, {pool: free[pool] + coming[pool] for pool in totals}):
            _take(want.bytes, free, coming)  # room is being made: what is free now is spoken for
            continue
        open_to = [h for h in holders if h.state is not Residency.LEAVING and h.name not in evict]
        stays = {h.name: _why_it_stays(h, want, rules, now) for h in open_to}
        short = {pool: want.bytes.get(pool, 0) - free[pool] - coming[pool] for pool in totals}
        victims = _victims([h for h in open_to if stays[h.name] is None], short, rules, now)
        if victims is not None:
            evict += [v.name for v in victims]
            for victim in victims:
                for pool, size in victim.bytes.items():
                    coming[pool] += size
            _take(want.bytes, free, coming)
            continue
        strong = [h for h in open_to if (stay := stays[h.name]) is not None and stay.refuse]
        left = _after(totals, strong)
        if not _fits(want.bytes, left) and want.tier is not Tier.BACKGROUND:
            refuse[want.name] = _protection_left(want, left, strong, stays) - now
            continue
        patient = [h for h in open_to if h not in strong]
        overdue = now - want.since >= rules.max_hold
        for holder in patient:
            stay = stays[holder.name]
            if stay is None:
                continue
            look.append(stay.until)
            if overdue and stay.hold and _uses_any(holder.bytes, short):
                hold[holder.name] = max(want.tier, hold.get(holder.name, want.tier))
        look.append(want.since + rules.max_hold)
        look += [stay.until for stay in stays.values() if stay is not None]
        if overdue:
            _take(want.bytes, free, coming)  # nobody behind it takes what it waits for
    idle, times = _idle(holders, evict, now)
    later = [time for time in look + times if now < time < inf]
    return Arrangement(tuple(load), tuple(evict), idle, hold, refuse, min(later, default=None))


def _why_it_stays(holder: Holder, want: Wanted, rules: Rules, now: float) -> _Stay | None:
    """None: it may go for `want`."""
    tier = want.tier
    if holder.pinned:
        return _Stay(inf, refuse=True)
    if (holder.running is not None and holder.running > tier) or (holder.waiting is not None and holder.waiting > tier):
        return _Stay(now + rules.protect, refuse=True)
    if higher := holder.served[tier + 1 :]:
        recently = max(higher) + rules.protect
        if recently > now:
            return _Stay(recently, refuse=True)
    if holder.loaded_for is not None and holder.loaded_for >= tier and now < holder.loaded_at + rules.min_residency:
        return _Stay(holder.loaded_at + rules.min_residency)
    if holder.running == tier:
        return _Stay(inf, hold=True)
    if holder.waiting == tier and now - want.since < rules.max_hold:
        return _Stay(want.since + rules.max_hold)
    if holder.waiting == tier and holder.state is Residency.LOADING:
        return _Stay(inf)  # a load that was begun serves somebody first
    return None


def _victims(candidates: Sequence[Holder], short: Bytes, rules: Rules, now: float) -> list[Holder] | None:
    """The fewest of the least worth keeping that free what is short; None when all together do not."""

    since = now - rules.protect

    def worth(holder: Holder) -> tuple[int, float, int]:
        running, waiting = holder.running, holder.waiting
        kept = -1 if running is None else int(running)
        if waiting is not None and waiting > kept:
            kept = int(waiting)
        idle = 0.0 if kept >= 0 else now - holder.idle_since
        for tier in (3, 2, 1, 0):
            if tier <= kept or holder.served[tier] > since:
                kept = max(kept, tier) if holder.served[tier] > since else kept
                break
        load_seconds = holder.load_seconds
        return (kept, -idle / (load_seconds if load_seconds > 0.1 else 0.1), sum(holder.bytes.values()))

    left = dict(short)
    chosen: list[Holder] = []
    for holder in sorted((c for c in candidates if _uses_any(c.bytes, short)), key=worth):
        if all(size <= 0 for size in left.values()):
            break
        if _uses_any(holder.bytes, left):
            chosen.append(holder)
            left = {pool: size - holder.bytes.get(pool, 0) for pool, size in left.items()}
    if any(size > 0 for size in left.values()):
        return None
    for holder in reversed(chosen[:-1]):  # a later, larger one may have made an earlier one needless
        without = {pool: size + holder.bytes.get(pool, 0) for pool, size in left.items()}
        if all(size <= 0 for size in without.values()):
            chosen.remove(holder)
            left = without
    return chosen


def _after(totals: Bytes, holders: Sequence[Holder]) -> dict[str, int]:
    """What there would be if these were the only ones."""
    return {pool: total - sum(h.bytes.get(pool, 0) for h in holders) for pool, total in totals.items()}


def _protection_left(want: Wanted, left: Bytes, strong: Sequence[Holder], stays: Mapping[str, _Stay | None]) -> float:
    """The time at which enough protection has run out; inf: never."""
    untils = {holder.name: stay.until for holder in strong if (stay := stays[holder.name]) is not None}
    room = dict(left)
    for holder in sorted(strong, key=lambda h: untils[h.name]):
        room = {pool: size + holder.bytes.get(pool, 0) for pool, size in room.items()}
        if _fits(want.bytes, room):
            return untils[holder.name]
    return inf


def _idle(holders: Sequence[Holder], evict: Sequence[str], now: float) -> tuple[tuple[str, ...], list[float]]:
    """(models that have been idle too long, when others will have been)."""
    names, times = [], []
    for h in holders:
        if h.idle_unload is None or h.pinned or h.state is not Residency.RESIDENT or h.name in evict:
            continue
        if h.running is None and h.waiting is None:
            end = h.idle_since + h.idle_unload
            if end <= now:
                names.append(h.name)
            else:
                times.append(end)
    return tuple(names), times


def _fits(needs: Bytes, room: Bytes) -> bool:
    return all(size <= 0 or size <= room.get(pool, 0) for pool, size in needs.items())


def _uses_any(held: Bytes, short: Bytes) -> bool:
    # Asked of every model: any() with a generator took twice as long.
    for pool, size in short.items():  # noqa: SIM110
        if size > 0 and held.get(pool, 0) > 0:
            return True
    return False


def _take(needs: Bytes, free: dict[str, int], coming: dict[str, int] | None = None) -> None:
    """Take `needs` out of what comes free first, then of what is free."""
    for pool, size in needs.items():
        if coming is not None:
            from_coming = max(0, min(size, coming[pool]))
            coming[pool] -= from_coming
            size -= from_coming
        free[pool] = free.get(pool, 0) - size
