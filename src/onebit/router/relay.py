"""From the engine's response to the client's: bytes copied, or a stream put together."""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Awaitable
from dataclasses import dataclass

from onebit.engines.http import Response
from onebit.errors import EngineLost
from onebit.router.assemble import Answer, EngineError
from onebit.router.openai import Call
from onebit.router.reply import EVENTS, Reply
from onebit.router.resume import Progress, joined
from onebit.router.upstream import Exchange

_EVENT_END = b"\n\n"
_NULL_EVENT = b"data: null\n\n"  # llama-server starts a second sequence with it; the openai SDK cannot read it
_TAIL = 2048  # bytes at the end of an answer that hold its usage
_TAIL_PIECES = 4  # it may come apart: the last text, the usage and "[DONE]" are writes of their own
_MAX_EVENT = 16 << 20  # an "event" longer than this is not an answer

_NO_STORE = (b"cache-control", b"no-store")
_TYPES = (b"content-type", b"content-encoding")


@dataclass(frozen=True, slots=True)
class Tokens:
    """What an answer cost, as far as the engine says."""

    prompt: int | None = None
    answer: int | None = None


_NUMBERS = re.compile(rb'"(prompt_tokens|completion_tokens|input_tokens|output_tokens|predicted_n|prompt_n)":(\d+)')


def relay(exchange: Exchange, call: Call, reply: Reply, progress: Progress | None = None) -> Awaitable[Tokens]:
    """Bring the answer to the client. Raises OSError or EngineLost when it stops too early.

    `progress`: notes what a stream has sent, and, when it holds something already, joins this part to it.
    """
    response = exchange.response
    if not response.headers.get(b"content-type", b"").startswith(b"text/event-stream"):
        return _copy_whole(response, reply)
    if not call.stream and call.endpoint.whole is not None:
        return _assemble(exchange, call.endpoint.whole(), reply)
    return _copy_events(exchange, call, reply, progress)


def _tokens(tail: bytes) -> Tokens:
    """From the usage or the timings in the end of an answer."""
    found = {name: int(number) for name, number in _NUMBERS.findall(tail)}
    prompt = found.get(b"prompt_tokens", found.get(b"input_tokens", found.get(b"prompt_n")))
    return Tokens(prompt, found.get(b"completion_tokens", found.get(b"output_tokens", found.get(b"predicted_n"))))


async def _copy_whole(response: Response, reply: Reply) -> Tokens:
    """An error, or an endpoint that does not stream. The engine's status and words are passed on."""
    body = await response.read()
    headers = [(name, response.headers[name]) for name in _TYPES if name in response.headers]
    await reply.whole(response.status, body, *headers)
    return _tokens(body[-_TAIL:]) if response.status == 200 else Tokens()


class _Events:
    """Sends on what comes of a stream, in whole events: when the engine dies inside one, its half must not go out."""

    __slots__ = (
        *("_client", "_continued", "_progress", "_response", "_several", "_write"),
        *("held", "rest", "tail"),
    )

    def __init__(self, exchange: Exchange, call: Call, reply: Reply, progress: Progress | None) -> None:
        self._response, self._client, self._write = exchange.response, exchange.client, reply.part
        self._several = call.need.sequences > 1
        self._progress = progress
        self._continued = progress is not None and progress.id is not None
        self.rest = b""  # the beginning of an event
        self.held = b""  # what came last: it goes out together with the end
        self.tail: deque[bytes] = deque(maxlen=_TAIL_PIECES)

    def whole(self, chunk: bytes) -> bytes:
        """The events that `chunk` completes, as the client is to see them."""
        self._client.touch()
        data, self.rest = _whole_events(self.rest + chunk if self.rest else chunk)
        if data and self._several:
            data = data.replace(_NULL_EVENT, b"")
        if data and self._progress is not None:
            data = joined(data, self._progress) if self._continued else data
            self._progress.feed(data)
        return data

    def send(self, data: bytes) -> bool:
        """False: the client is slow."""
        self.tail.append(data)
        if self._response.complete:
            self.held = data
            return True
        return self._write(data)

    def take(self, chunk: bytes) -> bool:
        """`whole` and `send`."""
        data = self.whole(chunk)
        return not data or self.send(data)


async def _copy_events(exchange: Exchange, call: Call, reply: Reply, progress: Progress | None) -> Tokens:
    response = exchange.response
    if progress is not None:
        progress.go_on()
    events = _Events(exchange, call, reply, progress)
    first = b""
    while not first and (chunk := await response.chunk()):
        first = events.whole(chunk)
    if first:
        if not reply.begun:
            await reply.begin(response.status, EVENTS, _NO_STORE)
        if not events.send(first):
            await reply.drained()
        while await response.pour(events.take):
            await reply.drained()
    last = b"".join(events.tail)[-_TAIL:]
    early = call.endpoint.done and not last.endswith(call.endpoint.done) and b'"error"' not in last
    if events.rest or not last or early:
        reply.part(events.held)
        raise EngineLost("the engine's answer ended too early")
    await reply.end(events.held)
    return _tokens(last)


async def _assemble(exchange: Exchange, answer: Answer, reply: Reply) -> Tokens:
    rest = b""

    def take(chunk: bytes) -> bool:
        nonlocal rest
        exchange.client.touch()
        events, rest = _whole_events(rest + chunk)
        answer.feed(events)
        return True

    try:
        await exchange.response.pour(take)
    except EngineError as error:
        await reply.json(error.status, error.body)
        return Tokens()
    result = answer.result()
    await reply.json(200, result)
    usage = result.get("usage") or {}
    return Tokens(usage.get("prompt_tokens"), usage.get("completion_tokens"))


def _whole_events(data: bytes) -> tuple[bytes, bytes]:
    """(the events that are complete, the beginning of the next)."""
    if data.endswith(_EVENT_END):
        return data, b""
    end = data.rfind(_EVENT_END) + len(_EVENT_END)
    if end >= len(_EVENT_END):
        return data[:end], data[end:]
    if len(data) > _MAX_EVENT:
        raise EngineLost("the engine sent an event without an end")
    return b"", data
