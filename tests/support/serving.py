"""A real `onebit serve` process, for tests that talk to it from outside."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from pathlib import Path
from typing import Any

import aiohttp
import anyio
import anyio.to_thread
import psutil

_URL = re.compile(r"endpoint\s+(http://\S+)/v1")
PATIENCE_S = 60.0  # for what must happen, on machines that are busy; nothing is expected to take this long


class Serving:
    """A running server, what it printed, and the means to hurt it."""

    def __init__(self, process: subprocess.Popen[str], args: Sequence[str | Path]) -> None:
        self.process = process
        self.args = args
        self.output: list[str] = []
        self.url = ""
        self.patience = PATIENCE_S
        self.session: aiohttp.ClientSession = None  # type: ignore[assignment]  # set by `serving`
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        pipe = self.process.stderr
        assert pipe is not None
        with pipe:
            for line in pipe:
                self.output.append(line.rstrip("\n"))

    @property
    def text(self) -> str:
        """All it has printed so far."""
        return "\n".join(self.output)

    async def engines(self) -> list[dict[str, Any]]:
        """The engines, as /v1/engines shows them."""
        async with self.session.get(f"{self.url}/v1/engines") as response:
            model: dict[str, Any] = (await response.json())["data"][0]
            engines: list[dict[str, Any]] = model["engines"]
            return [{**e, "waiting": model["waiting"]} for e in engines]

    async def post(self, path: str, /, **body: Any) -> tuple[int, Any, Mapping[str, str]]:
        """(status, JSON, headers) of a POST."""
        async with self.session.post(self.url + path, json=body) as response:
            return response.status, await response.json(content_type=None), response.headers

    async def until(self, what: Callable[[list[dict[str, Any]]], bool]) -> list[dict[str, Any]]:
        """Wait until the engines are as `what` says."""
        engines: list[dict[str, Any]] = []
        with anyio.move_on_after(self.patience):
            while True:
                engines = await self.engines()
                if what(engines):
                    return engines
                await anyio.sleep(0.02)
        raise AssertionError(f"still not so after {self.patience} s: {engines}\n{self.text}")

    async def wait(self) -> int:
        """Its exit code."""
        code = await anyio.to_thread.run_sync(self.process.wait, PATIENCE_S)
        await anyio.to_thread.run_sync(self._reader.join)
        return code

    async def stop(self) -> int:
        """Ctrl-C, and its exit code."""
        self.process.send_signal(signal.SIGINT)
        return await self.wait()


def command(*args: str | Path) -> list[str]:
    """The argv of this checkout's onebit."""
    return [sys.executable, "-m", "onebit", *map(str, args)]


def start(*args: str | Path, env: Mapping[str, str] | None = None) -> Serving:
    """Start `onebit serve ARGS` on a free port."""
    process = subprocess.Popen(
        command("serve", "--port", "0", *args),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "COLUMNS": "200", **(env or {})},
        start_new_session=True,
    )
    return Serving(process, args)


@asynccontextmanager
async def serving(
    *args: str | Path, env: Mapping[str, str] | None = None, patience: float = PATIENCE_S
) -> AsyncIterator[Serving]:
    """A server that is up. Afterwards it is stopped, and nothing it started may be left."""
    server = start(*args, env=env)
    server.patience = patience
    children: list[psutil.Process] = []
    try:
        with anyio.move_on_after(patience):
            while not (found := _URL.search(server.text)):
                assert server.process.poll() is None, f"it ended:\n{server.text}"
                await anyio.sleep(0.02)
            server.url = found[1]
        assert server.url, f"it does not come up:\n{server.text}"
        timeout = aiohttp.ClientTimeout(total=patience)
        async with aiohttp.ClientSession(timeout=timeout, connector=aiohttp.TCPConnector(limit=0)) as session:
            server.session = session
            yield server
            if server.process.poll() is None:
                children = psutil.Process(server.process.pid).children(recursive=True)
    finally:
        with anyio.CancelScope(shield=True):
            if server.process.poll() is None:
                await anyio.to_thread.run_sync(stop_now, server.process)
            await server.wait()
            gone_or_alive(children)


def stop_now(process: subprocess.Popen[str], limit_s: float = 30) -> None:
    """Ctrl-C until it has ended: two in the same instant arrive as one. Raises TimeoutExpired when it does not."""
    for _ in range(int(limit_s * 2)):
        process.send_signal(signal.SIGINT)
        try:
            process.wait(0.5)
            return
        except subprocess.TimeoutExpired:
            pass
    process.kill()
    raise subprocess.TimeoutExpired(process.args, limit_s)


def gone_or_alive(children: Sequence[psutil.Process]) -> None:
    """Fail when one of these processes still runs after a moment."""
    _, alive = psutil.wait_procs(children, timeout=10)
    assert not alive, f"left behind: {alive}"


async def events(response: aiohttp.ClientResponse) -> AsyncIterator[str]:
    """The data of each SSE event, as it comes."""
    async for line in response.content:
        text = line.decode().rstrip("\n")
        if text.startswith("data: "):
            yield text[6:]


def real_engines(server: Serving) -> list[psutil.Process]:
    """The llama-server processes it runs."""
    return [c for c in psutil.Process(server.process.pid).children(recursive=True) if "-np" in c.cmdline()]


@contextmanager
def standstill(server: Serving) -> Iterator[None]:
    """Its real engines are stopped in this block: what they are at stays as it is, however late the test looks.

    The server takes an engine for hung that is silent for 20 s, so nothing slow belongs in here.
    """
    engines = real_engines(server)
    assert engines
    for engine in engines:
        engine.suspend()
    try:
        yield
    finally:
        for engine in engines:
            with suppress(psutil.NoSuchProcess):
                engine.resume()


def past_the_router(server: Serving) -> aiohttp.ClientSession:
    """A session to the server's (only) real engine."""
    (child,) = real_engines(server)
    socket = child.cmdline()[child.cmdline().index("--host") + 1]
    key = {"Authorization": f"Bearer {child.environ()['LLAMA_API_KEY']}"}
    return aiohttp.ClientSession(connector=aiohttp.UnixConnector(socket), headers=key)
