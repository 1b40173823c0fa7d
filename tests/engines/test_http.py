"""One request, one connection: what an engine may do to it, against a real socket."""

from __future__ import annotations

import asyncio
import errno
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from onebit.engines.client import EngineClient
from onebit.engines.http import Response, connect
from onebit.engines.llama_server import Address

pytestmark = pytest.mark.anyio

Peer = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]
HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n"


@asynccontextmanager
async def engine(folder: Path, answer: Peer, tcp: bool = False) -> AsyncIterator[EngineClient]:
    """A client of an engine that answers like this."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await answer(reader, writer)
        finally:
            writer.close()

    if tcp:
        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        address = Address(port=server.sockets[0].getsockname()[1])
    else:
        address = Address(folder / "e.sock")
        server = await asyncio.start_unix_server(serve, address.socket)
    async with server:
        yield EngineClient(address, "key")


async def request_of(reader: asyncio.StreamReader) -> tuple[bytes, bytes]:
    """Head and body."""
    head = await reader.readuntil(b"\r\n\r\n")
    length = int(head.lower().split(b"content-length: ")[1].split(b"\r\n")[0])
    return head, await reader.readexactly(length)


async def answered(client: EngineClient, body: bytes = b"{}") -> Response:
    """A request whose answer's headers are there."""
    response = await client.post("/x", body)
    await response.begun(at_any_rate=True)
    return response


@pytest.mark.parametrize("tcp", [False, True])
async def test_a_body_larger_than_any_buffer_arrives_whole(tmp_path: Path, tcp: bool) -> None:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head, body = await request_of(reader)
        assert b"Authorization: Bearer key\r\n" in head
        writer.write(HEAD + b"Content-Length: %d\r\n\r\n%b" % (len(body), body[::-1]))
        await writer.drain()

    body = bytes(range(256)) * (8 << 12)  # 8 MiB
    async with engine(tmp_path, answer, tcp) as client:
        response = await answered(client, body)
        assert response.status == 200
        assert await response.read() == body[::-1]
        assert response.complete


async def test_a_slow_reader_makes_the_engine_wait(tmp_path: Path) -> None:
    sent = 0
    size = 16 << 20

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal sent
        await request_of(reader)
        writer.write(HEAD + b"Content-Length: %d\r\n\r\n" % size)
        while sent < size:
            writer.write(bytes(1 << 16))
            await writer.drain()
            sent += 1 << 16

    async with engine(tmp_path, answer) as client:
        response = await answered(client)
        before = -1
        while sent != before:  # until nothing moves any more
            before = sent
            for _ in range(100):
                await asyncio.sleep(0)
        assert sent < size // 4
        assert len(await response.read()) == size


@pytest.mark.parametrize(
    ("bytes_sent", "says"),
    [
        (b"", "in the middle"),
        (b"HTTP/1.1 200 OK\r\nContent-", "in the middle"),
        (b"SSH-2.0-OpenSSH_9.2\r\n", "not HTTP"),
    ],
)
async def test_no_answer_is_an_error(tmp_path: Path, bytes_sent: bytes, says: str) -> None:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await request_of(reader)
        writer.write(bytes_sent)

    async with engine(tmp_path, answer) as client:
        with pytest.raises(OSError, match=says):
            await answered(client)


@pytest.mark.parametrize(
    ("framing", "whole"),
    [
        (b"Content-Length: 9\r\n\r\nhalf", False),
        (b"Transfer-Encoding: chunked\r\n\r\n4\r\nhalf\r\n", False),
        (b"Transfer-Encoding: chunked\r\n\r\n4\r\nhalf\r\nzz\r\n", False),
        (b"\r\nhalf", True),  # no length: the end of the connection is its end
    ],
)
async def test_a_body_that_breaks_off(tmp_path: Path, framing: bytes, whole: bool) -> None:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await request_of(reader)
        writer.write(HEAD + framing)

    async with engine(tmp_path, answer) as client:
        response = await answered(client)
        assert await response.chunk() == b"half"
        if whole:
            assert await response.chunk() == b""
        else:
            with pytest.raises(OSError, match=r"in the middle|not HTTP"):
                await response.chunk()
        assert response.complete is whole


