"""Prometheus metrics, read from the ledgers when they are asked for: they cost a request nothing."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import suppress

from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from onebit.engines.state import State
from onebit.router.pool import Pool

CONTENT_TYPE = CONTENT_TYPE_LATEST
_LABELS = ["model", "engine"]


async def exposition(pools: Mapping[str, Pool]) -> bytes:
    """The text of /metrics. Drafting engines are asked for their counters; one that does not answer is left out."""
    drafts: dict[tuple[str, str], tuple[int, int]] = {}
    for pool in pools.values():
        for name, engine in pool.engines.items():
            if engine.spec.draft is not None and engine.client is not None:
                with suppress(OSError):
                    drafts[pool.model, name] = await engine.client.drafts()
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Snapshot(pools, drafts))
    return generate_latest(registry)


class _Snapshot(Collector):
    def __init__(self, pools: Mapping[str, Pool], drafts: Mapping[tuple[str, str], tuple[int, int]]) -> None:
        self._pools = pools
        self._drafts = drafts

    def collect(self) -> Iterable[Metric]:
        waiting = GaugeMetricFamily("onebit_requests_waiting", "Requests in line", labels=["model"])
        slots = GaugeMetricFamily("onebit_slots", "Slots an engine has", labels=_LABELS)
        in_use = GaugeMetricFamily("onebit_slots_in_use", "Slots held by requests", labels=_LABELS)
        ready = GaugeMetricFamily("onebit_engine_ready", "1 when the engine takes requests", labels=_LABELS)
        restarts = CounterMetricFamily("onebit_engine_restarts", "Starts after the first", labels=_LABELS)
        claims = CounterMetricFamily("onebit_engine_claims", "Requests given to an engine", labels=_LABELS)
        drafted = CounterMetricFamily("onebit_draft_tokens", "Tokens drafted", labels=_LABELS)
        accepted = CounterMetricFamily("onebit_draft_accepted_tokens", "Drafted tokens accepted", labels=_LABELS)
        for pool in self._pools.values():
            waiting.add_metric([pool.model], pool.gate.waiting)
            served = pool.gate.ledger.served()
            for view in pool.gate.ledger.views():
                engine, labels = pool.engines[view.name], [pool.model, view.name]
                slots.add_metric(labels, view.capacity)
                in_use.add_metric(labels, view.in_use)
                ready.add_metric(labels, engine.state is State.READY)
                restarts.add_metric(labels, max(0, engine.starts - 1))
                claims.add_metric(labels, served[view.name])
                if counts := self._drafts.get((pool.model, view.name)):
                    drafted.add_metric(labels, counts[0])
                    accepted.add_metric(labels, counts[1])
        return (waiting, slots, in_use, ready, restarts, claims, drafted, accepted)
