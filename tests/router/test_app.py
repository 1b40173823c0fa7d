"""Bodies on their way: they count as held from their first byte, and a server that ends says so to who sends one."""

from __future__ import annotations

import asyncio
import json
from types import SimpleNamespace
from typing import Any, cast

import pytest
from uvicorn import Config
from uvicorn.server import ServerState

from onebit.errors import QueueFull
from onebit.router import app as app_module
from onebit.router.admin import Admin
from onebit.router.app import App
from onebit.router.client_side import ClientSide
from onebit.router.journal import Journal
from onebit.router.keyring import KeyRing
from onebit.scheduler.gate import Gate
from onebit.tiers import Tier
from tests.router.test_client_side import Wire

pytestmark = pytest.mark.anyio


def make() -> App:
    """One that never gets as far as its gate."""
    admin = cast(Admin, SimpleNamespace(journal=Journal()))
    return App({}, cast(Gate, None), KeyRing((), Tier.FREE), 1 << 20, admin)


def part(data: bytes, more: bool) -> dict[str, Any]:
    return {"type": "http.request", "body": data, "more_body": more}


async def test_a_body_that_never_ends_is_held_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(app_module, "_MAX_HELD", 100)
    app = make()

    async def half() -> Any:
        if not begun.is_set():
            begun.set()
            return part(b"x" * 60, True)
        await asyncio.sleep(3600)

    async def whole() -> Any:
        return part(b"y" * 60, False)

    begun = asyncio.Event()
    first = asyncio.create_task(app._body({}, half))
    await begun.wait()
    await asyncio.sleep(0)
    with pytest.raises(QueueFull):
        await app._body({}, whole)
    first.cancel()
    await asyncio.wait([first])
    assert await app._body({}, whole) == b"y" * 60  # what was held for the others is given back


async def test_a_body_on_its_way_when_the_server_ends_is_told_so() -> None:
    state, wire = ServerState(), Wire()
    connection = ClientSide(Config(make(), log_config=None, interface="asgi3"), state, {})
    connection.connection_made(cast(asyncio.Transport, wire))
    connection.data_received(b"POST /v1/completions HTTP/1.1\r\nHost: here\r\nContent-Length: 99\r\n\r\n{")
    (task,) = state.tasks
    await asyncio.sleep(0)
    task.cancel()  # as uvicorn does
    await asyncio.wait([task])
    connection.connection_lost(None)
    head, _, body = b"".join(wire.writes).partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 503 ")
    assert json.loads(body)["error"]["code"] == "shutting_down"
