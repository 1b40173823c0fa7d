"""The gate: a request enters when it holds a slot of a model in memory, waits in line, or is refused with the truth.

One structure decides all of it, on one event loop, without an `await` between check and take: lines by tier, slots,
and (in `cards`) who gets the memory. What it decides to load or unload is done by others, which report back.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from time import monotonic

from onebit.errors import InvalidRequest, LoadFailed, OnebitError, QueueFull, Unavailable, WaitTooLong
from onebit.memory.residency import Residency
from onebit.scheduler.card import Card
from onebit.scheduler.choose import Need, Standing, choose
from onebit.scheduler.lease import Ask, Lease, Stop
from onebit.scheduler.model import Model
from onebit.scheduler.slots import Claim
from onebit.tiers import Tier

_MAX_RETRY_AFTER_S = 60.0  # OpenAI's SDKs give up on delays over one or two minutes
_LIFT_EVERY_S = 1.0
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
        self.models: dict[str, Model] = {}
        self.rearrange: Callable[[], None] = lambda: None  # look again at who should be in memory
        self.clock = clock
        self._closed: Callable[[], OnebitError] | None = None
        self._by_deadline: dict[Lease, None] = {}  # all who wait; the same patience for all, so in the order they came
        self._timer: asyncio.TimerHandle | None = None
        self._lift_timer: asyncio.TimerHandle | None = None
        self._running = 0
        self._drained = asyncio.Event()
        self._cards: dict[str, Card] = {}
        self.set_limits(limits)
        for model in models:
            self.add(model)

    def add(self, model: Model) -> None:
        """Admit requests to this model, too."""
        self.models[model.name] = model
        self.place(model)

    def place(self, model: Model) -> None:
        """The model's spec names cards: give it those, and them its waiters. Nothing runs on it now."""
        waiting = len(model.line) - model.line.count(_BACKGROUND)
        for card in model.cards:
            card.above -= waiting
        for name in model.spec.cards - self._cards.keys():
            self._cards[name] = Card(name)
        model.cards = tuple(self._cards[name] for name in sorted(model.spec.cards))
        for card in model.cards:
            card.above += waiting

    def set_limits(self, limits: Limits) -> None:
        """Other bounds, from now on."""
        self.limits = limits
        self._caps = dict(limits.max_in_flight)
        self._in_flight = {key: self._count_in_flight(key) for key in self._caps}
        for model in self.models.values():
            self.hand_over(model)  # a key may run more than before
        if self._timer is not None:  # it was set for the patience of before
            self._timer.cancel()
            self._expire()
        if limits.max_wait_boost is not None and self._by_deadline and self._lift_timer is None:
            self._lift()

    @property
    def waiting(self) -> int:
        """Requests in line, over all models."""
        return len(self._by_deadline)

    @property
    def in_use(self) -> int:
        """Slots in use, over all models."""
        return sum(model.slots.in_use for model in self.models.values())

    def admit(self, ask: Ask, *, left: str | None = None, front: bool = False) -> Lease:
        """Hold slots for the length of the block: `async with gate.admit(ask) as lease`.

        `left`: the request was admitted before, and this engine died under it. Another one is taken at once, if one
        has room; else it goes to the front of the line. `front`: it was preempted, and goes there too.
        Entering raises QueueFull (429), WaitTooLong, Unavailable and its kinds (503), InvalidRequest (it asks for what
        none of the engines can do).
        """
        lease = Lease(self, ask)
        if front or left is not None:
            lease.front, lease.left = True, left
        return lease

    # --- one tick each, no await: nothing comes between the check and the take ------------------------------

    def take(self, lease: Lease) -> bool:
        """Give `lease` its slots if it may have them now. Raises the refusals that need no waiting to be known."""
        if self._closed is not None:
            raise self._closed()
        model = self.models[lease.ask.model]
        if model.residency is _RESIDENT:
            if lease.left is not None and self._may_run(model, lease):
                # Another engine; it was admitted before, so it need not stand in line.
                claim = model.slots.claim(lease.ask.need, frozenset({lease.left}))
            elif not model.line and self._may_run(model, lease):  # those in line have been given all that fits
                claim = model.slots.claim(lease.ask.need)
            else:
                claim = None
            if claim is not None:
                self._came(model, lease.tier)
                self._begin(model, lease, claim)
                return True
            if not model.slots.serves_all and model.slots.hopeless(lease.ask.need):
                raise self.hopeless_error(model, lease.ask.need)
        elif model.cool_until > (now := self.clock()):
            raise LoadFailed(
                f"{model.name} could not be loaded: {model.cause}",
                hint="it is tried again after a pause",
                retry_after=min(_MAX_RETRY_AFTER_S, model.cool_until - now),
            )
        return False

    def give_back(self, lease: Lease) -> None:
        """The block was left: its slots go to the next in line."""
        claim, lease.claim = lease.claim, None
        if claim is None:
            raise AssertionError("a lease is given back exactly once")
        model = self.models[lease.ask.model]
        now = self.clock()
        model.releases.append(now)
        model.running.discard(lease)
        model.by_tier[lease.tier] -= 1
        model.served[lease.tier] = now
        self._running -= 1
        if not model.running:
            model.idle_since = now
            if model.emptied is not None:
                model.emptied.set()
        fell_idle = False
        if lease.tier is _BACKGROUND:
            for card in model.cards:
                del card.background[lease]
        else:
            fell_idle = self._went(model)
        key = lease.ask.key
        capped = key in self._caps
        if capped:
            self._in_flight[key] -= 1
        if not model.line or not self._hand_on(model, claim):
            model.slots.release(claim)
            if model.line:
                self.hand_over(model)
        if fell_idle:
            self._hand_over_background()
        if capped:
            self._hand_over_to(key)
        if not model.by_tier[lease.tier]:  # until then, nothing has changed for those who want the memory
            self.rearrange()
        if self._closed is not None and not self._running:
            self._drained.set()

    def _hand_on(self, model: Model, claim: Claim) -> bool:
        """The short way of a slot from one request to the next: straight, without being free in between."""
        if self._closed is not None or model.residency is not _RESIDENT:
            return False
        lease = model.line.first(self._lowest(model), self._at_cap)
        if lease is None or lease.future is None or lease.future.done():
            return False
        further = model.slots.hand_over(claim, lease.ask.need)
        if further is None:
            return False
        model.line.leave(lease, served=True)
        del self._by_deadline[lease]
        self._begin(model, lease, further)
        lease.future.set_result(None)
        return True

    def hand_over(self, model: Model) -> None:
        """Give free slots to those in line, in their order, until nothing fits."""
        line, slots = model.line, model.slots
        while self._closed is None and model.residency is _RESIDENT and line and not slots.full:
            lowest = self._lowest(model)
            lease = line.first(lowest, self._at_cap)
            if lease is None:
                return
            if lease.future is not None and lease.future.cancelled():  # its task has not run yet
                self._step_out(model, lease)
                continue
            claim = slots.claim(lease.ask.need)
            if claim is None:
                other = self._one_that_fits(model, lowest)
                if other is None:
                    return
                lease, claim = other
            line.leave(lease, served=True)
            del self._by_deadline[lease]
            self._begin(model, lease, claim)
            if lease.future is not None:
                lease.future.set_result(None)

    def stop_running(self, model: Model) -> None:
        """End what still runs on a model that must go."""
        for lease in tuple(model.running):
            lease.stop(Stop.EVICTED)

    def engine_changed(self, name: str, engine: str, standing: Standing, cause: str | None = None) -> None:
        """An engine came up or went down: serve or refuse those who wait. `cause`: why it is gone, one sentence."""
        model = self.models[name]
        if cause is not None:
            model.causes[engine] = cause
        model.slots.set_standing(engine, standing)
        if model.residency is _RESIDENT:
            for lease in model.line.everyone():
                if model.slots.hopeless(lease.ask.need):
                    self.refuse(lease, self.hopeless_error(model, lease.ask.need))
            self.hand_over(model)

    def close(self, refusal: Callable[[], OnebitError]) -> None:
        """Refuse everyone from now on, those in line too; running requests go on."""
        self._closed = refusal
        for lease in tuple(self._by_deadline):
            self.refuse(lease, refusal())

    async def idle(self) -> None:
        """Return when no slot is in use. Only after `close`: before it, there may be no such moment."""
        if self._running:
            await self._drained.wait()

    def refuse(self, lease: Lease, error: OnebitError) -> None:
        """Tell one in line that it does not get in."""
        model = self.models[lease.ask.model]
        if model.line.leave(lease):
            del self._by_deadline[lease]
            if lease.tier is not _BACKGROUND and self._went(model):
                self._hand_over_background()
            lease.error = error
            if lease.future is not None and not lease.future.done():
                lease.future.set_result(None)

    # --- the only place that waits ---------------------------------------------------------------------------

    async def wait(self, lease: Lease) -> None:
        """Stand in line until the slots are there. Raises what `admit` says."""
        model = self.models[lease.ask.model]
        if len(model.line) >= self.limits.max_waiting and not lease.front:
            self._make_place(model, lease)
        self._join(model, lease)
        if lease.claim is None:
            assert lease.future is not None  # noqa: S101
            try:
                await lease.future
            except BaseException:
                self._step_out(model, lease)
                raise
        if lease.error is not None:
            raise lease.error

    def _join(self, model: Model, lease: Lease) -> None:
        loop = asyncio.get_running_loop()
        lease.future = loop.create_future()
        lease.joined = lease.lifted = self.clock()
        model.line.join(lease)
        self._by_deadline[lease] = None
        self._came(model, lease.tier)
        if self._timer is None:
            self._timer = loop.call_later(self.limits.max_wait, self._expire)
        if self.limits.max_wait_boost is not None and self._lift_timer is None:
            self._lift_timer = loop.call_later(_LIFT_EVERY_S, self._lift)
        if not model.slots.full:
            self.hand_over(model)  # a waiter with other needs may pass those in line
        if model.residency is not _RESIDENT and lease.claim is None:
            self.rearrange()

    def _make_place(self, model: Model, lease: Lease) -> None:
        """The line is full: a lower tier, or a key with more places, gives one up; else the newcomer is refused."""
        out = model.line.to_displace(lease.tier, lease.ask.key)
        full = QueueFull(
            f"{len(model.line)} requests are waiting for {model.name} already, the most this server queues",
            hint="try again later, or start the server with a larger --max-waiting",
            retry_after=self.retry_after(model),
        )
        if out is None or self.limits.max_waiting == 0:
            raise full
        self.refuse(out, full)

    def _step_out(self, model: Model, lease: Lease) -> None:
        if model.line.leave(lease):
            del self._by_deadline[lease]
            if lease.tier is not _BACKGROUND and self._went(model):
                self._hand_over_background()
            self.hand_over(model)  # it kept the engines it could use from those behind it
            self.rearrange()
        elif lease.claim is not None:
            self.give_back(lease)  # cancelled in the tick it was granted

    def _expire(self) -> None:
        """Refuse those who have waited for too long, and look again when the next one will have."""
        self._timer = None
        now, loop = self.clock(), asyncio.get_running_loop()
        for lease in tuple(self._by_deadline) if self.limits.max_wait <= 0 else self._due(now):
            model = self.models[lease.ask.model]
            error = WaitTooLong(
                f"no slot came free within {self.limits.max_wait:g} s",
                hint="try again later; --max-wait sets how long a request may wait",
                retry_after=self.retry_after(model),
            )
            self.refuse(lease, error)
            self.hand_over(model)
        first = next(iter(self._by_deadline), None)
        if first is not None:
            delay = max(0.0, first.joined + self.limits.max_wait - self.clock())
            self._timer = loop.call_later(delay, self._expire)

    def _due(self, now: float) -> list[Lease]:
        due = []
        for lease in self._by_deadline:
            if lease.joined + self.limits.max_wait > now:
                break
            due.append(lease)
        return due

    def _lift(self) -> None:
        self._lift_timer = None
        boost = self.limits.max_wait_boost
        if boost is None or not self._by_deadline:
            return
        now = self.clock()
        for model in self.models.values():
            for lease in model.line.lift(now - boost):
                lease.lifted = now
                if lease.tier is Tier.FREE:  # it was background until now
                    self._came(model, lease.tier)
            self.hand_over(model)
        self._lift_timer = asyncio.get_running_loop().call_later(_LIFT_EVERY_S, self._lift)

    # --- what the steps above are made of ------------------------------------------------------------------------

    def _begin(self, model: Model, lease: Lease, claim: Claim) -> None:
        lease.claim = claim
        model.running.add(lease)
        model.by_tier[lease.tier] += 1
        self._running += 1
        if lease.tier is _BACKGROUND:
            for card in model.cards:
                card.background[lease] = None
        if lease.ask.key in self._caps:
            self._in_flight[lease.ask.key] += 1

    def _came(self, model: Model, tier: Tier) -> None:
        if tier is not _BACKGROUND:
            for card in model.cards:
                card.came()

    def _went(self, model: Model) -> bool:
        """A request above background neither runs nor waits any more. True when a card has fallen idle by that."""
        fell_idle = False
        for card in model.cards:
            card.above -= 1
            if not card.above:
                fell_idle = True
        return fell_idle

    def _hand_over_background(self) -> None:
        for model in self.models.values():
            if model.line.count(_BACKGROUND):
                self.hand_over(model)

    def _lowest(self, model: Model) -> int:
        """The lowest tier that may begin on this model now."""
        lowest = 0
        for card in model.cards:
            if card.above:
                lowest = 1
        return lowest if model.hold is None else max(lowest, model.hold + 1)

    def _may_run(self, model: Model, lease: Lease) -> bool:
        if self._at_cap(lease.ask.key):
            return False
        if model.hold is None and lease.tier is not _BACKGROUND:
            return True
        return lease.tier >= self._lowest(model)

    def _at_cap(self, key: str) -> bool:
        return key in self._caps and self._in_flight[key] >= self._caps[key]

    def _one_that_fits(self, model: Model, lowest: int) -> tuple[Lease, Claim] | None:
        """The first in line does not fit: is there one behind it that does?

        One that must go on waiting blocks the engines it could use for everyone behind it: else a request for four
        slots would starve behind a stream of requests for one. One that fits elsewhere may pass.
        """
        slots = model.slots
        blocked: frozenset[str] = frozenset()
        everyone = slots.contenders(Need())
        for lease in model.line.in_order(lowest, self._at_cap):
            claim = slots.claim(lease.ask.need, blocked)
            if claim is not None:
                return lease, claim
            blocked |= slots.contenders(lease.ask.need)
            if blocked >= everyone:
                return None
        return None

    def _hand_over_to(self, key: str) -> None:
        """A key may run one more: it may have been passed over elsewhere."""
        if self._in_flight[key] == self._caps[key] - 1:
            for model in self.models.values():
                if model.line:
                    self.hand_over(model)

    def _count_in_flight(self, key: str) -> int:
        return sum(lease.ask.key == key for model in self.models.values() for lease in model.running)

    def retry_after(self, model: Model) -> float:
        """Seconds until the present line has drained, from the rate at which slots came free lately."""
        if len(model.releases) < 2:
            return 1.0
        span = self.clock() - model.releases[0]
        return min(_MAX_RETRY_AFTER_S, max(1.0, math.ceil((len(model.line) + 1) * span / len(model.releases))))

    def hopeless_error(self, model: Model, need: Need) -> OnebitError:
        """Why no engine of the model can ever serve `need`."""
        if need.plain and all(view.drafting for view in model.slots.views()):
            return InvalidRequest(
                "logprobs are not available here: the only engine drafts tokens (--mtp or --draft), and drafted"
                " tokens come without their probabilities",
                hint="leave logprobs out, or serve with --adaptive so that a plain engine runs beside",
                param="logprobs",
            )
        causes = "; ".join(f"{name}: {cause}" for name, cause in model.causes.items())
        return Unavailable(f"no engine is running: {causes}" if causes else "no engine is running", retry_after=1)

    # --- is all well? ------------------------------------------------------------------------------------------

    def overlooked(self, age: float) -> Lease | None:
        """One who has waited for `age` seconds and more although it could be served now: there must be none."""
        before = self.clock() - age
        for model in self.models.values():
            if self._closed is not None or model.residency is not _RESIDENT:
                continue
            lease = model.line.first(self._lowest(model), self._at_cap)
            if lease is not None and lease.joined <= before and choose(model.slots.views(), lease.ask.need):
                return lease
        return None

    def check_invariants(self) -> None:
        """The books balance, and nobody waits for what is free. Raises AssertionError."""
        running, waiting = [], []
        for model in self.models.values():
            model.slots.check_invariants()
            claimed = sum(lease.slots for lease in model.running)
            if claimed != model.slots.in_use:
                raise AssertionError(f"{model.name}: {claimed} slots held by requests, {model.slots.in_use} in use")
            if [sum(lease.tier == tier for lease in model.running) for tier in Tier] != model.by_tier:
                raise AssertionError(f"{model.name}: the counts by tier are not those of the running")
            in_line = model.line.everyone()
            if len(in_line) != len(model.line) or any(lease not in self._by_deadline for lease in in_line):
                raise AssertionError(f"{model.name}: the line is not what it says it is")
            if any(lease.claim is not None or lease.error is not None for lease in in_line):
                raise AssertionError("one that was served is still in line")
            running += [(model, lease) for lease in model.running]
            waiting += [(model, lease) for lease in in_line]
        if len(waiting) != len(self._by_deadline) or len(running) != self._running:
            raise AssertionError("the gate and its models count differently")
        for card in {card for model in self.models.values() for card in model.cards}:
            card.check_invariants(
                (lease for model, lease in running if card in model.cards),
                (lease for model, lease in waiting if card in model.cards),
            )
        if any(count != self._count_in_flight(key) for key, count in self._in_flight.items()):
            raise AssertionError("a key's requests in flight are miscounted")
        if (lease := self.overlooked(0)) is not None and not (lease.future is not None and lease.future.done()):
            raise AssertionError("somebody waits for what is free")
