"""uvicorn's HTTP protocol, with some things added: a response's head goes out together with its first part, further
parts can be written without a turn through ASGI, and a client is bounded in what it sends and how long it is silent.
"""

from __future__ import annotations

import asyncio
import json
from typing import Any, cast

import httptools
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol, RequestResponseCycle

from onebit.errors import HeadTooLarge, InvalidRequest, OnebitError
from onebit.router.endpoints import error_body

PARTS = "onebit.parts"
"""In a request's scope: its response's `Parts`."""

_TAKES_NOTHING_S = 60.0  # as long as one that is gone without a word may hold a slot (listen.py)
_SILENT_S = 60.0  # in the middle of a request
_MAX_HEAD = 64 << 10


class ClientSide(HttpToolsProtocol):
    """A client's connection.

    uvicorn writes head and body one after the other, and uvloop sends each at once. Joined, the relay's CPU time for
    an answer of 64 chunks was 9 % less, and the client had one segment less to take (docs/benchmarks.md).
    """

    heard_at = 0.0  # when the client last sent something, or was last not expected to
    _pending = 0  # bytes that came since the parser last gave out a head or a part of a body

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """As a protocol's."""
        super().connection_made(transport)
        self.heard_at = self.loop.time()

    def data_received(self, data: bytes) -> None:
        """As a protocol's."""
        self._unset_keepalive_if_required()
        self.heard_at = self.loop.time()
        self._pending += len(data)
        try:
            self._parse(data)
        except httptools.HttpParserError:
            self._answer_garbage()
        if self._pending > _MAX_HEAD:  # the head, or what may follow a chunked body, does not end
            self._refuse(_too_large())

    def _parse(self, data: bytes) -> None:
        rest: bytes | memoryview = data
        while True:
            try:
                self.parser.feed_data(rest)
                return
            except httptools.HttpParserUpgrade as stop:
                if self.parser.get_method() == b"CONNECT":
                    self._refuse(InvalidRequest("CONNECT is not supported"))
                    return
                # The parser takes what follows for another protocol's, and, asked to go on, the body for a request.
                # An upgrade may be ignored (RFC 9110, 7.8): the same head without it, and then what followed.
                head = self._head_without_upgrade()
                self.parser = httptools.HttpRequestParser(self)
                self.parser.set_dangerous_leniencies(lenient_data_after_close=True)  # as uvicorn's
                self.parser.feed_data(head)
                rest = memoryview(rest)[stop.args[0] :]

    def _head_without_upgrade(self) -> bytes:
        version = self.parser.get_http_version().encode()
        fields = [b"%b: %b\r\n" % field for field in self.headers if field[0] != b"upgrade"]
        return b"%b %b HTTP/%b\r\n%b\r\n" % (self.parser.get_method(), self.url, version, b"".join(fields))

    def on_headers_complete(self) -> None:
        """As uvicorn's."""
        if self._pending > _MAX_HEAD and self._head_size() > _MAX_HEAD:  # mostly it is a body that came with its head
            self._refuse(_too_large())
            raise _too_large()  # stops the parser
        self._pending = 0
        if not self.parser.should_upgrade():  # `_parse` sees to those
            super().on_headers_complete()

    def _head_size(self) -> int:
        return len(self.url) + sum(len(name) + len(value) + len(": \r\n") for name, value in self.headers)

    def on_body(self, body: bytes) -> None:
        """As uvicorn's."""
        self._pending = 0
        super().on_body(body)

    def on_message_complete(self) -> None:
        """As uvicorn's."""
        self._pending = 0
        if not self.parser.should_upgrade():
            super().on_message_complete()

    def _answer_garbage(self) -> None:
        cycle = self.cycle
        if self.transport.is_closing():
            return  # refused
        if cycle is not None and cycle.response_started and not cycle.response_complete:
            self.transport.abort()  # it would be read as a part of that response
        else:
            self.send_400_response("Invalid HTTP request received.")

    def _refuse(self, error: OnebitError) -> None:
        """Answer and close; just cut where an earlier request has no whole answer yet, and would be given this one."""
        if self.transport.is_closing():
            return
        if self.cycle is not None and not self.cycle.response_complete:
            self.transport.abort()
            return
        body = json.dumps(error_body(error)).encode()
        fields = [
            *self.server_state.default_headers,
            (b"content-type", b"application/json"),
            (b"content-length", b"%d" % len(body)),
            (b"connection", b"close"),
        ]
        head = STATUS_LINE[error.status] + b"".join(b"%b: %b\r\n" % field for field in fields)
        self.transport.write(head + b"\r\n" + body)
        self.transport.close()

    def close_if_silent(self, now: float) -> None:
        """End the connection if its client owes the rest of a request, or its first, and has long sent nothing."""
        cycle = self.cycle
        unanswered = cycle is not None and not cycle.response_complete
        ours = unanswered and (
            not cycle.more_body or cycle.waiting_for_100_continue or self.flow.read_paused or len(self.pipeline) > 0
        )
        if ours or self.timeout_keep_alive_task is not None:
            self.heard_at = now  # it is for us to do something, or there is a timer: this clock stands still
        elif now - self.heard_at > _SILENT_S:
            if unanswered:
                self.transport.abort()  # `close` would wait until what is written is read
            else:
                self.transport.close()

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: Any) -> None:
        cast(dict[str, Any], cycle.scope)[PARTS] = Parts(cycle)
        if cycle.scope["method"] != "HEAD":  # there, no part follows
            cycle.transport = cast(asyncio.Transport, HeadHolder(cycle, cycle.transport))
        super()._start_asgi_task(cycle, app)


def _too_large() -> HeadTooLarge:
    return HeadTooLarge(f"the request's head is over {_MAX_HEAD >> 10} KiB")


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
