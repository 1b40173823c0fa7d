"""What goes out in one piece: a response's head together with its first part, and nothing is kept back too long.

And what a client may send: upgrades are ignored, heads are bounded, and one that falls silent is cut.
"""

from __future__ import annotations

import asyncio
import json
import logging
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
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

    def abort(self) -> None:
        self.closed = True

    def pause_reading(self) -> None:
        pass

    def resume_reading(self) -> None:
        pass

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


@dataclass
class Echo:
    """Answers with what it was asked; `seen`: that, and how it ended."""

    seen: list[str] = field(default_factory=list)
    answering: asyncio.Event = field(default_factory=asyncio.Event)  # set: answers go out
    begun: bool = False  # its answers begin before that

    def __post_init__(self) -> None:
        self.answering.set()

    async def __call__(self, scope: Any, receive: Receive, send: Send) -> None:
        body, more = b"", True
        while more:
            message = await receive()
            if message["type"] == "http.disconnect":
                self.seen.append("disconnected")
                return
            body, more = body + message["body"], message["more_body"]
        said = f"{scope['method']} {scope['path']} {body.decode()}"
        self.seen.append(said)
        if self.begun:
            await begin(send)
            await part(send, b"begun ", True)
        await self.answering.wait()
        if not self.begun:
            await begin(send)
        await part(send, f"<{said}>".encode(), False)


class Counted(ClientSide):
    """Counts what has come in."""

    received = 0

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self.received += len(data)


async def arrived(connections: set[Any], sent: int) -> bool:
    """Return when the only connection has got that much: the next piece is one of its own then. False: it is closed."""
    while not connections:
        await asyncio.sleep(0)
    (connection,) = connections
    while connection.received < sent and not connection.transport.is_closing():
        await asyncio.sleep(0)
    return not connection.transport.is_closing()


@asynccontextmanager
async def serving(app: Any) -> AsyncIterator[tuple[HttpServer, int]]:
    """A server on the loop that runs, and its port; whoever tests it ticks its clock."""
    http_server = HttpServer(cast(App, app))
    config, state = http_server.config, http_server.server_state
    config.load()
    listening = await asyncio.get_running_loop().create_server(lambda: Counted(config, state, {}), "127.0.0.1", 0)
    async with listening:
        try:
            yield http_server, listening.sockets[0].getsockname()[1]
        finally:
            for connection in list(state.connections):
                connection.transport.abort()
            for task in state.tasks:
                task.cancel()


async def say(app: Any, *pieces: bytes, after: bytes = b"", until: bytes = b"") -> bytes:
    """What a client is told that sends these pieces, until the server closes, or says `until`.

    The last piece is sent when it has been told `after`.
    """
    async with serving(app) as (http_server, port):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        told, sent = b"", 0
        try:
            for piece in pieces:
                if piece is pieces[-1] and after:
                    told = await reader.readuntil(after)
                writer.write(piece)
                sent += len(piece)
                if not await arrived(http_server.server_state.connections, sent):
                    break  # more would be answered with a reset, and that can overtake what it was told
            told += await (reader.readuntil(until) if until else reader.read())
        except ConnectionResetError:
            told += b"(cut)"
        writer.close()
    return told


def in_bytes(data: bytes) -> list[bytes]:
    return [data[at : at + 1] for at in range(len(data))]


H2C = b"Host: here\r\nConnection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABk\r\n"
WS = b"Host: here\r\nUpgrade: websocket\r\nconnection: upgrade\r\n"
HIDDEN = b"GET /hidden HTTP/1.1\r\nHost: here\r\n\r\n"
LAST = b"GET /last HTTP/1.1\r\nHost: here\r\nConnection: close\r\n\r\n"


@pytest.mark.parametrize("cut", [lambda data: [data], in_bytes, lambda data: data.partition(b"\r\n\r\n")])
@pytest.mark.parametrize("upgrade", [H2C, WS])
@pytest.mark.parametrize(
    "body",
    [
        b"Content-Length: %d\r\n\r\n%b" % (len(HIDDEN), HIDDEN),
        b"Transfer-Encoding: chunked\r\n\r\n%x\r\n%b\r\n0\r\n\r\n" % (len(HIDDEN), HIDDEN),
    ],
)
async def test_a_body_after_an_upgrade_is_a_body_not_a_request(cut: Any, upgrade: bytes, body: bytes) -> None:
    """`curl --http2 -d` asks for one. A proxy goes by the body's length; so must this, or it could hide a request."""
    app = Echo()
    request = b"POST /asked?a=b HTTP/1.1\r\n" + upgrade + body
    told = await say(app, *cut(request * 2 + LAST))
    assert app.seen == [f"POST /asked {HIDDEN.decode()}"] * 2 + ["GET /last "]
    assert told.count(b"HTTP/1.1 200") == 3 and told.endswith(b"<GET /last >\r\n0\r\n\r\n")


