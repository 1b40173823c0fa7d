"""One HTTP request to an engine over one connection: httptools parses, this file moves bytes.

Not a general client, and on purpose not a pooled one:

* llama-server closes a kept-alive connection some milliseconds after a streamed answer without saying so; 5 to 15
  of 100 requests on a reused connection met that (measured). Connecting to a Unix socket costs 0.1 ms.
* aiohttp 3.14's client waits for ever when an engine sends garbage inside a chunked body, even after the peer has
  closed, and cost 1.1 ms of the relay's 2.3 ms for a 64-chunk answer (docs/benchmarks.md).
* A bare socket, not asyncio's transport: a Unix socket connects and takes the request without waiting, so a request
  is on its way in the turn of the event loop in which it got its slot; 10 % less CPU time for a 64-chunk answer.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable

import httptools

from onebit.engines.llama_server import Address

# Bytes taken from an engine ahead of a slow client; beyond them the engine has to wait.
_HIGH_WATER = 1 << 18
_READ = 1 << 16  # bytes at a time
_FULL_BACKLOG_PAUSE_S = 0.002


class Response:
    """An answer as it arrives. Also the connection it arrives on, which ends with it."""

    def __init__(self, connection: socket.socket) -> None:
        self.status = 0
        self.headers: dict[bytes, bytes] = {}  # names in lower case
        self.complete = False
        self._loop = asyncio.get_running_loop()
        self._socket = connection
        self._fd = connection.fileno()  # -1: closed
        self._parser = httptools.HttpResponseParser(self)
        self._unsent: memoryview | None = None
        self._chunks: list[bytes] = []
        self._buffered = 0
        self._paused = False
        self._error: Exception | None = None
        self._take: Callable[[bytes], bool] | None = None  # while somebody pours
        self._full = False  # what is poured into wants no more for now
        self._begun = False
        self._waiter: asyncio.Future[None] | None = None
        self._loop.add_reader(self._fd, self._readable)

    async def begun(self, *, at_any_rate: bool = False) -> None:
        """Return when the status and headers are there. Raises OSError when they never come.

        `at_any_rate`: even the cancellation of the task waits for that.
        """
        cancelled: asyncio.CancelledError | None = None
        while not self._begun:
            if self._error is not None:
                raise cancelled or self._error
            self._waiter = self._loop.create_future()
            try:
                await self._waiter
            except asyncio.CancelledError as error:
                if not at_any_rate:
                    raise
                cancelled = error
        if cancelled is not None:
            raise cancelled

    async def chunk(self) -> bytes:
        """What has come of the body since the last time; empty at its end. Raises OSError when it breaks off.

        When `complete` is true afterwards, nothing follows.
        """
        while not self._chunks:
            if self.complete:
                return b""
            if self._error is not None:
                raise self._error
            self._waiter = self._loop.create_future()
            await self._waiter
        return self._taken()

    async def pour(self, take: Callable[[bytes], bool]) -> bool:
        """Give `take` what comes of the body, each piece in the call in which it was read: no task wakes for it.

        Returns False at the end, and True when `take` did so, for it wants no more now: pour again later. Raises
        OSError when the body breaks off, and what `take` raises. In `take`, `complete` is as after `chunk`.
        """
        while True:
            if self._chunks:
                if not take(self._taken()):
                    return True
            elif self._error is not None:  # `take` may fail at the last piece: first of all that is told
                raise self._error
            elif self.complete:
                return False
            else:
                self._go_on()
                self._take, self._full = take, False
                self._waiter = self._loop.create_future()
                try:
                    await self._waiter
                finally:
                    self._take = None
                if self._full:
                    return True

    async def read(self) -> bytes:
        """The whole body. Raises OSError when it breaks off."""
        parts: list[bytes] = []
        while part := await self.chunk():
            parts.append(part)
        return b"".join(parts)

    def send(self, data: bytes) -> None:
        """Write the request; what the socket does not take now goes out as it can."""
        sent = self._write(data)
        if sent < len(data):
            self._unsent = memoryview(data)[sent:]
            self._loop.add_writer(self._fd, self._writable)

    def close(self) -> None:
        """End the connection, whatever is still to come."""
        if self._fd < 0:
            return
        self._loop.remove_reader(self._fd)
        if self._unsent is not None:
            self._loop.remove_writer(self._fd)
        self._fd = -1
        self._socket.close()
        del self._parser  # it holds us: without this, each answer left a cycle of ten objects to the collector
        if not self.complete:
            self._fail("the connection was closed")

    def _taken(self) -> bytes:
        data = self._chunks[0] if len(self._chunks) == 1 else b"".join(self._chunks)
        self._chunks.clear()
        self._buffered = 0
        self._go_on()
        return data

    def _go_on(self) -> None:
        if self._paused and self._fd >= 0:
            self._paused = False
            self._loop.add_reader(self._fd, self._readable)

    def _pause(self) -> None:
        if not self._paused and self._fd >= 0:
            self._paused = True
            self._loop.remove_reader(self._fd)

    def _wake(self) -> None:
        waiter, self._waiter = self._waiter, None
        if waiter is not None and not waiter.done():  # done: cancelled
            waiter.set_result(None)

    def _fail(self, reason: str) -> None:
        if self._error is None and not self.complete:
            self._error = ConnectionResetError(reason)
        self.close()
        self._wake()

    # --- the event loop calls ------------------------------------------------------------------------------------

    def _readable(self) -> None:
        try:
            data = self._socket.recv(_READ)
            if data:
                self._parser.feed_data(data)
        except BlockingIOError:
            return
        except OSError as error:
            self._fail(str(error))
            return
        except httptools.HttpParserError as error:
            self._fail(f"it sent what is not HTTP: {error}")
            return
        if not data:
            self._ended()
        elif self._take is not None and self._chunks:
            if self._poured(self._take) and not self.complete:
                return
        elif self._buffered > _HIGH_WATER:
            self._pause()
        self._wake()

    def _poured(self, take: Callable[[bytes], bool]) -> bool:
        """May it go on like this?"""
        try:
            self._full = not take(self._taken())
        except Exception as error:  # the one who pours is told: here, it would end in the event loop's log
            self._error = error
            self.close()
            return False
        if self._full:
            self._pause()
        return not self._full

    def _ended(self) -> None:
        """The engine closed; a body that says no length ends with that."""
        if self._begun and not self.headers.keys() & {b"content-length", b"transfer-encoding"}:
            self.complete = True
        self._fail("the connection closed in the middle of an answer")

    def _writable(self) -> None:
        if self._unsent is not None:
            self._unsent = self._unsent[self._write(self._unsent) :]
            if not self._unsent:
                self._unsent = None
                self._loop.remove_writer(self._fd)

    def _write(self, data: bytes | memoryview) -> int:
        try:
            return self._socket.send(data)
        except BlockingIOError:
            return 0
        except OSError:
            return len(data)  # reading tells why; an engine may also answer before it has read all

    # --- httptools calls -----------------------------------------------------------------------------------------

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


async def connect(address: Address) -> socket.socket:
    """A connection to an engine. Raises OSError."""
    if address.socket is None:
        connection = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    else:
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        connection.setblocking(False)
        if address.socket is None:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            await asyncio.get_running_loop().sock_connect(connection, ("127.0.0.1", address.port))
            return connection
        while True:
            try:
                connection.connect(str(address.socket))
                return connection
            except BlockingIOError:  # the engine's backlog is full (128), and nothing would tell when it is not
                await asyncio.sleep(_FULL_BACKLOG_PAUSE_S)
    except BaseException:
        connection.close()
        raise
