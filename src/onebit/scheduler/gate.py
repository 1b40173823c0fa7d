"""The gate: a request enters when it holds a slot, waits in line, or is refused with the true reason."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from time import monotonic

import anyio

from onebit.errors import InvalidRequest, OnebitError, QueueFull, Unavailable, WaitTooLong
from onebit.scheduler.choose import Need, Standing, choose
from onebit.scheduler.line import Line, Waiter
from onebit.scheduler.slots import Claim, SlotLedger

_MAX_RETRY_AFTER_S = 60.0  # OpenAI's SDKs give up on delays over one or two minutes
_RATE_WINDOW = 32  # releases that the drain rate is measured over


@dataclass(frozen=True, slots=True)
class Lease:
    """A request's exclusive claim on slots of one engine; it ends with the block that holds it."""

    claim: Claim

    @property
    def engine(self) -> str:
        """The engine's name."""
        return self.claim.engine


class Admission:
    """One passage through the gate: the block that holds a lease.

    A class: contextlib's decorator alone was 4 of an admission's 15 µs (measured).
    """

    __slots__ = ("_claim", "_gate", "_left", "_need")

    def __init__(self, gate: Gate, need: Need, left: str | None) -> None:
        self._gate = gate
        self._need = need
        self._left = left

    async def __aenter__(self) -> Lease:
        self._claim = self._gate._take(self._need, self._left) or await self._gate._wait(
            self._need, front=self._left is not None
        )
        return Lease(self._claim)

    async def __aexit__(self, *_: object) -> None:
        self._gate._give_back(self._claim)


class Gate:
    """Admits requests to one model's engines. Lives on one event loop; the ledger below it is thread-safe.

    `max_waiting`: requests that may stand in line. `max_wait`: seconds each may stand there.
    """

    def __init__(
        self,
        ledger: SlotLedger,
        *,
        max_waiting: int,
        max_wait: float,
        clock: Callable[[], float] = monotonic,
    ) -> None:
        self.ledger = ledger
        self._line = Line()
        self._max_waiting = max_waiting
        self._max_wait = max_wait
        self._clock = clock
        self._closed: Callable[[], OnebitError] | None = None
        self._releases: deque[float] = deque(maxlen=_RATE_WINDOW)
        self._causes: dict[str, str] = {}
        self._drained = anyio.Event()

    @property
    def waiting(self) -> int:
        """Requests in line."""
        return len(self._line)

    def admit(self, need: Need, *, left: str | None = None) -> Admission:
        """Hold slots for the length of the block: `async with gate.admit(need) as lease`.

        `left`: the request was admitted before, and this engine died under it. Another one is taken at once, if one
        has room; else it goes to the front of the line.
        Entering raises QueueFull (429), WaitTooLong (503), Unavailable (503: no engine can serve it), InvalidRequest
        (the request asks for what none of the engines can do).
        """
        return Admission(self, need, left)

    def engine_changed(self, name: str, standing: Standing, cause: str | None = None) -> None:
        """An engine came up or went down: serve or refuse those who wait. `cause`: why it is gone, one sentence."""
        if cause is not None:
            self._causes[name] = cause
        self.ledger.set_standing(name, standing)
        for waiter in self._line:
            if self.ledger.hopeless(waiter.need):
                self._refuse(waiter, self._hopeless_error(waiter.need))
        self._hand_over()

    def close(self, refusal: Callable[[], OnebitError]) -> None:
        """Refuse everyone from now on, those in line too; running requests go on."""
        self._closed = refusal
        for waiter in self._line:
            self._refuse(waiter, refusal())

    async def idle(self) -> None:
        """Return when no slot is in use. Only after `close`: before it, there may be no such moment."""
        if self.ledger.in_use:
            await self._drained.wait()

    def check_invariants(self) -> None:
        """The ledger balances, and nobody waits for what is free. Raises AssertionError."""
        self.ledger.check_invariants()
        blocked: frozenset[str] = frozenset()
        for waiter in self._line:
            if waiter.claim is not None or waiter.error is not None or waiter.event.is_set():
                raise AssertionError("a waiter that was served is still in line")
            if self._closed is None and choose(self.ledger.views(), waiter.need, blocked=blocked) is not None:
                raise AssertionError("somebody waits for what is free")
            blocked |= self.ledger.contenders(waiter.need)

    # --- one tick each, no await: nothing comes between the check and the take ------------------------------

    def _take(self, need: Need, left: str | None) -> Claim | None:
        if self._closed is not None:
            raise self._closed()
        if left is not None and (claim := self.ledger.claim(need, frozenset({left}))) is not None:
            return claim  # another engine; it was admitted before, so it need not stand in line
        if not self._line:  # those in line were first; hand_over has given them all that fits
            claim = self.ledger.claim(need)
            if claim is not None:
                return claim
        if self.ledger.hopeless(need):
            raise self._hopeless_error(need)
        return None

    def _give_back(self, claim: Claim) -> None:
        self.ledger.release(claim)
        self._releases.append(self._clock())
        if self._line:
            self._hand_over()
        if self._closed is not None and not self.ledger.in_use:
            self._drained.set()

    def _hand_over(self) -> None:
        if self._closed is None:
            self._line.hand_over(self.ledger.claim, self.ledger.contenders)

    def _step_out(self, waiter: Waiter) -> None:
        if self._line.leave(waiter):
            self._hand_over()  # it kept the engines it could use from those behind it
        elif waiter.claim is not None:
            self._give_back(waiter.claim)  # cancelled in the tick it was granted

    def _refuse(self, waiter: Waiter, error: OnebitError) -> None:
        self._line.leave(waiter)
        waiter.error = error
        waiter.event.set()

    # --- the only place that waits ---------------------------------------------------------------------------

    async def _wait(self, need: Need, *, front: bool) -> Claim:
        if len(self._line) >= self._max_waiting and not front:
            raise QueueFull(
                f"{len(self._line)} requests are waiting already, the most this server queues",
                hint="try again later, or start the server with a larger --max-waiting",
                retry_after=self._retry_after(),
            )
        waiter = Waiter(need)
        self._line.join(waiter, front=front)
        self._hand_over()  # a waiter with other needs may pass those in line
        try:
            with anyio.move_on_after(self._max_wait):
                await waiter.event.wait()
        except BaseException:
            self._step_out(waiter)
            raise
        if waiter.claim is not None:  # even when the deadline passed in the same tick
            return waiter.claim
        if waiter.error is not None:
            raise waiter.error
        self._step_out(waiter)
        raise WaitTooLong(
            f"no slot came free within {self._max_wait:g} s",
            hint="try again later; --max-wait sets how long a request may wait",
            retry_after=self._retry_after(),
        )

    def _retry_after(self) -> float:
        """Seconds until the present line has drained, from the rate at which slots came free lately."""
        if len(self._releases) < 2:
            return 1.0
        span = self._clock() - self._releases[0]
        return min(_MAX_RETRY_AFTER_S, max(1.0, math.ceil((len(self._line) + 1) * span / len(self._releases))))

    def _hopeless_error(self, need: Need) -> OnebitError:
        if need.plain and all(view.drafting for view in self.ledger.views()):
            return InvalidRequest(
                "logprobs are not available here: the only engine drafts tokens (--mtp or --draft), and drafted"
                " tokens come without their probabilities",
                hint="leave logprobs out, or serve with --adaptive so that a plain engine runs beside",
                param="logprobs",
            )
        causes = "; ".join(f"{name}: {cause}" for name, cause in self._causes.items())
        return Unavailable(f"no engine is running: {causes}" if causes else "no engine is running")
