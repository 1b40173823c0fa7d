"""One HTTP request of the load generator, with the time at which each piece of the answer arrived.

An asyncio protocol under httptools, not a general client: the bytes are read in the call in which the loop gets them,
without a task switch, so the clock is read as early as Python can; an event costs 7 µs to take apart. A connection is
made for each request, as llama-server closes kept-alive ones after a streamed answer; the time to the first token
includes it.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable
from time import perf_counter
from typing import cast

import httptools

from onebit.bench.endpoint import Endpoint

_MAX_HEADER_BYTES = 1 << 16

OnBody = Callable[[bytes, float], None]
"""Takes a piece of the body and the time (`perf_counter`, seconds) at which it arrived."""


class WireError(Exception):
    """The connection or the HTTP on it failed; the text says how."""


class Exchange(asyncio.Protocol):
    """A request under way. `head_seen` tells status and content type before the first byte of the body."""

    def __init__(self, request: bytes, on_head: Callable[[int, str], None], on_body: OnBody) -> None:
        self._request = request
        self._on_head = on_head
        self._on_body = on_body
        self._parser = httptools.HttpResponseParser(self)
        self._type = ""
        self._header_bytes = 0
        self._framed = False  # is the body's length or chunking told? Else its end is that of the connection
        self._head_came = False
        self._now = 0.0
        self._transport: asyncio.Transport | None = None
        self.last_byte = perf_counter()
        self.ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def finish(self, error: Exception | None = None) -> None:
        """The answer is over, well or with an error; the connection is closed."""
        if not self.ended.done():
            if error is None:
                self.ended.set_result(None)
            else:
                self.ended.set_exception(error)
        if self._transport is not None:
            self._transport.abort()

    # --- asyncio calls -------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Send."""
        self._transport = cast(asyncio.Transport, transport)  # uvloop's are no subclass
        self._transport.write(self._request)

    def data_received(self, data: bytes) -> None:
        """Read."""
        self._now = self.last_byte = perf_counter()
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserCallbackError as error:
            cause = error.__context__ or error
            self.finish(cause if isinstance(cause, Exception) else error)
        except httptools.HttpParserError as error:
            self.finish(WireError(f"what came is not HTTP ({error})"))

    def connection_lost(self, error: Exception | None) -> None:
        """Closed before the end, or after it."""
        if self._head_came and not self._framed and error is None:
            self.finish()
        else:
            when = "in the middle of the answer" if self._now else "without an answer"
            self.finish(WireError(f"the connection was closed {when}"))

    # --- httptools calls -----------------------------------------------------------------------------------

    def on_header(self, name: bytes, value: bytes) -> None:
        """One header."""
        self._header_bytes += len(name) + len(value)
        if self._header_bytes > _MAX_HEADER_BYTES:
            raise WireError("the headers of the answer are over 64 KiB")
        name = name.lower()
        if name == b"content-type":
            self._type = value.decode("latin-1").split(";")[0].strip().lower()
        elif name in (b"content-length", b"transfer-encoding"):
            self._framed = True

    def on_headers_complete(self) -> None:
        """All of them."""
        self._head_came = True
        self._on_head(self._parser.get_status_code(), self._type)

    def on_body(self, body: bytes) -> None:
        """A part of the body."""
        self._on_body(body, self._now)

    def on_message_complete(self) -> None:
        """The end."""
        self.finish()


async def exchange(
    endpoint: Endpoint,
    method: str,
    path: str,
    body: bytes,
    on_head: Callable[[int, str], None],
    on_body: OnBody,
    silence: float,
) -> None:
    """Send one request and hand on what comes, until the answer ends.

    Raises WireError, TimeoutError after `silence` seconds without a byte, and whatever `on_head` and `on_body` raise.
    """
    loop = asyncio.get_running_loop()
    request = _head(endpoint, method, path, len(body)) + body

    def made() -> Exchange:
        return Exchange(request, on_head, on_body)

    try:
        async with asyncio.timeout(silence):
            if endpoint.socket is not None:
                _, talk = await loop.create_unix_connection(made, str(endpoint.socket))
            else:
                tls = ssl.create_default_context() if endpoint.tls else None
                _, talk = await loop.create_connection(made, endpoint.host, endpoint.port, ssl=tls)
    except TimeoutError:
        raise
    except ssl.SSLError as error:
        raise WireError(f"{endpoint.name}: TLS failed: {error.reason or error}") from None
    except OSError as error:
        raise WireError(f"cannot connect to {endpoint.name}: {error.strerror or error}") from None
    try:
        while not talk.ended.done():
            await asyncio.wait([talk.ended], timeout=max(0.01, talk.last_byte + silence - perf_counter()))
            if not talk.ended.done() and perf_counter() - talk.last_byte >= silence:
                raise TimeoutError
        talk.ended.result()
    finally:
        if talk.ended.done():
            talk.ended.exception()  # seen, or asyncio complains
        else:
            talk.ended.cancel()
        talk.finish()


def _head(endpoint: Endpoint, method: str, path: str, length: int) -> bytes:
    host = "engine" if endpoint.socket is not None else f"{endpoint.host}:{endpoint.port}"
    lines = [
        f"{method} {endpoint.base}{path} HTTP/1.1",
        f"Host: {host}",
        "User-Agent: onebit-bench",
        "Accept: text/event-stream, application/json",
        "Connection: close",
        "Content-Type: application/json",
        f"Content-Length: {length}",
    ]
    if endpoint.key:
        lines.append(f"Authorization: Bearer {endpoint.key}")
    return ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1", "replace")
