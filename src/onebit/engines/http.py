"""One HTTP request to an engine over one connection: httptools parses, this file moves bytes.

Not a general client, and on purpose not a pooled one:

* llama-server closes a kept-alive connection some milliseconds after a streamed answer without saying so; 5 to 15
  of 100 requests on a reused connection met that (measured). Connecting to a Unix socket costs 0.1 ms.
* aiohttp 3.14's client waits for ever when an engine sends garbage inside a chunked body, even after the peer has
  closed, and cost 1.1 ms of the relay's 2.3 ms for a 64-chunk answer (docs/benchmarks.md).
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import cast

import httptools

from onebit.engines.llama_server import Address

# Bytes taken from an engine ahead of a slow client; beyond them the engine has to wait.
_HIGH_WATER = 1 << 18


class Response(asyncio.Protocol):
    """An answer as it arrives. Also the connection it arrives on, which ends with it."""

    def __init__(self) -> None:
        self.status = 0
        self.headers: dict[bytes, bytes] = {}  # names in lower case
        self.complete = False
        self._parser = httptools.HttpResponseParser(self)
        self._transport: asyncio.Transport | None = None
        self._chunks: list[bytes] = []
        self._buffered = 0
        self._paused = False
        self._error: OSError | None = None
        self._begun = False
        self._waiter: asyncio.Future[None] | None = None

    async def body(self) -> AsyncIterator[bytes]:
        """The body's bytes, as much at a time as has come. Raises OSError when it breaks off."""
        while True:
            if self._chunks:
                data = b"".join(self._chunks) if len(self._chunks) > 1 else self._chunks[0]
                self._chunks.clear()
                self._buffered = 0
                if self._paused and self._transport is not None:
                    self._paused = False
                    self._transport.resume_reading()
                yield data
            elif self.complete:
                return
            elif self._error is not None:
                raise self._error
            else:
                await self._news()

    async def read(self) -> bytes:
        """The whole body. Raises OSError when it breaks off."""
        return b"".join([chunk async for chunk in self.body()])

    def close(self) -> None:
        """End the connection, whatever is still to come."""
        if self._transport is not None:
            self._transport.abort()

    async def begun(self) -> None:
        """Return when the status and headers are there. Raises OSError when they never come."""
        while not self._begun:
            if self._error is not None:
                raise self._error
            await self._news()

    async def _news(self) -> None:
        self._waiter = asyncio.get_running_loop().create_future()
        try:
            await self._waiter
        finally:
            self._waiter = None

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def _fail(self, reason: str) -> None:
        if self._error is None and not self.complete:
            self._error = ConnectionResetError(reason)
        self.close()
        self._wake()

    # --- asyncio.Protocol --------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """The connection stands."""
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        """Bytes came."""
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError as error:
            self._fail(f"it sent what is not HTTP: {error}")
            return
        if self._buffered > _HIGH_WATER and not self._paused and self._transport is not None:
            self._paused = True
            self._transport.pause_reading()
        self._wake()

    def connection_lost(self, exc: Exception | None) -> None:
        """The connection ended; a body that says no length ends with it."""
        if not self.complete and self._begun and not self.headers.keys() & {b"content-length", b"transfer-encoding"}:
            self.complete = True
        self._fail(str(exc) if exc else "the connection closed in the middle of an answer")

    # --- httptools ---------------------------------------------------------------------------------------------

    def on_header(self, name: bytes, value: bytes) -> None:
        """One header."""
        self.headers[name.lower()] = value

    def on_headers_complete(self) -> None:
        """All of them."""
        self.status = self._parser.get_status_code()
        self._begun = True

    def on_body(self, body: bytes) -> None:
        """A part of the body."""
        self._chunks.append(body)
        self._buffered += len(body)

    def on_message_complete(self) -> None:
        """The whole answer is there."""
        self.complete = True
        self.close()


async def request(address: Address, head: bytes, body: bytes, register: set[Response]) -> Response:
    """Send `head` (all but its length and end) and `body`; return when the answer's headers are there.

    The response is in `register` from the moment it can be closed. Raises OSError when there is no connection, or
    no HTTP. A call that fails or is cancelled leaves neither a connection nor an entry behind.
    """
    loop = asyncio.get_running_loop()
    if address.socket is not None:
        transport, response = await loop.create_unix_connection(Response, str(address.socket))
    else:
        transport, response = await loop.create_connection(Response, "127.0.0.1", address.port)
    register.add(response)
    try:
        transport.write(b"%bContent-Length: %d\r\n\r\n%b" % (head, len(body), body))
        await response.begun()
    except BaseException:
        register.discard(response)
        response.close()
        raise
    return response
