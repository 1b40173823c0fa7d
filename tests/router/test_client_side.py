"""What goes out in one piece: a response's head together with its first part, and nothing is kept back too long."""

from __future__ import annotations

import asyncio
import socket
from functools import partial
from typing import Any, cast

import pytest
from uvicorn import Config
from uvicorn.server import ServerState

from onebit.router import client_side
from onebit.router.app import App
from onebit.router.client_side import PARTS, ClientSide, Parts
from onebit.router.http_server import HttpServer
from onebit.router.reply import Receive, Reply, Send

pytestmark = pytest.mark.anyio


class Wire:
    """A transport that notes each write."""

    def __init__(self) -> None:
        self.writes: list[bytes] = []
        self.closed = False

    def write(self, data: bytes) -> None:
        self.writes.append(data)

    def close(self) -> None:
        self.closed = True

    def is_closing(self) -> bool:
        return self.closed

    def get_extra_info(self, _: str) -> None:
        return None


async def ask(app: Any, method: bytes = b"POST", *headers: bytes) -> Wire:
    """One request to `app`; returns when it is answered."""
    state = ServerState()
    wire = Wire()
    connection = ClientSide(Config(app, log_config=None, interface="asgi3"), state, {})
    connection.connection_made(cast(asyncio.Transport, wire))
    connection.data_received(b"\r\n".join([method + b" / HTTP/1.1", b"Host: here", *headers, b"", b""]))
    await asyncio.gather(*state.tasks)
    connection.connection_lost(None)
    if connection.timeout_keep_alive_task is not None:
        connection.timeout_keep_alive_task.cancel()
    return wire


async def test_an_idle_connection_outlives_its_place_in_a_clients_pool() -> None:
    """Closed by the server while the client sends its next request, that one is lost. Go's pool keeps it for 90 s."""

    async def app(_: Any, __: Receive, send: Send) -> None:
        await begin(send, (b"content-length", b"2"))
        await part(send, b"ok", False)

    config = HttpServer(cast(App, app)).config
    config.load()
    state, wire = ServerState(), Wire()
    connection = ClientSide(config, state, {})
    connection.connection_made(cast(asyncio.Transport, wire))
    connection.data_received(b"POST / HTTP/1.1\r\nHost: here\r\n\r\n")
    await asyncio.gather(*state.tasks)
    assert wire.writes and not wire.closed
    closing = connection.timeout_keep_alive_task
    assert closing is not None and closing.when() > asyncio.get_running_loop().time() + 90
    closing.cancel()


async def begin(send: Send, *headers: tuple[bytes, bytes]) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": headers})


async def part(send: Send, body: bytes, more: bool) -> None:
    await send({"type": "http.response.body", "body": body, "more_body": more})


async def test_the_head_goes_out_with_the_first_part_and_each_further_part_alone() -> None:
    async def app(_: Any, __: Receive, send: Send) -> None:
        await begin(send)
        await part(send, b"one", True)
        await part(send, b"two", True)
        await part(send, b"three", False)

    first, *rest = (await ask(app)).writes
    assert first.startswith(b"HTTP/1.1 200 OK\r\n")
    assert first.endswith(b"\r\n\r\n3\r\none\r\n")
    assert rest == [b"3\r\ntwo\r\n", b"5\r\nthree\r\n0\r\n\r\n"]


async def test_a_body_that_looks_like_a_head_is_not_kept_back() -> None:
    async def app(_: Any, __: Receive, send: Send) -> None:
        await begin(send, (b"content-length", b"18"))
        await part(send, b"HTTP/1.1 ", True)
        await part(send, b"HTTP/1.1 ", False)

    first, second = (await ask(app)).writes
    assert first.endswith(b"\r\n\r\nHTTP/1.1 ")
    assert second == b"HTTP/1.1 "


async def test_a_response_without_a_body_goes_out() -> None:
    async def app(_: Any, __: Receive, send: Send) -> None:
        await begin(send, (b"content-length", b"5"))
        await part(send, b"", False)

    writes = (await ask(app, b"HEAD")).writes
    assert b"".join(writes).endswith(b"content-length: 5\r\n\r\n")


