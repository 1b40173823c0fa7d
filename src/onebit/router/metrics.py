"""Prometheus metrics. What the books hold is read when it is asked for; requests are counted in the journal."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import suppress

from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from onebit.engines.state import State
from onebit.memory.residency import Residency
from onebit.router.journal import Journal
from onebit.router.pool import Pool
from onebit.scheduler.cards import Cards
from onebit.tiers import Tier

CONTENT_TYPE = CONTENT_TYPE_LATEST
_ENGINE = ["model", "engine"]
Drafts = Mapping[tuple[str, str], tuple[int, int]]


async def exposition(pools: Mapping[str, Pool], cards: Cards, journal: Journal) -> bytes:
    """The text of /metrics. Drafting engines are asked for their counters; one that does not answer is left out."""
    drafts: dict[tuple[str, str], tuple[int, int]] = {}
    for pool in tuple(pools.values()):  # a reload may change them while an engine is asked
        for name, engine in pool.engines.items():
            if engine.spec.draft is not None and engine.client is not None:
                with suppress(OSError):
                    drafts[pool.model, name] = await engine.client.drafts()
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Snapshot(pools, cards, drafts))
    return generate_latest(registry) + generate_latest(journal.registry)


class _Snapshot(Collector):
    def __init__(self, pools: Mapping[str, Pool], cards: Cards, drafts: Drafts) -> None:
        self._pools = pools
        self._cards = cards
        self._drafts = drafts

    def collect(self) -> Iterable[Metric]:
        yield from self._lines()
        yield from self._engines()
        yield from self._memory()

    def _lines(self) -> Iterable[Metric]:
        waiting = GaugeMetricFamily("onebit_requests_waiting", "Requests in line", labels=["model", "tier"])
        running = GaugeMetricFamily("onebit_requests_running", "Requests at work", labels=["model", "tier"])
        for model in self._cards.gate.models.values():
            for tier in Tier:
                waiting.add_metric([model.name, tier.label], model.line.count(tier))
                running.add_metric([model.name, tier.label], model.count_running(tier))
        return (waiting, running)

    def _engines(self) -> Iterable[Metric]:
        slots = GaugeMetricFamily("onebit_slots", "Slots an engine has", labels=_ENGINE)
        in_use = GaugeMetricFamily("onebit_slots_in_use", "Slots held by requests", labels=_ENGINE)
        ready = GaugeMetricFamily("onebit_engine_ready", "1 when the engine takes requests", labels=_ENGINE)
        restarts = CounterMetricFamily("onebit_engine_restarts", "Starts that nobody asked for", labels=_ENGINE)
        claims = CounterMetricFamily("onebit_engine_claims", "Requests given to an engine", labels=_ENGINE)
        drafted = CounterMetricFamily("onebit_draft_tokens", "Tokens drafted", labels=_ENGINE)
        accepted = CounterMetricFamily("onebit_draft_accepted_tokens", "Drafted tokens accepted", labels=_ENGINE)
        for pool in self._pools.values():
            model = self._cards.gate.models[pool.model]
            served = model.slots.served()
            for view in model.slots.views():
                engine, labels = pool.engines[view.name], [pool.model, view.name]
                slots.add_metric(labels, view.capacity)
                in_use.add_metric(labels, view.in_use)
                ready.add_metric(labels, engine.state is State.READY)
                restarts.add_metric(labels, engine.restarts)
                claims.add_metric(labels, served[view.name])
                if counts := self._drafts.get((pool.model, view.name)):
                    drafted.add_metric(labels, counts[0])
                    accepted.add_metric(labels, counts[1])
        return (slots, in_use, ready, restarts, claims, drafted, accepted)

    def _memory(self) -> Iterable[Metric]:
        ledger = self._cards.ledger
        loaded = GaugeMetricFamily("onebit_model_loaded", "1 while the model is in memory", labels=["model"])
        held = GaugeMetricFamily("onebit_model_bytes", "Memory set aside for a model", labels=["model", "pool"])
        measured = GaugeMetricFamily(
            "onebit_model_measured_bytes", "Memory a model was last seen to need", labels=["model", "pool"]
        )
        total = GaugeMetricFamily("onebit_memory_total_bytes", "Memory that may be used", labels=["pool"])
        reserved = GaugeMetricFamily("onebit_memory_reserved_bytes", "Memory set aside", labels=["pool"])
        loads = CounterMetricFamily("onebit_model_loads", "Loads that succeeded", labels=["model"])
        seconds = CounterMetricFamily("onebit_model_load_seconds", "Time spent loading", labels=["model"])
        failures = CounterMetricFamily("onebit_model_load_failures", "Loads that failed", labels=["model"])
        unloads = CounterMetricFamily(
            "onebit_model_unloads",
            "Models that left memory: why, the highest tier that ran on them, the highest that wanted their place",
            labels=["model", "reason", "tier", "for_tier"],
        )
        for model in self._cards.gate.models.values():
            loaded.add_metric([model.name], model.residency is Residency.RESIDENT)
            for pool, size in ledger.held(model.name).items():
                held.add_metric([model.name, pool], size)
            for pool, size in model.measured.items():
                measured.add_metric([model.name, pool], size)
        for pool, size in ledger.used().items():
            total.add_metric([pool], ledger.totals[pool])
            reserved.add_metric([pool], size)
        for name, counts in self._cards.history.loads.items():
            loads.add_metric([name], counts.loaded)
            seconds.add_metric([name], counts.seconds)
            failures.add_metric([name], counts.failed)
        for (name, reason, tier, wanted), number in self._cards.history.unloads.items():
            unloads.add_metric([name, reason, tier, wanted], number)
        return (loaded, held, measured, total, reserved, loads, seconds, failures, unloads)
