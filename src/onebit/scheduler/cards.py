"""Who is in memory: what the policy decides is entered in the books at once, and done by others."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from math import inf
from typing import Protocol

from onebit.errors import DoesNotFit, OnebitError, Protected
from onebit.memory.history import History
from onebit.memory.ledger import MemoryLedger
from onebit.memory.policy import Rules, arrange
from onebit.memory.residency import Residency, Step
from onebit.scheduler.choose import Standing
from onebit.scheduler.gate import Gate
from onebit.scheduler.model import Model, ModelSpec
from onebit.scheduler.refusals import bounded, gone, load_failed
from onebit.tiers import Tier

_log = logging.getLogger("onebit.models")


_REASONS = {"idle": "unloaded, for it was not used", "config": "unloaded, for its config has changed"}


def _tell(text: str, model: str, event: str, level: int = logging.INFO, **facts: object) -> None:
    """One line of the log for an event in a model's life."""
    _log.log(level, text, extra={"facts": {"event": event, "model": model, **facts}})


class Effects(Protocol):
    """Who does the work. Both return at once, and report later: `loaded`, `measured`, `failed`, `gone`."""

    def load(self, name: str) -> None:
        """Start the model's engines. Its memory is reserved."""

    def unload(self, name: str) -> None:
        """Let its requests finish within the grace period, end its engines, and see its memory free again."""


