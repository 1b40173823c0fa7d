"""The fastest engine that Python can be: llama-server's flags and chunks, no work behind them.

It speaks just enough HTTP/1.1 (keep-alive, Content-Length bodies, TCP or a Unix socket) to load a relay, on
one core. Each request gets 64 chunks of about 200 bytes, then the finish, the usage and [DONE], as llama-server
writes them. `--pattern steps` (the default) is how a batching engine writes: in each step one chunk to every
running request, each in a write of its own. `--pattern burst` hands the loop all chunks of an answer at once,
which then go out in one system call. `--step-ms T` paces the steps; the first chunk always goes out at once.
"""

from __future__ import annotations

import asyncio
import json
import sys
from typing import cast

import uvloop

TOKENS = 64
_HEAD = (
    b"HTTP/1.1 200 OK\r\nServer: llama.cpp\r\nContent-Type: text/event-stream\r\n"
    b"X-Accel-Buffering: no\r\nTransfer-Encoding: chunked\r\n\r\n"
)


def _chunked(payload: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(payload), payload)


def _event(choices: list[object], **more: object) -> bytes:
    chunk = {
        "choices": choices,
        "created": 1795983332,
        "id": "chatcmpl-nDrCFBloRbxswmB7DOtG2J08EL9RxtEQ",
        "model": "bench",
        "system_fingerprint": "b0-fast",
        "object": "chat.completion.chunk",
        **more,
    }
    return b"data: " + json.dumps(chunk, separators=(",", ":")).encode() + b"\n\n"


def _answer() -> list[bytes]:
    """The writes of one answer; the role goes out with the first text, as llama-server's does."""
    deltas: list[dict[str, object]] = [{"content": f" word{i}"} for i in range(TOKENS)]
    events = [_event([{"finish_reason": None, "index": 0, "delta": delta}]) for delta in deltas]
    role = {"role": "assistant", "content": None}
    events[0] = _event([{"finish_reason": None, "index": 0, "delta": role}]) + events[0]
    usage = {"completion_tokens": TOKENS, "prompt_tokens": 9, "total_tokens": TOKENS + 9}
    events += [
        _event([{"finish_reason": "length", "index": 0, "delta": {}}]),
        _event([], usage=usage, timings={"predicted_n": TOKENS, "predicted_ms": 1.0}),
        b"data: [DONE]\n\n",
    ]
    writes = [_chunked(event) for event in events]
    writes[0] = _HEAD + writes[0]
    writes[-1] += b"0\r\n\r\n"
    return writes


_ANSWER = _answer()


def _plain(body: bytes, status: bytes = b"200 OK") -> bytes:
    head = b"HTTP/1.1 %b\r\nContent-Type: application/json; charset=utf-8\r\nContent-Length: %d\r\n\r\n"
    return head % (status, len(body)) + body


class Decoder:
    """The one batch: every step writes one chunk to each running request."""

    def __init__(self, step_s: float) -> None:
        self._step_s = step_s
        self._running: dict[asyncio.Transport, int] = {}
        self._scheduled = False

    @property
    def busy(self) -> int:
        """Running requests."""
        return len(self._running)

    def add(self, transport: asyncio.Transport) -> None:
        """Start an answer: its first chunk goes out now."""
        transport.write(_ANSWER[0])
        self._running[transport] = 1
        self._plan()

    def drop(self, transport: asyncio.Transport) -> None:
        """The client is gone."""
        self._running.pop(transport, None)

    def _plan(self) -> None:
        if self._running and not self._scheduled:
            self._scheduled = True
            loop = asyncio.get_running_loop()
            if self._step_s:
                loop.call_later(self._step_s, self._step)
            else:
                loop.call_soon(self._step)

    def _step(self) -> None:
        self._scheduled = False
        for transport, index in list(self._running.items()):
            transport.write(_ANSWER[index])
            if index + 1 == len(_ANSWER):
                del self._running[transport]
            else:
                self._running[transport] = index + 1
        self._plan()


class Connection(asyncio.Protocol):
    """One client connection: whole requests in, answers out, one at a time."""

    def __init__(self, slots: int, decoder: Decoder | None) -> None:
        self._slots = slots
        self._decoder = decoder  # None: --pattern burst
        self._buffer = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's are no subclass

    def connection_lost(self, _: Exception | None) -> None:
        if self._decoder is not None:
            self._decoder.drop(self._transport)

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        while (end := self._buffer.find(b"\r\n\r\n")) >= 0:
            head = self._buffer[:end].lower()
            at = head.find(b"content-length:")
            length = int(head[at + 15 :].split(b"\r\n", 1)[0]) if at >= 0 else 0
            if len(self._buffer) < end + 4 + length:
                return
            self._buffer = self._buffer[end + 4 + length :]
            self._answer(head)

    def _answer(self, head: bytes) -> None:
        if head.startswith(b"post "):
            if self._decoder is not None:
                self._decoder.add(self._transport)
            else:
                for piece in _ANSWER:
                    self._transport.write(piece)
        elif head.startswith(b"get /slots"):
            busy = self._decoder.busy if self._decoder is not None else 0
            slots = [{"id": i, "n_ctx": 4096, "is_processing": i < busy} for i in range(self._slots)]
            self._transport.write(_plain(json.dumps(slots).encode()))
        elif head.startswith((b"get /health", b"get /v1/health")):
            self._transport.write(_plain(b'{"status":"ok"}'))
        else:
            props = {"total_slots": self._slots, "model_alias": "bench", "data": [{"id": "bench"}]}
            self._transport.write(_plain(json.dumps(props).encode()))


def _flag(name: str, default: str) -> str:
    return sys.argv[sys.argv.index(name) + 1] if name in sys.argv else default


async def _serve() -> None:
    loop = asyncio.get_running_loop()
    slots = int(_flag("-np", _flag("--parallel", "4")))
    step_s = float(_flag("--step-ms", "0")) / 1000
    decoder = Decoder(step_s) if _flag("--pattern", "steps") == "steps" else None

    def connect() -> Connection:
        return Connection(slots, decoder)

    for host in _flag("--host", "127.0.0.1").split(","):
        if host.endswith(".sock"):
            await loop.create_unix_server(connect, host)
            address = f"unix://{host}"
        else:
            server = await loop.create_server(connect, host, int(_flag("--port", "8080")))
            address = f"http://{host}:{server.sockets[0].getsockname()[1]}"
        sys.stderr.write(f"0.00.000.000 I srv  llama_server: listening on {address}\n")
        sys.stderr.flush()
    await loop.create_future()


def main() -> None:
    """Serve until a signal ends the process."""
    if "--version" in sys.argv:
        sys.stderr.write("version: 0 (fast)\nbuilt with uvloop for benchmarks\n")
    elif "--list-devices" in sys.argv:
        sys.stdout.write("Available devices:\n  (none)\n")
    else:
        uvloop.run(_serve())


if __name__ == "__main__":
    main()
