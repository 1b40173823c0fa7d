"""The answer to a client, through ASGI's send and a short way past it: it knows whether it has begun, and ended."""

from __future__ import annotations

import json
import math
from collections.abc import Awaitable, Callable, MutableMapping
from time import monotonic
from typing import Any

from onebit.errors import OnebitError
from onebit.router.client_side import Parts
from onebit.router.endpoints import error_body

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
Header = tuple[bytes, bytes]

JSON = (b"content-type", b"application/json; charset=utf-8")
EVENTS = (b"content-type", b"text/event-stream")


class Reply:
    """One response, written once."""

    __slots__ = ("_parts", "_send", "begun", "ended", "first", "fixed", "status")

    def __init__(self, send: Send, parts: Parts, fixed: tuple[Header, ...] = ()) -> None:
        """`fixed`: headers that every response carries."""
        self._send = send
        self._parts = parts
        self.fixed = fixed
        self.begun = False
        self.ended = False
        self.status = 0
        self.first: float | None = None  # when it began, on the monotonic clock

    async def begin(self, status: int, *headers: Header) -> None:
        """Send status and headers."""
        self.begun = True
        self.status = status
        self.first = monotonic()
        start = {"type": "http.response.start", "status": status, "headers": [*headers, *self.fixed]}
        await self._out(start)

    def part(self, data: bytes) -> bool:
        """Send a part of the body, now. False: the client is slow, and what comes next should wait for `drained`."""
        return self._parts.write(data)

    async def drained(self) -> None:
        """Return when the client has taken most of what was sent, or is given up."""
        await self._parts.drained()

    async def end(self, data: bytes = b"") -> None:
        """Send the last part."""
        self.ended = True
        await self._out({"type": "http.response.body", "body": data, "more_body": False})

    async def _out(self, message: Message) -> None:
        if self._parts.full:  # uvicorn would wait for ever
            await self._parts.drained()
        await self._send(message)

    async def whole(self, status: int, body: bytes, *headers: Header) -> None:
        """Send everything at once."""
        await self.begin(status, (b"content-length", str(len(body)).encode()), *headers)
        await self.end(body)

    async def json(self, status: int, value: Any, *headers: Header) -> None:
        """Send `value` as JSON."""
        await self.whole(status, json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode(), JSON, *headers)

    async def error(self, error: OnebitError) -> None:
        """Send OpenAI's error object with its status, and, in the headers that SDKs read, if and when to try again."""
        headers: list[Header] = [(b"x-should-retry", b"true" if error.again else b"false")]
        if error.retry_after is not None:
            headers += [
                (b"retry-after", str(math.ceil(error.retry_after)).encode()),
                (b"retry-after-ms", str(math.ceil(error.retry_after * 1000)).encode()),
            ]
        if error.refused is not None:
            headers.append((b"x-onebit-refused", error.refused.encode()))
        if error.status == 401:
            headers.append((b"www-authenticate", b"Bearer"))
        if error.status == 413:
            headers.append((b"connection", b"close"))  # the rest of the body is not read
        await self.json(error.status, error_body(error), *headers)
