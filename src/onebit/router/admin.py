"""What the server tells about itself: health, models, engines, metrics."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from onebit.engines.state import State
from onebit.engines.supervisor import Engine
from onebit.router.metrics import CONTENT_TYPE, exposition
from onebit.router.pool import Pool
from onebit.router.reply import Reply
from onebit.scheduler.choose import EngineView

Pools = Mapping[str, Pool]


async def health(pools: Pools, reply: Reply) -> None:
    """200 when every model has an engine that answers, else 503 in llama-server's words."""
    engines = [list(p.engines.values()) for p in pools.values()]
    if all(any(e.state is State.READY for e in group) for group in engines):
        await reply.json(200, {"status": "ok"})
        return
    loading = any(e.state is State.STARTING for group in engines for e in group)
    text = "Loading model" if loading else "No engine is running"
    await reply.json(503, {"error": {"message": text, "type": "unavailable_error", "code": 503}})


async def models(pools: Pools, reply: Reply) -> None:
    """OpenAI's list of models."""
    data = [
        {
            "id": pool.model,
            "object": "model",
            "created": pool.created,
            "owned_by": "onebit",
            "meta": {"n_ctx": pool.context},
        }
        for pool in pools.values()
    ]
    await reply.json(200, {"object": "list", "data": data})


async def engines(pools: Pools, reply: Reply) -> None:
    """State and slots of every engine."""
    await reply.json(200, {"object": "list", "data": [_model(pool) for pool in pools.values()]})


async def metrics(pools: Pools, reply: Reply) -> None:
    """Prometheus text."""
    await reply.whole(200, await exposition(pools), (b"content-type", CONTENT_TYPE.encode()))


def _model(pool: Pool) -> dict[str, Any]:
    views = {v.name: v for v in pool.gate.ledger.views()}
    return {
        "model": pool.model,
        "waiting": pool.gate.waiting,
        "engines": [_engine(e, views[name]) for name, e in pool.engines.items()],
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
        "restarts": max(0, engine.starts - 1),
        "pid": engine.pid,
        "last_error": engine.cause,
    }


ADMIN: dict[str, Callable[[Pools, Reply], Awaitable[None]]] = {
    "/health": health,
    "/v1/health": health,
    "/v1/models": models,
    "/v1/engines": engines,
    "/metrics": metrics,
}
