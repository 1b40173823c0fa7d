"""The gate: a request enters when it holds a slot of a model in memory, waits in line, or is refused with the truth.

One structure decides all of it, on one event loop, without an `await` between check and take: lines by tier, slots,
and (in `cards`) who gets the memory. What it decides to load or unload is done by others, which report back.

What is asked in every admission is written flat: a call costs 0.1 µs, and an admission has about ten to spend.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from time import monotonic

from onebit.errors import OnebitError
from onebit.memory.residency import Residency
from onebit.scheduler import refusals
from onebit.scheduler.caps import Caps
from onebit.scheduler.choose import Need, Standing
from onebit.scheduler.lease import Ask, Lease, Stop
from onebit.scheduler.model import Model
from onebit.scheduler.patience import Patience
from onebit.scheduler.slots import Claim
from onebit.tiers import Tier

_BACKGROUND, _RESIDENT = Tier.BACKGROUND, Residency.RESIDENT  # looked up on the enum, each costs 0.05 µs a time


@dataclass(frozen=True, slots=True)
class Limits:
    """Bounds. `max_in_flight`: by key name. Times in seconds; `max_wait_boost` None: nobody is ever lifted."""

    max_waiting: int = 1024  # for each model
    max_wait: float = 600.0
    max_wait_boost: float | None = None
    max_in_flight: tuple[tuple[str, int], ...] = ()


class Gate:
    """Admits requests to the models' engines. Lives on one event loop."""

    def __init__(
        self,
        models: Iterable[Model],
        limits: Limits = Limits(),
        clock: Callable[[], float] = monotonic,
    ) -> None:
        self.models = {model.name: model for model in models}
        self.clock = clock
        # What the memory's side wants to know: to look again at who should be in memory; and, while somebody waits for
        # memory, that a model has no more requests of some tier.
        self.rearrange: Callable[[], None] = lambda: None
        self.memory_is_wanted = False
        self._closed: Callable[[], OnebitError] | None = None
        self.background = 0  # background requests that run or wait
        self._drained = asyncio.Event()
        self._patience = Patience(self)
        self._loop: asyncio.AbstractEventLoop | None = None  # asked for once: the question is a system call
        self.set_limits(limits)

    def set_limits(self, limits: Limits) -> None:
        """Other bounds, from now on."""
        self.limits = limits
        self.caps = Caps(dict(limits.max_in_flight), (lease.ask.key for lease in self.running()))
        for model in self.models.values():
            self.hand_over(model)  # a key may run more than before
        self._patience.look_again()

    @property
    def waiting(self) -> int:
        """Requests in line, over all models."""
        return sum(model.line.size for model in self.models.values())

    @property
    def in_use(self) -> int:
        """Slots in use, over all models."""
        return sum(model.slots.in_use for model in self.models.values())

    @property
    def closed(self) -> bool:
        """Is nobody let in any more?"""
        return self._closed is not None

    def running(self) -> Iterator[Lease]:
        """The requests at work, over all models."""
        return (lease for model in self.models.values() for lease in model.running.values())

    def admit(self, ask: Ask, *, left: str | None = None, front: bool = False) -> Lease:
        """Hold slots for the length of the block: `async with gate.admit(ask) as lease`.

        `left`: the request was admitted before, and this engine died under it. Another one is taken at once, if one
        has room; else it goes to the front of the line. `front`: it was preempted, and goes there too.
        Raises UnknownModel. Entering raises QueueFull (429), WaitTooLong, Unavailable and its kinds (503),
        InvalidRequest (it asks for what none of the engines can do).
        """
        model = self.models.get(ask.model)
        if model is None:
            raise refusals.gone(ask.model)
        return Lease(self, model, ask, left, front or left is not None)

    # --- one tick each, no await: nothing comes between the check and the take ------------------------------

    def take(self, lease: Lease) -> bool:
        """Give `lease` its slots if it may have them now. Raises the refusals that need no waiting to be known."""
        model = lease.model
        if self._closed is not None:
            raise self._closed()
        if model.residency is not _RESIDENT:
            if (error := refusals.not_loaded(model, self.clock())) is not None:
                raise error
            return False
        claim = None
        if lease.left is not None:  # another engine; it was admitted before, so it need not stand in line
            if self._may_run(model, lease):
                claim = model.slots.claim(lease.ask.need, frozenset({lease.left}))
        elif not model.line.size and not model.slots.full and self._may_run(model, lease):
            claim = model.slots.claim(lease.ask.need)
        if claim is not None:
            if self.background:
                self._came(model, lease)
            elif lease.tier is _BACKGROUND:
                self.background += 1
            self._begin(model, lease, claim)
            return True
        if not model.slots.serves_all and model.slots.hopeless(lease.ask.need):
            raise refusals.hopeless(model, lease.ask.need)
        return False

    def give_back(self, lease: Lease) -> None:
        """The block was left: its slots go to the next in line, straight, without being free in between."""
        model, claim, caps = lease.model, lease.claim, self.caps
        if claim is None:
            raise AssertionError("a lease is given back exactly once")
        lease.claim = None
        now = self.clock()
        running, line = model.running, model.line
        model.releases.append(now)
        model.served[lease.tier] = now
        free_again = lease.ask.key in caps.limits and caps.ended(lease.ask.key)
        following = None
        if line.size and self._closed is None and model.residency is _RESIDENT:
            following = line.pop(self._lowest(model) if self.background or model.hold is not None else 0, caps.full)
        if following is not None:
            future = following.future
            if future is not None and not future.done() and model.slots.hand_over(claim, following.ask.need):
                following.claim = claim  # as _begin
                running[claim.id] = following
                if following.ask.key in caps.limits:
                    caps.began(following.ask.key)
                future.set_result(None)
            else:
                line.put_back(following)
                following = None
        if following is None:
            self._release(model, claim, now)
        if self.background:
            self.background -= lease.tier is _BACKGROUND
            self._hand_over_background()
        if free_again:
            self._hand_over_to(lease.ask.key)
        if (self.memory_is_wanted or not running) and not any(other.tier is lease.tier for other in running.values()):
            self.rearrange()
        if self._closed is not None and not any(self.running()):
            self._drained.set()

    def _release(self, model: Model, claim: Claim, now: float) -> None:
        """Slots become free, and nobody has them yet."""
        del model.running[claim.id]
        model.slots.release(claim)
        if model.line.size:
            self.hand_over(model)
        if not model.running:
            model.idle_since = now
            if model.emptied is not None:
                model.emptied.set()

    def hand_over(self, model: Model) -> None:
        """Give free slots to those in line, in their order, until nothing fits."""
        line, slots = model.line, model.slots
        while self._closed is None and model.residency is _RESIDENT and line.size and not slots.full:
            lowest = self._lowest(model)
            lease = line.first(lowest, self.caps.full)
            if lease is None:
                return
            if lease.future is not None and lease.future.cancelled():  # its task has not run yet
                self._leave_line(lease)
                continue
            claim = slots.claim(lease.ask.need, waiting=line.size - 1)
            if claim is not None:
                line.pop(lowest, self.caps.full)
            else:
                other = self._one_that_fits(model, lowest)
                if other is None:
                    return
                lease, claim = other
                line.leave(lease)
            self._begin(model, lease, claim)
            if lease.future is not None:
                lease.future.set_result(None)

    def refuse(self, lease: Lease, error: OnebitError) -> None:
        """Tell one in line that it does not get in."""
        if self._leave_line(lease):
            lease.error = error
            if lease.future is not None and not lease.future.done():
                lease.future.set_result(None)

    def stop_running(self, model: Model) -> None:
        """End what still runs on a model that must go."""
        for lease in tuple(model.running.values()):
            lease.stop(Stop.EVICTED)

    def engine_changed(self, name: str, engine: str, standing: Standing, cause: str | None = None) -> None:
        """An engine came up or went down: serve or refuse those who wait. `cause`: why it is gone, one sentence."""
        model = self.models[name]
        if cause is not None:
            model.causes[engine] = cause
        model.slots.set_standing(engine, standing)
        if model.residency is _RESIDENT:
            self.refuse_the_hopeless(model)
            self.hand_over(model)

    def refuse_the_hopeless(self, model: Model) -> None:
        """Tell those in line whom none of the model's engines can ever serve."""
        if not model.slots.serves_all:
            for lease in model.line.everyone():
                if model.slots.hopeless(lease.ask.need):
                    self.refuse(lease, refusals.hopeless(model, lease.ask.need))

    def close(self, refusal: Callable[[], OnebitError]) -> None:
        """Refuse everyone from now on, those in line too; running requests go on."""
        self._closed = refusal
        for model in self.models.values():
            for lease in model.line.everyone():
                self.refuse(lease, refusal())

    async def idle(self) -> None:
        """Return when no slot is in use. Only after `close`: before it, there may be no such moment."""
        if any(self.running()):
            await self._drained.wait()

    # --- those who wait ------------------------------------------------------------------------------------------

    def enter(self, lease: Lease) -> asyncio.Future[None] | None:
        """Slots at once (None), or a place in line: what to wait for. Raises the refusals that are known by now."""
        model = lease.model
        line, slots = model.line, model.slots
        behind_others = line.size and lease.left is None and self._closed is None and slots.serves_all
        if not (behind_others and model.residency is _RESIDENT) and self.take(lease):  # else it would say no, later
            return None
        if line.size >= self.limits.max_waiting and not lease.front:
            self._make_place(model, lease)
        loop = self._loop
        if loop is None:
            loop = self._loop = asyncio.get_running_loop()
        future = lease.future = loop.create_future()
        lease.joined = self.clock()
        line.join(lease)
        if not self._patience.awake:
            self._patience.wake()
        if self.background:
            self._came(model, lease)
        elif lease.tier is _BACKGROUND:
            self.background += 1
        if not slots.full and (lease.ask.need.adapters is None or slots.has_room(lease.ask.need)):
            self.hand_over(model)  # a waiter with other needs may pass those in line
        if model.residency is not _RESIDENT and lease.claim is None:
            self.rearrange()
        return future if lease.claim is None else None

    def step_out(self, lease: Lease) -> None:
        """Its task was cancelled: out of the line, or, granted in the same tick, the slot goes on to the next."""
        if self._leave_line(lease):
            self.hand_over(lease.model)  # it kept the engines it could use from those behind it
            self.rearrange()
        elif lease.claim is not None:
            self.give_back(lease)

    def _make_place(self, model: Model, lease: Lease) -> None:
        """The line is full: a lower tier, or a key with more places, gives one up; else the newcomer is refused."""
        full = refusals.line_full(model, self.clock())
        out = model.line.to_displace(lease.tier, lease.ask.key) if self.limits.max_waiting else None
        if out is None:
            raise full
        self.refuse(out, full)

    def _leave_line(self, lease: Lease) -> bool:
        if not lease.model.line.leave(lease):
            return False
        if self.background:
            self.background -= lease.tier is _BACKGROUND
            self._hand_over_background()
        return True

    # --- what the steps above are made of ------------------------------------------------------------------------

    def _begin(self, model: Model, lease: Lease, claim: Claim) -> None:
        lease.claim = claim
        model.running[claim.id] = lease
        if self.caps.limits:
            self.caps.began(lease.ask.key)

    def _lowest(self, model: Model) -> int:
        """The lowest tier that may begin on this model now. Background only where no higher one runs or waits."""
        lowest = 1 if self.background and self.is_busy(model) else 0
        return lowest if model.hold is None else max(lowest, model.hold + 1)

    def _may_run(self, model: Model, lease: Lease) -> bool:
        if lease.ask.key in self.caps.full:
            return False
        if lease.tier is _BACKGROUND:
            return model.hold is None and not self.is_busy(model)
        return model.hold is None or lease.tier > model.hold

    def is_busy(self, model: Model) -> bool:
        """Is there work above background on the model's cards?"""
        return any(
            other.line.size > other.line.count(_BACKGROUND)
            or any(lease.tier is not _BACKGROUND for lease in other.running.values())
            for other in self.models.values()
            if not model.spec.cards.isdisjoint(other.spec.cards)
        )

    def _came(self, model: Model, lease: Lease) -> None:
        """There is background work, and one more request: if it is above that, what runs on its cards ends at once."""
        if lease.tier is _BACKGROUND:
            self.background += 1
            return
        for other in self.models.values():
            if not model.spec.cards.isdisjoint(other.spec.cards):
                for running in tuple(other.running.values()):
                    if running.tier is _BACKGROUND:
                        running.stop(Stop.PREEMPTED)

    def lifted(self, lease: Lease, tier: Tier) -> None:
        """One that waits counts as of `tier` from now on."""
        model = lease.model
        model.line.leave(lease)
        if lease.tier is _BACKGROUND:
            self.background -= 1
            lease.tier = tier
            self._came(model, lease)
        lease.tier = tier
        model.line.join(lease)

    def _hand_over_background(self) -> None:
        for model in self.models.values():
            if model.line.count(_BACKGROUND):
                self.hand_over(model)

    def _hand_over_to(self, key: str) -> None:
        """It was passed over until now, here and elsewhere."""
        for model in self.models.values():
            if model.line.has(key):
                self.hand_over(model)

    def _one_that_fits(self, model: Model, lowest: int) -> tuple[Lease, Claim] | None:
        """The first in line does not fit: is there one behind it that does?

        One that must go on waiting blocks the engines it could use for everyone behind it: else a request for four
        slots would starve behind a stream of requests for one. One that fits elsewhere may pass. So may one of the same
        tier with the adapters that an engine decodes with just now, where those ahead wait for other ones: but so many
        only as fill one whole batch. Then the engine finishes what it has, and the adapters change.
        """
        slots = model.slots
        blocked: frozenset[str] = frozenset()
        everyone = slots.contenders(Need())
        ahead: Lease | None = None  # the first who waits for its adapters' turn
        closed: frozenset[str] = frozenset()  # the engines that it waits for
        in_use = slots.sets_with_room()
        for lease in model.line.in_order(lowest, self.caps.full):
            need = lease.ask.need
            if ahead is not None and in_use is not None and need.adapters not in in_use:
                continue  # as `ahead`: of a thousand in line, each asked 2 µs
            if lease.future is not None and lease.future.cancelled():
                continue
            if ahead is not None and lease.tier is not ahead.tier:
                blocked |= closed
            claim = slots.claim(need, blocked, waiting=model.line.size - 1)
            if claim is not None:
                if ahead is not None and claim.engine in closed:
                    ahead.passed += claim.slots
                return lease, claim
            able = slots.contenders(need)
            if need.adapters is not None and (other := slots.other_sets(need)):
                ahead = ahead or lease
                if ahead.passed < slots.limit:
                    closed |= other
                    able -= other
            blocked |= able
            if blocked >= everyone:
                return None
        return None

    def next_served(self, model: Model) -> Lease | None:
        """Who is first in line of those who may run now."""
        return model.line.first(self._lowest(model), self.caps.full)
