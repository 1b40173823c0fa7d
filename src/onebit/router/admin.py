"""What the server tells about itself: health, models, engines, metrics."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from onebit.engines.state import State
from onebit.engines.supervisor import Engine
from onebit.memory.residency import Residency
from onebit.router.journal import Journal
from onebit.router.metrics import CONTENT_TYPE, exposition
from onebit.router.pool import Pool
from onebit.router.reply import Reply
from onebit.scheduler.audit import overlooked
from onebit.scheduler.cards import Cards
from onebit.scheduler.choose import EngineView
from onebit.scheduler.model import Model
from onebit.tiers import Tier

PATHS = ("/health", "/v1/health", "/v1/models", "/v1/engines", "/metrics")
_OVERLOOKED_S = 10.0  # a waiter is handed a free slot within a millisecond; two known servers were stuck for hours


class Admin:
    """Answers the paths that concern the server itself."""

    def __init__(self, pools: Mapping[str, Pool], cards: Cards, journal: Journal) -> None:
        self.journal = journal
        self._pools = pools
        self._cards = cards
        self._gate = cards.gate

    async def answer(self, path: str, reply: Reply) -> None:
        """`path` is one of PATHS."""
        match path:
            case "/v1/models":
                data = [model for pool in self._pools.values() for model in _openai_models(pool)]
                await reply.json(200, {"object": "list", "data": data})
            case "/v1/engines":
                await reply.json(200, self.engines())
            case "/metrics":
                text = await exposition(self._pools, self._cards, self.journal)
                await reply.whole(200, text, (b"content-type", CONTENT_TYPE.encode()))
            case _:
                await self._health(reply)

    async def _health(self, reply: Reply) -> None:
        """200 when all that must be in memory answers and nobody is overlooked, else 503 in llama-server's words."""
        text = self._ailing()
        if text is None:
            await reply.json(200, {"status": "ok"})
        else:
            await reply.json(503, {"error": {"message": text, "type": "unavailable_error", "code": 503}})

    def _ailing(self) -> str | None:
        for model in self._gate.models.values():
            if model.leaving_for_good:
                continue
            engines = self._pools[model.name].engines.values() if model.name in self._pools else ()
            if any(engine.state is State.READY for engine in engines):
                continue
            if model.residency is Residency.LOADING and (model.spec.pinned or model.asked_at is not None):
                return "Loading model"
            if model.residency is Residency.RESIDENT or model.spec.pinned:
                return "No engine is running"
        if (lease := overlooked(self._gate, _OVERLOOKED_S)) is not None:
            return f"A request for {lease.ask.model} waits although there is room for it"
        return None

    def engines(self) -> dict[str, Any]:
        """State, memory, slots and waiters of every model and its engines."""
        used = self._cards.ledger.used()
        memory = {
            pool: {"total_bytes": total, "reserved_bytes": used[pool]}
            for pool, total in self._cards.ledger.totals.items()
        }
        data = [self._model(self._gate.models[pool.model], pool) for pool in self._pools.values()]
        return {"object": "list", "memory": memory, "data": data}

    def _model(self, model: Model, pool: Pool) -> dict[str, Any]:
        views = {v.name: v for v in model.slots.views()}
        now = self._gate.clock()
        idle = model.residency is Residency.RESIDENT and not model.running
        return {
            "model": model.name,
            "state": model.residency.value,
            "pinned": model.spec.pinned,
            "bytes": dict(self._cards.ledger.held(model.name)),
            "needs_bytes": dict(model.needs),
            "waiting": len(model.line),
            "waiting_by_tier": {tier.label: model.line.count(tier) for tier in reversed(Tier)},
            "running_by_tier": {tier.label: model.count_running(tier) for tier in reversed(Tier)},
            "idle_seconds": round(now - model.idle_since, 1) if idle else None,
            "load_seconds": round(model.load_seconds, 3),
            "cooling_seconds": round(model.cool_until - now, 1) if model.cool_until > now else None,
            "last_error": model.cause,
            "engines": [_engine(engine, views[name]) for name, engine in pool.engines.items()],
        }


def _engine(engine: Engine, view: EngineView) -> dict[str, Any]:
    return {
        "name": engine.spec.name,
        "device": str(engine.spec.device),
        "state": engine.state.value,
        "slots": view.capacity,
        "slots_in_use": view.in_use,
        "slots_usable": view.limit,
        "context": engine.spec.context,
        "draft": engine.spec.draft.kind.value if engine.spec.draft else None,
        "restarts": engine.restarts,
        "pid": engine.pid,
        "last_error": engine.cause,
    }


def _openai_models(pool: Pool) -> list[dict[str, Any]]:
    """The model, and its adapters as models of their own, which name it as their `parent` (vLLM's word)."""
    model = {"id": pool.model, "object": "model", "created": pool.created, "owned_by": "onebit"}
    meta = {"n_ctx": pool.context}
    listed = pool.adapters.listed.values() if pool.adapters is not None else ()
    return [
        {**model, "meta": meta},
        *(
            {**model, "id": f"{pool.model}:{s.name}", "parent": pool.model, "meta": {**meta, "about": s.about}}
            for s in listed
        ),
    ]