async def test_an_answer_before_the_request_was_read_is_an_answer(tmp_path: Path) -> None:
    async def answer(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 413 Payload Too Large\r\nContent-Length: 0\r\n\r\n")
        await writer.drain()

    async with engine(tmp_path, answer) as client:
        response = await answered(client, bytes(8 << 20))
        assert response.status == 413
        assert await response.read() == b""


async def test_a_cancelled_post_ends_when_the_headers_are_there(tmp_path: Path) -> None:
    asked, go = asyncio.Event(), asyncio.Event()

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await request_of(reader)
        asked.set()
        await go.wait()
        writer.write(HEAD + b"Content-Length: 0\r\n\r\n")

    async with engine(tmp_path, answer) as client:
        task = asyncio.create_task(answered(client))
        await asked.wait()
        task.cancel()
        for _ in range(10):
            await asyncio.sleep(0)
        assert not task.done()
        go.set()
        with pytest.raises(asyncio.CancelledError):
            await task


async def test_closing_the_client_ends_what_waits(tmp_path: Path) -> None:
    asked = asyncio.Event()

    async def answer(reader: asyncio.StreamReader, _: asyncio.StreamWriter) -> None:
        await request_of(reader)
        asked.set()
        await reader.read()

    async with engine(tmp_path, answer) as client:
        task = asyncio.create_task(answered(client))
        await asked.wait()
        client.close()
        with pytest.raises(OSError, match="closed"):
            await task
        with pytest.raises(OSError, match="stopped"):
            await answered(client)


async def test_a_full_backlog_is_waited_out(tmp_path: Path) -> None:
    path = tmp_path / "e.sock"
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        listener.listen(0)
        waiting: list[socket.socket] = []
        full = 0
        while full != errno.EAGAIN:
            waiting.append(socket.socket(socket.AF_UNIX))
            waiting[-1].setblocking(False)
            full = waiting[-1].connect_ex(str(path))
        task = asyncio.create_task(connect(Address(path)))
        for _ in range(3):
            await asyncio.sleep(0)
        assert not task.done()
        listener.accept()[0].close()
        waiting.append(await task)
        for connection in waiting:
            connection.close()


async def test_nobody_there_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="No such file"):
        await connect(Address(tmp_path / "none.sock"))


async def test_what_is_poured_stops_where_nobody_takes_more(tmp_path: Path) -> None:
    size = 4 << 20

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await request_of(reader)
        writer.write(HEAD + b"Content-Length: %d\r\n\r\n" % size + bytes(size))
        await writer.drain()

    taken: list[int] = []
    async with engine(tmp_path, answer) as client:
        response = await answered(client)

        def take(data: bytes) -> bool:
            taken.append(len(data))
            return len(taken) % 3 > 0  # every third time it is full

        while await response.pour(take):
            before = len(taken)
            assert before % 3 == 0
            for _ in range(20):
                await asyncio.sleep(0)
            assert len(taken) == before, "nothing comes while nobody pours"
        assert sum(taken) == size and response.complete


@pytest.mark.parametrize("size", [4, 9])
async def test_who_pours_is_told_of_all_that_goes_wrong(tmp_path: Path, size: int) -> None:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await request_of(reader)
        writer.write(HEAD + b"Content-Length: %d\r\n\r\n" % size)
        await writer.drain()
        await asyncio.sleep(0.05)  # the one who pours waits by then
        writer.write(b"half")

    def refuse(_: bytes) -> bool:
        raise ValueError("not wanted")

    async with engine(tmp_path, answer) as client:
        if size > 4:
            taken: list[bytes] = []
            with pytest.raises(OSError, match="in the middle"):
                await (await answered(client)).pour(lambda data: not taken.append(data))  # type: ignore[func-returns-value]
            assert taken == [b"half"]
        with pytest.raises(ValueError, match="not wanted"):
            await (await answered(client)).pour(refuse)
