"""Servers to be measured: the fake engine as a child process, and one that answers with given bytes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from onebit.bench.endpoint import Endpoint
from onebit.bench.setups import Planner, Wish
from onebit.bench.target import Running, engines_running
from onebit.engines.builds import find_build
from onebit.engines.spec import EngineSpec
from onebit.models.gguf_file import inspect
from tests.support.fake_build import make_fake_build
from tests.support.gguf_files import write_model

CARD = "  Vulkan0: Fake Card (16000 MiB, 15000 MiB free)"


def fake_spec(folder: Path, *, slots: int = 4, name: str = "cpu", **script: Any) -> EngineSpec:
    """An engine whose process is the fake one, planned as bench plans real ones."""
    build = make_fake_build(folder / f"build-{name}", script, devices=[CARD])
    model = write_model(folder / "tiny.gguf")
    wish = Wish({"llama_server": build}, ("cpu",), (slots,), 32, run_dir=folder)
    planner = Planner(wish, inspect(model), lambda device: find_build(device, build), inspect, 2)
    (spec,) = planner.plan(device="cpu", parallel=slots).engines
    return spec


@asynccontextmanager
async def fake_engine(folder: Path, **script: Any) -> AsyncIterator[Running]:
    """A running fake engine."""
    async with engines_running([fake_spec(folder, **script)], folder, 30) as (running,):
        yield running


@asynccontextmanager
async def answering(reply: bytes, *, then_close: bool = True) -> AsyncIterator[Endpoint]:
    """A server that answers every request with these bytes, then closes, or says nothing more."""

    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(reply)
        await writer.drain()
        if not then_close:
            await reader.read()  # until the client leaves
        writer.close()

    server = await asyncio.start_server(connected, "127.0.0.1", 0)
    async with server:
        port = server.sockets[0].getsockname()[1]
        yield Endpoint("127.0.0.1", port)


def stream(*events: bytes, status: bytes = b"200 OK", kind: bytes = b"text/event-stream") -> bytes:
    """An HTTP answer whose body ends with its connection."""
    return b"HTTP/1.1 %b\r\nContent-Type: %b\r\n\r\n" % (status, kind) + b"".join(events)
