"""uvicorn's HTTP protocol, with two things added: a response's head goes out together with its first part, and further
parts can be written without a turn through ASGI.
"""

from __future__ import annotations

import asyncio
from typing import Any, cast

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

PARTS = "onebit.parts"
"""In a request's scope: its response's `Parts`."""

_TAKES_NOTHING_S = 60.0  # as long as one that is gone without a word may hold a slot (listen.py)


class ClientSide(HttpToolsProtocol):
    """A client's connection.

    uvicorn writes head and body one after the other, and uvloop sends each at once. Joined, the relay's CPU time for
    an answer of 64 chunks was 9 % less, and the client had one segment less to take (docs/benchmarks.md).
    """

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: Any) -> None:
        cast(dict[str, Any], cycle.scope)[PARTS] = Parts(cycle)
        if cycle.scope["method"] != "HEAD":  # there, no part follows
            cycle.transport = cast(asyncio.Transport, HeadHolder(cycle, cycle.transport))
        super()._start_asgi_task(cycle, app)


class HeadHolder:
    """What a response writes its head to: it keeps that until something follows, and then steps aside."""

    __slots__ = ("_cycle", "_head", "_transport", "is_closing")

    def __init__(self, cycle: RequestResponseCycle, transport: asyncio.Transport) -> None:
        self._cycle = cycle
        self._transport = transport
        self._head = b""
        self.is_closing = transport.is_closing

    def write(self, data: bytes) -> None:
        """As a transport's; the first thing a begun response writes is its head."""
        if self._head:
            self._cycle.transport = self._transport
            self._transport.write(self._head + data)
        elif self._cycle.response_started:
            self._head = data
        else:
            self._transport.write(data)  # 100 Continue

    def close(self) -> None:
        """As a transport's."""
        if self._head:
            self._transport.write(self._head)
        self._transport.close()


class Parts:
    """Writes the parts of a chunked response that has begun.

    As ASGI's `send` with more_body, but a plain call: the relay writes from the callback that has read the engine's
    socket, and no task wakes for a token.
    """

    __slots__ = ("_cycle",)

    def __init__(self, cycle: RequestResponseCycle) -> None:
        self._cycle = cycle

    def write(self, data: bytes) -> bool:
        """Send a part; a client that has left is no error. False: the client is slow."""
        cycle = self._cycle
        if data and not cycle.disconnected:  # an empty chunk would end the response
            cycle.transport.write(b"%x\r\n%b\r\n" % (len(data), data))
        return not cycle.flow.write_paused

    @property
    def full(self) -> bool:
        """The client is slow."""
        return self._cycle.flow.write_paused

    async def drained(self) -> None:
        """Return when the client has taken most of what was written, or left.

        One that takes a minute to is disconnected: a slot of the card may wait for it.
        """
        flow = self._cycle.flow
        try:
            async with asyncio.timeout(_TAKES_NOTHING_S):
                await flow.drain()
        except TimeoutError:
            self._cycle.transport.abort()
            await flow.drain()  # the connection's end sees to that