@pytest.mark.parametrize("version", [b"1.0", b"1.1"])
async def test_an_upgrade_without_a_body_is_ignored(version: bytes) -> None:
    app = Echo()
    one = b"GET /one HTTP/%b\r\n" % version + WS
    told = await say(app, one + b"Connection: close\r\n\r\n" + HIDDEN)
    assert app.seen == ["GET /one "]
    assert told.startswith(b"HTTP/1.1 200 ") and told.count(b"HTTP/1.1") == 1


async def test_many_upgrades_in_one_segment_are_each_a_request() -> None:
    """No recursion, and no copy of all the rest for each."""
    app = Echo()
    many = (b"GET /one HTTP/1.1\r\n" + H2C + b"\r\n") * 1500
    await say(app, many + LAST)
    assert app.seen == ["GET /one "] * 1500 + ["GET /last "]


async def test_a_broken_body_after_an_upgrade_is_answered_as_garbage() -> None:
    told = await say(Echo(), b"POST / HTTP/1.1\r\n" + H2C + b"Transfer-Encoding: chunked\r\n\r\nxyz\r\n")
    assert told.startswith(b"HTTP/1.1 400 ") and told.count(b"HTTP/1.1") == 1


async def test_connect_opens_no_tunnel() -> None:
    app = Echo()
    told = await say(app, b"CONNECT here:80 HTTP/1.1\r\nHost: here\r\n\r\n" + HIDDEN)
    head, _, body = told.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 400 ") and b"connection: close" in head
    assert json.loads(body)["error"]["type"] == "invalid_request_error"
    assert app.seen == []


@pytest.mark.parametrize(
    "garbage",
    [b"\x16\x03\x01 hello", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", b"GET / HTTP/1.1\r\nno colon\r\n\r\n"],
)
async def test_what_a_port_scanner_sends_is_answered_and_not_logged(
    garbage: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    told = await say(Echo(), garbage)
    assert told.startswith(b"HTTP/1.1 400 ") and b"connection: close" in told
    await say(Echo(), b"GET / HTTP/1.1\r\n" + WS + b"\r\n", until=b"<GET / >")
    assert [r for r in caplog.records if r.name.startswith("uvicorn")] == []


async def test_garbage_after_a_request_does_not_get_into_its_answer() -> None:
    app = Echo(begun=True)
    app.answering.clear()
    told = await say(app, b"GET /slow HTTP/1.1\r\nHost: here\r\n\r\n", b"\x16\x03\x01", after=b"begun ")
    assert app.seen == ["GET /slow "] and b" 400 " not in told


def of_size(size: int, end: bytes = b"\r\n\r\n") -> bytes:
    head = b"GET / HTTP/1.1\r\nHost: here\r\nConnection: close\r\nx: "
    return head + b"x" * (size - len(head) - len(end)) + end


@pytest.mark.parametrize("cut", [lambda data: [data], lambda data: [data[:1000], data[1000:]], in_bytes])
async def test_a_head_that_is_too_large_is_refused(cut: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client_side, "_MAX_HEAD", 1 << 11)
    app = Echo()
    assert (await say(app, *cut(of_size(2000)))).startswith(b"HTTP/1.1 200 ")
    for head in (of_size(2200), of_size(2200, b""), b"GET /" + b"x" * 2200, b"\r\n" * 1100):
        told, _, body = (await say(app, *cut(head))).partition(b"\r\n\r\n")
        assert told.startswith(b"HTTP/1.1 431 Request Header Fields Too Large\r\n")
        assert b"\r\nconnection: close" in told
        assert json.loads(body)["error"]["type"] == "invalid_request_error"
    assert app.seen == ["GET / "]


async def test_a_body_does_not_count_as_head(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client_side, "_MAX_HEAD", 200)
    app = Echo()
    head = b"POST / HTTP/1.1\r\nHost: here\r\n"
    whole = head + b"Content-Length: 1000\r\n\r\n" + b"x" * 1000
    chunked = head + b"Transfer-Encoding: chunked\r\n\r\n" + b"64\r\n%b\r\n" % (b"x" * 100) * 10 + b"0\r\n\r\n"
    trailer = b"t: " + b"x" * 150 + b"\r\n\r\n"  # ends; the next head does not count from there
    pieces = (
        whole,
        whole[:90],
        whole[90:500],
        whole[500:],
        chunked[:333],
        chunked[333:-2],
        trailer,
        LAST[:50],
        LAST[50:],
    )
    await say(app, *pieces)
    assert app.seen == [f"POST / {'x' * 1000}"] * 3 + ["GET /last "]


async def test_a_trailer_that_never_ends_is_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client_side, "_MAX_HEAD", 200)
    app = Echo()
    body = b"Transfer-Encoding: chunked\r\n\r\n1\r\na\r\n0\r\nx: "
    await say(app, b"POST / HTTP/1.1\r\nHost: here\r\n" + body, b"x" * 150, b"x" * 150)
    assert app.seen in (["disconnected"], [])  # []: the server was gone before the application woke


async def test_a_large_head_during_an_answer_cuts_the_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client_side, "_MAX_HEAD", 200)
    app = Echo(begun=True)
    app.answering.clear()
    told = await say(app, b"GET /slow HTTP/1.1\r\nHost: here\r\n\r\n", of_size(300, b""), after=b"begun ")
    assert app.seen == ["GET /slow "] and b" 431 " not in told


