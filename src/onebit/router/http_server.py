"""uvicorn, as this server runs it."""

from __future__ import annotations

import asyncio
from contextlib import nullcontext
from typing import cast

import uvicorn

from onebit.router.app import App
from onebit.router.client_side import ClientSide

_BACKLOG = 2048

# An idle connection closes after this long, and clients must be the first to: a request that meets a close is lost,
# for they do not try a POST again. httpx keeps one for 5 s, aiohttp for 15, Go for 90. uvicorn's own 5 s met some.
_KEEP_ALIVE_S = 120

_SWEEP_TICKS = 50  # 5 s


class HttpServer(uvicorn.Server):
    """uvicorn without its own signal handling: the first Ctrl-C must drain the gate, not the sockets."""

    def __init__(self, app: App) -> None:
        super().__init__(
            uvicorn.Config(
                app,
                http=ClientSide,
                loop="none",
                lifespan="off",
                ws="none",
                interface="asgi3",
                log_config=None,
                proxy_headers=False,
                access_log=False,
                server_header=False,
                backlog=_BACKLOG,
                timeout_keep_alive=_KEEP_ALIVE_S,
                timeout_graceful_shutdown=2,
            )
        )

    def capture_signals(self) -> nullcontext[None]:  # type: ignore[override]
        """Leave them alone."""
        return nullcontext()

    async def on_tick(self, counter: int) -> bool:
        """Every 0.1 s. Looks at all connections now and then: a timer for each request would cost more."""
        if counter % _SWEEP_TICKS == 0:
            now = asyncio.get_running_loop().time()
            for connection in list(self.server_state.connections):
                cast(ClientSide, connection).close_if_silent(now)
        return await super().on_tick(counter)
