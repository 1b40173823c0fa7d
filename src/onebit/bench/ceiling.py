"""How fast the load generator itself is: chunks a second that it reads from a server with no work behind them.

`python -m onebit.bench.ceiling SOCKET` is that server: a process of its own, so that it does not share the
generator's core. It writes one chunk to every stream in turn, in a write of its own, as a batching engine does.
"""

from __future__ import annotations

import asyncio
import json
import signal
import sys
from pathlib import Path
from time import perf_counter

from onebit.bench.answer import Answer, Ask, ask
from onebit.bench.endpoint import Endpoint
from onebit.bench.load import closed_loop
from onebit.errors import BenchError

STREAMS = 16
CHUNKS = 1024
MARGIN = 10
"""A measured server may make at most a tenth of the ceiling, or the generator is a part of what is measured."""


async def measure(folder: Path) -> float:
    """Chunks a second over 16 streams; `folder` is for the socket. Takes under a second. Raises BenchError."""
    socket = folder / "ceiling.sock"
    child = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "onebit.bench.ceiling", str(socket), stdin=asyncio.subprocess.PIPE
    )
    try:
        for _ in range(500):
            if socket.exists() or child.returncode is not None:
                break
            await asyncio.sleep(0.02)
        endpoint = Endpoint("ceiling", 0, socket=socket)
        what = Ask("ceiling", CHUNKS, silence=20)

        async def once() -> Answer:
            return await ask(endpoint, what, "")

        began = perf_counter()
        answers = [answer for user in await closed_loop(once, STREAMS) for answer in user]
        seconds = perf_counter() - began
    finally:
        if child.returncode is None:
            child.kill()
        await child.wait()
    if not all(answer.good for answer in answers):
        why = next(answer.why for answer in answers if not answer.good)
        raise BenchError(f"the load generator could not measure its own ceiling: {why}")
    return sum(len(answer.token_times) for answer in answers) / seconds


def _chunked(event: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(event), event)


def _event(text: str, **more: object) -> bytes:
    """About 200 bytes, as llama-server's chunks are."""
    choice = {"text": text, "index": 0, "logprobs": None, "finish_reason": None}
    chunk = {"choices": [choice], "created": 1795983332, "model": "ceiling", "object": "text_completion", **more}
    return b"data: " + json.dumps(chunk).encode() + b"\n\n"


async def _serve(socket: Path) -> None:
    waiting: list[asyncio.StreamWriter] = []
    all_there = asyncio.Event()

    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")  # the body is small; it may stay unread
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n")
        waiting.append(writer)
        if len(waiting) == STREAMS:
            all_there.set()

    server = await asyncio.start_unix_server(connected, socket)
    async with server:
        await all_there.wait()
        word = _chunked(_event(" word"))
        for _ in range(CHUNKS):
            for writer in waiting:
                writer.write(word)
            await asyncio.gather(*(writer.drain() for writer in waiting))
        usage = {"completion_tokens": CHUNKS, "prompt_tokens": 1}
        end = _chunked(_event("", usage=usage)) + _chunked(b"data: [DONE]\n\n") + b"0\r\n\r\n"
        for writer in waiting:
            writer.write(end)
        await asyncio.gather(*(writer.drain() for writer in waiting))
        await asyncio.sleep(30)  # the generator ends us when it has read all


async def _until_parent_ends(socket: Path) -> None:
    """Our stdin is the generator's pipe: its end is ours, whatever killed it."""
    loop = asyncio.get_running_loop()
    serving = asyncio.ensure_future(_serve(socket))
    loop.add_reader(sys.stdin.fileno(), serving.cancel)
    await asyncio.wait([serving])


if __name__ == "__main__":
    import uvloop

    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a Ctrl-C is for the generator
    uvloop.run(_until_parent_ends(Path(sys.argv[1])))