class Cards:
    """The memory's side of the gate. On the gate's event loop; every method is one step without an await."""

    def __init__(self, gate: Gate, ledger: MemoryLedger, rules: Rules, effects: Effects) -> None:
        self.gate = gate
        self.ledger = ledger
        self.rules = rules
        self.history = History()
        self.moved: Callable[[], None] = lambda: None  # told after each load, failure and departure
        self.renewed: Callable[[str], None] = lambda _: None  # nothing of the old one is left: its engines are others
        self.forgotten: Callable[[str], None] = lambda _: None  # it is served no more, and nothing of it is left
        self._effects = effects
        self._timer: asyncio.TimerHandle | None = None
        self._closed = False
        gate.rearrange = self.rearrange

    def rearrange(self) -> None:
        """Look again: load, evict, hold back and refuse as the policy says."""
        if self._closed:
            return
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        models = self.gate.models
        wanted = [w for m in models.values() if m.residency is Residency.ABSENT and (w := m.wanted()) is not None]
        holders = [m.holder(self.ledger.held(m.name)) for m in models.values() if m.residency is not Residency.ABSENT]
        self.gate.memory_is_wanted = bool(wanted)
        if not wanted and all(h.idle_unload is None for h in holders):
            self._hold({})
            return
        now = self.gate.clock()
        decision = arrange(self.ledger.totals, holders, wanted, self.rules, now)
        highest = max((w.tier for w in wanted), default=None)
        for name in decision.evict:
            self._unload(models[name], "evicted", highest)
        for name in decision.idle:
            self._unload(models[name], "idle")
        self._hold(decision.hold)  # after the evictions: what is no longer held takes requests at once
        for name in decision.load:
            self._load(models[name], now)
        for name, seconds in decision.refuse.items():
            self._refuse(models[name], seconds)
        self._look_again(decision.look_again, now)

    def want(self, name: str) -> None:
        """The operator wants it in memory before anyone asks."""
        model = self.gate.models[name]
        if model.residency is Residency.ABSENT:
            model.asked_at = self.gate.clock()
            self.rearrange()

    def close(self) -> None:
        """Nothing is loaded any more: all that is in memory is on its way out, as soon as its requests are done."""
        self._closed = True
        if self._timer is not None:
            self._timer.cancel()
        for model in self.gate.models.values():
            if model.residency in (Residency.LOADING, Residency.RESIDENT):
                model.step(Step.UNLOAD)

    # --- what those who do the work report --------------------------------------------------------------------

    def loaded(self, name: str) -> None:
        """An engine of the model is ready."""
        model = self.gate.models[name]
        now = self.gate.clock()
        model.step(Step.LOADED)
        if model.residency is not Residency.RESIDENT:
            return  # it was told to leave meanwhile
        model.loaded_at = model.idle_since = now
        model.load_seconds = max(0.001, now - model.load_began)
        self.history.loaded(name, model.load_seconds)
        _tell(f"{name}: loaded in {model.load_seconds:.1f} s", name, "loaded", seconds=round(model.load_seconds, 3))
        model.failures, model.cause, model.asked_at = 0, None, None
        self.gate.refuse_the_hopeless(model)
        self.gate.hand_over(model)
        self.rearrange()
        self.moved()

    def measured(self, name: str, held: Mapping[str, int]) -> None:
        """What it really holds, by pool: that is what the next load reserves, too."""
        model = self.gate.models[name]
        if model.residency in (Residency.RESIDENT, Residency.LOADING):
            model.measured = dict(held)
            self.ledger.correct(name, held)
            model.needs = {pool: min(size, self.ledger.totals[pool]) for pool, size in {**model.needs, **held}.items()}
            self.rearrange()

    def failed(self, name: str, cause: str) -> None:
        """All its engines have failed. They are ended, and `gone` follows."""
        model = self.gate.models[name]
        model.failed(self.gate.clock(), cause)
        self.history.failed(name)
        _tell(f"{name}: could not be loaded: {cause}", name, "load_failed", logging.ERROR, cause=cause)
        model.asked_at = None
        if model.residency in (Residency.LOADING, Residency.RESIDENT):
            self._unload(model, "failed")
        error = load_failed(model, self.gate.clock())
        for lease in model.line.everyone():
            self.gate.refuse(lease, error)
        self.moved()

    def gone(self, name: str) -> None:
        """Its processes have ended, and its memory was seen to be free."""
        model = self.gate.models[name]
        model.step(Step.GONE)
        model.absent_since = self.gate.clock()
        model.measured = {}
        self.ledger.release(name)
        if model.leaving_for_good:
            self._forget(model)
        elif model.successor is not None:
            self._become(model, model.successor)
            if model.spec.preload:
                model.asked_at = self.gate.clock()
        self.rearrange()
        self.moved()

    def stop_running(self, name: str) -> None:
        """The grace period is over: end what still runs on it."""
        self.gate.stop_running(self.gate.models[name])

    async def emptied(self, name: str) -> None:
        """Return when no request runs on it."""
        model = self.gate.models[name]
        while model.running:
            model.emptied = asyncio.Event()
            await model.emptied.wait()

    # --- another config ------------------------------------------------------------------------------------------

    def add(self, spec: ModelSpec) -> None:
        """A model more; or one that was removed, and has not quite left, comes back."""
        if (model := self.gate.models.get(spec.name)) is not None:
            model.leaving_for_good, model.successor = False, spec
            return
        self.gate.models[spec.name] = Model(spec)
        if spec.preload:
            self.want(spec.name)

    def renew(self, spec: ModelSpec) -> None:
        """The model changes: once those who run on it are done. Those who wait get the new one."""
        model = self.gate.models[spec.name]
        model.successor = spec
        if model.residency is Residency.ABSENT:
            self._become(model, spec)
            if spec.preload:
                model.asked_at = self.gate.clock()
            self.rearrange()
        elif model.residency is not Residency.LEAVING:
            self._unload(model, "config")

    def retune(self, spec: ModelSpec) -> None:
        """The same engines under other rules: nothing is unloaded."""
        model = self.gate.models[spec.name]
        if model.successor is not None:  # it is on its way to other engines already
            model.successor = spec
            return
        before, model.spec = model.spec, spec
        if spec.preload and not before.preload:
            self.want(spec.name)
        self.rearrange()

    def remove(self, name: str) -> None:
        """The model is served no more: those in line are told, those who run may finish."""
        model = self.gate.models[name]
        model.leaving_for_good, model.successor = True, None
        self._served_no_more(model)
        if model.residency is Residency.ABSENT:
            self._forget(model)
        elif model.residency is not Residency.LEAVING:
            self._unload(model, "config")

    def check_invariants(self) -> None:
        """The gate's books and the ledger's agree. Raises AssertionError."""
        self.ledger.check_invariants()
        for model in self.gate.models.values():
            if bool(self.ledger.held(model.name)) != (model.residency is not Residency.ABSENT and bool(model.needs)):
                raise AssertionError(
                    f"{model.name} is {model.residency.value}, and holds {self.ledger.held(model.name)}"
                )
            if model.running and model.residency in (Residency.ABSENT, Residency.LOADING):
                raise AssertionError(f"requests run on {model.name}, which is {model.residency.value}")

    # --- steps ---------------------------------------------------------------------------------------------------

    def _load(self, model: Model, now: float) -> None:
        self.ledger.reserve(model.name, model.needs)
        model.step(Step.LOAD)
        model.load_began = now
        model.loaded_for = model.line.highest()
        model.causes = {}
        for view in model.slots.views():
            model.slots.set_standing(view.name, Standing.COMING)
        self._effects.load(model.name)

    def _unload(self, model: Model, reason: str, wanted: Tier | None = None) -> None:
        self.history.unloaded(model.name, reason, model.highest_running(), wanted)
        if reason != "failed":  # which has been told
            why = f"evicted for {wanted.label}" if wanted is not None else _REASONS.get(reason, reason)
            _tell(f"{model.name}: {why}", model.name, "unloaded", reason=reason)
        model.step(Step.UNLOAD)
        model.hold = None
        self._effects.unload(model.name)

    def _refuse(self, model: Model, seconds: float) -> None:
        """Who waits for it cannot have the memory: others have a stronger claim on it."""
        error: OnebitError
        if seconds == inf:
            error = DoesNotFit(
                f"there is no memory for {model.name}: models that never leave hold it",
                hint="give it more `memory`, or take `pin` from another model",
            )
        else:
            error = Protected(
                f"there is no memory for {model.name} now: requests of a higher tier were served from it lately",
                hint="try again when their protection has ended",
                retry_after=bounded(seconds),
            )
        model.asked_at = None
        for lease in model.line.everyone():
            self.gate.refuse(lease, error)

    def _hold(self, hold: Mapping[str, Tier]) -> None:
        for model in self.gate.models.values():
            before, model.hold = model.hold, hold.get(model.name)
            if before is not None and before != model.hold:
                self.gate.hand_over(model)

    def _look_again(self, at: float | None, now: float) -> None:
        if at is not None:
            self._timer = asyncio.get_running_loop().call_later(max(0.001, at - now), self.rearrange)

    def _become(self, model: Model, spec: ModelSpec) -> None:
        model.renew(spec)
        self.renewed(model.name)

    def _served_no_more(self, model: Model) -> None:
        for lease in model.line.everyone():
            self.gate.refuse(lease, gone(model.name))

    def _forget(self, model: Model) -> None:
        self._served_no_more(model)  # one that had to give way, or lost its engine, came back to the line
        del self.gate.models[model.name]
        self.forgotten(model.name)
