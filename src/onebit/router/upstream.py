"""One exchange with an engine: opened, and ended so that the engine really is done when it is over."""

from __future__ import annotations

import anyio

from onebit.engines.client import EngineClient
from onebit.engines.http import Response
from onebit.engines.supervisor import Engine
from onebit.errors import EngineLost
from onebit.router.openai import Call
from onebit.router.stoppable import to_its_end

# When to ask whether an engine has let go of a request that nobody reads any more. It takes 0.02 to 0.05 s when it
# generates. In a prompt it takes until the batch ends, and an engine that is otherwise idle notices only after a
# second in which nobody asks it anything: hence the long pauses after the short ones.
_SETTLE_PAUSES_S = (0.03, 0.03, 0.06, 0.12, 0.25, 1.2)


class Exchange:
    """Sends a call; its block has the response, and is left when the engine works on it no more.

    Entering and leaving raise EngineLost: the engine could not be reached, or broke off inside the block.
    """

    __slots__ = ("_call", "_engine", "_slots", "client", "response")

    client: EngineClient
    response: Response

    def __init__(self, engine: Engine, call: Call, slots: int) -> None:
        """`slots`: how many the lease holds."""
        self._engine = engine
        self._call = call
        self._slots = slots

    async def __aenter__(self) -> Exchange:
        client = self._engine.client
        if client is None:
            self._engine.doubt()  # it is being stopped or killed: nobody else should try
            raise EngineLost(f"engine {self._engine.spec.name} went down", retry_after=1)
        self.client = client
        try:
            self.response = await client.post(self._call.endpoint.path, self._call.body)
        except OSError as error:
            raise _lost(self._engine, error) from None
        self._count(1, begun=False)
        try:
            # Waited for even when the client has left: given up before its headers, the request might still be on its
            # way to a slot, and nobody could say when that is free again. They come at once where a slot is free.
            await self.response.begun(at_any_rate=True)
        except BaseException as error:
            self._count(-1, begun=False)
            broken = _lost(self._engine, error) if isinstance(error, OSError) else None
            await self._let_go()
            if broken is not None:
                raise broken from None
            raise
        self._count(-1, begun=False)
        self._count(1, begun=True)
        client.touch()
        return self

    async def __aexit__(self, _: object, error: BaseException | None, __: object) -> None:
        self._count(-1, begun=True)
        broken = _lost(self._engine, error) if isinstance(error, OSError) else None
        await self._let_go()
        if broken is not None:
            raise broken from None

    def _count(self, sign: int, *, begun: bool) -> None:
        """Enter what is expected of the engine in its client's books, or take it out (-1)."""
        slots = sign * self._slots
        if not self._call.streamed:
            self.client.whole += slots
        elif begun:
            self.client.live += slots
        else:
            self.client.sent += slots

    async def _let_go(self) -> None:
        """Nobody reads the answer any more: wait until the engine knows."""
        complete = self.response.complete
        self.client.done(self.response)
        if not complete:
            await to_its_end(_settled(self._engine, self.client))


def _lost(engine: Engine, error: OSError) -> EngineLost:
    """Report a broken connection to the supervisor, and make the error for the client of it."""
    engine.doubt()
    detail = str(error) or type(error).__name__
    return EngineLost(f"engine {engine.spec.name} broke off: {detail[:200]}", retry_after=1)


async def _settled(engine: Engine, client: EngineClient) -> None:
    """Wait until `client`'s engine works on nothing that nobody wants. Its death counts."""
    pauses = iter(_SETTLE_PAUSES_S)
    pause = 0.0
    rounds = 0
    while engine.client is client:
        pause = next(pauses, pause)
        await anyio.sleep(pause)
        try:
            busy = await client.in_work_now()
        except OSError:
            continue  # it is in a long batch, or dying: the supervisor tells
        if busy <= client.live:
            return
        # Answers in one piece are in work too, but a single look cannot tell one that is only about to begin.
        rounds = rounds + 1 if busy <= client.live + client.whole else 0
        if rounds == 2:
            return