async def is_cut_after(seconds: float, sent: list[bytes], app: Any) -> bool:
    """A client sends that and then nothing for so long. Is it disconnected?"""
    async with serving(app) as (http_server, port):
        connections, tasks = http_server.server_state.connections, http_server.server_state.tasks
        _, writer = await asyncio.open_connection("127.0.0.1", port)
        await arrived(connections, 0)
        for at, piece in enumerate(sent, 1):
            writer.write(piece)
            await arrived(connections, sum(map(len, sent[:at])))
            for _ in range(20):
                await asyncio.sleep(0)  # the application is a few turns of the loop
        (connection,) = cast(set[ClientSide], connections)
        connection.heard_at -= seconds
        await http_server.on_tick(1)
        assert not connection.transport.is_closing()  # it looks only now and then
        await http_server.on_tick(0)
        cut = connection.transport.is_closing()
        if cut:
            while connection in connections:
                await asyncio.sleep(0.001)
            await asyncio.gather(*tasks)
        else:
            assert connection.heard_at > asyncio.get_running_loop().time() - 60
        writer.close()
    return cut


HALF = b"POST / HTTP/1.1\r\nHost: here\r\nContent-Length: 5\r\n\r\nhe"
WHOLE = HALF + b"llo"


@pytest.mark.parametrize(
    ("sent", "seen"),
    [
        ([], []),
        ([b"\r\n"], []),
        ([b"POST / HTTP/1.1\r\nHost: he"], []),
        ([HALF], ["disconnected"]),
        ([WHOLE, b"POST / HTTP/1.1\r\nHost: he"], ["POST / hello"]),
        ([WHOLE, b"\r\n"], ["POST / hello"]),
        ([WHOLE, HALF], ["POST / hello", "disconnected"]),
    ],
)
async def test_a_client_that_falls_silent_in_a_request_is_disconnected(sent: list[bytes], seen: list[str]) -> None:
    assert not await is_cut_after(30, sent, Echo())
    app = Echo()
    assert await is_cut_after(61, sent, app)
    assert app.seen == seen


@pytest.mark.parametrize("begun", [False, True])
@pytest.mark.parametrize("sent", [[WHOLE], [WHOLE, b"POST / HTTP/1.1\r\nHost: he"], [WHOLE, HALF], [WHOLE + HALF]])
async def test_a_client_that_waits_for_its_answer_is_not(sent: list[bytes], begun: bool) -> None:
    app = Echo(begun=begun)
    app.answering.clear()
    assert not await is_cut_after(1000, sent, app)


async def test_one_that_is_idle_between_requests_has_its_own_time() -> None:
    assert not await is_cut_after(100, [WHOLE], Echo())


@pytest.mark.parametrize(
    "sent",
    [
        b"POST / HTTP/1.1\r\nHost: here\r\nExpect: 100-continue\r\nContent-Length: 5\r\n\r\n",
        b"POST / HTTP/1.1\r\nHost: here\r\nContent-Length: 100000\r\n\r\n" + bytes(70000),
    ],
)
async def test_one_that_is_not_listened_to_is_not_silent(sent: bytes) -> None:
    async def app(_: Any, receive: Receive, __: Send) -> None:
        await asyncio.Event().wait()
        await receive()

    assert not await is_cut_after(1000, [sent], app)