async def test_continue_goes_out_at_once() -> None:
    wire_before: list[bytes] = []

    async def app(_: Any, receive: Receive, send: Send) -> None:
        await receive()
        wire_before.append(b"read")
        await begin(send, (b"content-length", b"2"))
        await part(send, b"ok", False)

    wire = await ask(app, b"POST", b"Expect: 100-continue", b"Content-Length: 0")
    assert wire_before == [b"read"]
    assert wire.writes[0] == b"HTTP/1.1 100 Continue\r\n\r\n"
    assert wire.writes[1].endswith(b"\r\n\r\nok")


async def test_a_crash_after_the_head_sends_the_head_and_closes() -> None:
    async def app(_: Any, __: Receive, send: Send) -> None:
        await begin(send)
        raise ValueError("a bug")

    wire = await ask(app)
    assert b"".join(wire.writes).startswith(b"HTTP/1.1 200 OK\r\n")
    assert wire.closed


async def test_parts_go_out_as_chunks_and_an_empty_one_does_not_end_the_response() -> None:
    async def app(scope: Any, _: Receive, send: Send) -> None:
        await begin(send)
        for data in (b"one", b"", b"two"):
            assert scope[PARTS].write(data)
        await scope[PARTS].drained()
        await part(send, b"three", False)

    first, *rest = (await ask(app)).writes
    assert first.endswith(b"\r\n\r\n3\r\none\r\n")
    assert rest == [b"3\r\ntwo\r\n", b"5\r\nthree\r\n0\r\n\r\n"]


async def test_a_slow_client_is_waited_for_and_one_that_left_is_no_error() -> None:
    steps: list[str] = []

    async def app(scope: Any, _: Receive, send: Send) -> None:
        parts = scope[PARTS]
        await begin(send)
        connection.pause_writing()
        assert not parts.write(b"one")
        asyncio.get_running_loop().call_soon(connection.resume_writing)
        await parts.drained()
        steps.append("drained")
        connection.connection_lost(None)
        before = len(wire.writes)
        assert parts.write(b"two") and len(wire.writes) == before
        steps.append("left")

    state, wire = ServerState(), Wire()
    connection = ClientSide(Config(app, log_config=None, interface="asgi3"), state, {})
    connection.connection_made(cast(asyncio.Transport, wire))
    connection.data_received(b"POST / HTTP/1.1\r\nHost: here\r\n\r\n")
    await asyncio.gather(*state.tasks)
    assert steps == ["drained", "left"]


async def until_full(parts: Parts) -> None:
    """Write until neither the transport nor the system takes more."""
    while parts.write(bytes(1 << 16)):
        await asyncio.sleep(0)


async def to_one_that_reads_nothing(app: Any) -> None:
    """One request to `app` over a real connection, whose answer nobody reads; returns when `app` has."""
    state = ServerState()
    config = Config(app, log_config=None, interface="asgi3")
    server = await asyncio.get_running_loop().create_server(lambda: ClientSide(config, state, {}), "127.0.0.1", 0)
    async with server:
        with socket.create_connection(server.sockets[0].getsockname()) as client:
            client.sendall(b"POST / HTTP/1.1\r\nHost: here\r\n\r\n")
            while not state.tasks:
                await asyncio.sleep(0.001)
            await asyncio.gather(*state.tasks)


async def test_a_client_that_reads_nothing_is_disconnected(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also before an answer's end, where uvicorn waits by itself."""
    monkeypatch.setattr(client_side, "_TAKES_NOTHING_S", 0.05)
    ended: list[str] = []

    async def app(scope: Any, receive: Receive, send: Send, at_the_end: bool) -> None:
        reply = Reply(send, scope[PARTS])
        await reply.begin(200)
        await receive()
        await until_full(scope[PARTS])
        await (reply.end(b"the last") if at_the_end else reply.drained())
        ended.append((await receive())["type"])

    for at_the_end in (False, True):
        await to_one_that_reads_nothing(partial(app, at_the_end=at_the_end))
    assert ended == ["http.disconnect"] * 2
