"""Is all well with the gate? Asked by /health, and after every step of its tests."""

from __future__ import annotations

from onebit.memory.residency import Residency
from onebit.scheduler.gate import Gate
from onebit.scheduler.lease import Lease
from onebit.tiers import Tier


def overlooked(gate: Gate, age: float) -> Lease | None:
    """One who has waited for `age` seconds and more although it could be served now: there must be none."""
    before = gate.clock() - age
    for model in gate.models.values():
        if gate.closed or model.residency is not Residency.RESIDENT:
            continue
        lease = gate.next_served(model)
        if lease is None or lease.joined > before or (lease.future is not None and lease.future.done()):
            continue
        if model.slots.has_room(lease.ask.need, model.line.size - 1):
            return lease
    return None


def check(gate: Gate) -> None:
    """The books balance, and nobody waits for what is free. Raises AssertionError."""
    background = 0
    for model in gate.models.values():
        model.slots.check_invariants()
        claimed = sum(lease.slots for lease in model.running.values())
        if any(lease.claim is None or lease.claim.id != id for id, lease in model.running.items()):
            raise AssertionError(f"{model.name}: a claim is entered for another request")
        if claimed != model.slots.in_use:
            raise AssertionError(f"{model.name}: {claimed} slots held by requests, {model.slots.in_use} in use")
        sets = {(lease.engine, lease.ask.need.adapters) for lease in model.running.values()}
        if len(sets) != len({engine for engine, _ in sets}):
            raise AssertionError(f"{model.name}: one engine decodes with two sets of adapters")
        in_line = model.line.everyone()
        if len(in_line) != model.line.size or sum(model.line.count(tier) for tier in Tier) != model.line.size:
            raise AssertionError(f"{model.name}: the line is not what it says it is")
        if any(lease.claim is not None or lease.error is not None for lease in in_line):
            raise AssertionError("one that was served is still in line")
        background += sum(lease.tier is Tier.BACKGROUND for lease in (*in_line, *model.running.values()))
    if background != gate.background:
        raise AssertionError(f"{gate.background} background requests counted, {background} there")
    for lease in gate.running():
        if lease.tier is Tier.BACKGROUND and lease.stopped is None and gate.is_busy(lease.model):
            raise AssertionError("background work runs beside a higher tier")
    for key, counted in gate.caps.running.items():
        running = sum(lease.ask.key == key for lease in gate.running())
        if running != counted or (key in gate.caps.full) != (running >= gate.caps.limits[key]):
            raise AssertionError(f"{key}: {running} in flight, {counted} counted, {gate.caps.limits[key]} allowed")
    if overlooked(gate, 0) is not None:
        raise AssertionError("somebody waits for what is free")
