"""From the engine's response to the client's: bytes copied, or a stream put together."""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Awaitable
from dataclasses import dataclass

from onebit.engines.client import EngineClient
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
    response, client = exchange.response, exchange.client
    if not response.headers.get(b"content-type", b"").startswith(b"text/event-stream"):
        return _copy_whole(response, reply)
    if not call.stream and call.endpoint.whole is not None:
        return _assemble(response, client, call.endpoint.whole(), reply)
    return _copy_events(response, client, call, reply, progress)


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


async def _copy_events(
    response: Response, client: EngineClient, call: Call, reply: Reply, progress: Progress | None
) -> Tokens:
    """Copy whole events only: when the engine dies inside one, its half must not reach the client."""
    rest = b""
    held = b""
    tail: deque[bytes] = deque(maxlen=_TAIL_PIECES)
    continued = progress is not None and progress.id is not None
    if progress is not None:
        progress.go_on()
    while chunk := await response.chunk():
        client.touch()
        data, rest = _whole_events(rest + chunk if rest else chunk)
        if not data:
            continue
        if call.need.sequences > 1:
            data = data.replace(_NULL_EVENT, b"")
        if progress is not None:
            data = joined(data, progress) if continued else data
            progress.feed(data)
        if not reply.begun:
            await reply.begin(response.status, EVENTS, _NO_STORE)
        tail.append(data)
        if response.complete:
            held = data  # it goes out together with the end
        else:
            await reply.write(data)
    last = b"".join(tail)[-_TAIL:]
    if rest or not last or (call.endpoint.done and not last.endswith(call.endpoint.done) and b'"error"' not in last):
        if held:
            await reply.write(held)
        raise EngineLost("the engine's answer ended too early")
    await reply.end(held)
    return _tokens(last)


async def _assemble(response: Response, client: EngineClient, answer: Answer, reply: Reply) -> Tokens:
    rest = b""
    try:
        while chunk := await response.chunk():
            client.touch()
            events, rest = _whole_events(rest + chunk)
            answer.feed(events)
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
