"""One exchange with an engine: opened, and ended so that the engine really is done when it is over."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

import anyio

from onebit.engines.client import EngineClient
from onebit.engines.http import Response
from onebit.engines.supervisor import Engine
from onebit.errors import EngineLost
from onebit.router.openai import Call

# When to ask whether an engine has let go of a request that nobody reads any more. It takes 0.02 to 0.05 s when it
# generates. In a prompt it takes until the batch ends, and an engine that is otherwise idle notices only after a
# second in which nobody asks it anything: hence the long pauses after the short ones.
_SETTLE_PAUSES_S = (0.03, 0.03, 0.06, 0.12, 0.25, 1.2)


@dataclass(frozen=True, slots=True)
class Exchange:
    """A response whose headers are there, and the client it comes through."""

    response: Response
    client: EngineClient


@asynccontextmanager
async def open_exchange(engine: Engine, call: Call, slots: int) -> AsyncIterator[Exchange]:
    """Send `call`; the block has the response. The block is left when the engine works on it no more.

    `slots`: how many the lease holds. Raises EngineLost when the engine cannot be reached.
    """
    client = engine.client
    if client is None:
        raise EngineLost(f"engine {engine.spec.name} went down")
    try:
        # Shielded: the engine has a free slot for us, so its headers come at once. A request given up before them
        # might still be on its way to the slot, and nobody could say when the slot is free again.
        with anyio.CancelScope(shield=True):
            response = await client.post(call.endpoint.path, call.body)
    except OSError as error:
        raise lost(engine, error) from None
    client.live += slots
    try:
        yield Exchange(response, client)
    finally:
        client.live -= slots
        complete = response.complete
        client.done(response)
        if not complete:
            with anyio.CancelScope(shield=True):
                await _settled(engine, client)


def lost(engine: Engine, error: OSError) -> EngineLost:
    """Report a broken connection to the supervisor, and make the error for the client of it."""
    engine.doubt()
    detail = str(error) or type(error).__name__
    return EngineLost(f"engine {engine.spec.name} broke off: {detail[:200]}", retry_after=1)


async def _settled(engine: Engine, client: EngineClient) -> None:
    """Wait until `client`'s engine works on nothing that nobody wants. Its death counts."""
    pauses = iter(_SETTLE_PAUSES_S)
    pause = 0.0
    while engine.client is client:
        pause = next(pauses, pause)
        await anyio.sleep(pause)
        try:
            if await client.in_work_now() <= client.live:
                return
        except OSError:
            continue  # it is in a long batch, or dying: the supervisor tells
