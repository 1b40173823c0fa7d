"""One request of the load and its streamed answer: when each token came, and what the server says of it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from time import perf_counter
from typing import Any, Literal

from onebit.bench.endpoint import Endpoint
from onebit.bench.wire import WireError, exchange

_MAX_EVENT_BYTES = 1 << 20  # of one SSE event, or of an answer that is no stream
Api = Literal["chat", "completions"]


class Trouble(StrEnum):
    """Why an answer does not count."""

    NO_CONNECTION = "no connection"
    REFUSED = "refused"  # an HTTP status that is not 200
    CLOSED = "closed early"
    SILENT = "silent"
    MALFORMED = "malformed"
    NOT_STREAMED = "not streamed"
    ERROR_EVENT = "error event"
    EMPTY = "empty"


@dataclass(frozen=True, slots=True)
class Ask:
    """What every request of a run is like. `prompt`s differ, all else is the same."""

    model: str
    tokens: int  # of each answer
    api: Api = "completions"
    ignore_eos: bool = True  # a llama.cpp, vLLM and SGLang extension: the answer goes on to its full length
    silence: float = 120.0  # seconds without a byte, after which an answer is given up

    def body(self, prompt: str, tokens: int | None = None) -> bytes:
        """The JSON of one request."""
        fields: dict[str, Any] = {
            "model": self.model,
            "max_tokens": tokens or self.tokens,
            "temperature": 0,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        if self.ignore_eos:
            fields["ignore_eos"] = True
        if self.api == "chat":
            fields["messages"] = [{"role": "user", "content": prompt}]
        else:
            fields["prompt"] = prompt
        return json.dumps(fields).encode()


@dataclass(slots=True)
class Answer:
    """What came of one request. Times are `perf_counter` seconds; `token_times` has one entry a chunk of text."""

    sent: float
    ended: float = 0.0
    token_times: list[float] = field(default_factory=list)
    usage: Mapping[str, Any] = field(default_factory=dict)
    timings: Mapping[str, Any] = field(default_factory=dict)  # llama-server's own
    trouble: Trouble | None = None
    why: str = ""

    @property
    def good(self) -> bool:
        """Did it end as it should?"""
        return self.trouble is None

    @property
    def tokens(self) -> int:
        """Tokens of the answer: the server's own count, or the chunks where it gives none."""
        return _count(self.usage, "completion_tokens") or _count(self.timings, "predicted_n") or len(self.token_times)

    @property
    def prompt_tokens(self) -> int:
        """Tokens of the prompt by the server's count, cached ones included; 0: it gives none."""
        return _count(self.usage, "prompt_tokens") or _count(self.timings, "prompt_n")

    @property
    def cached_tokens(self) -> int:
        """Tokens of the prompt that were not computed anew."""
        details = self.usage.get("prompt_tokens_details")
        return _count(details, "cached_tokens") if isinstance(details, Mapping) else 0

    @property
    def counts_agree(self) -> bool:
        """Is the count in `usage` that of the engine's `timings`? True where one of them is missing."""
        said, timed = _count(self.usage, "completion_tokens"), _count(self.timings, "predicted_n")
        return not (said and timed) or said == timed


def _count(facts: Mapping[str, Any], name: str) -> int:
    value = facts.get(name)
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 1 << 40 else 0


class _Malformed(Exception):
    """The server talks nonsense; the text says which."""


class _Failed(Exception):
    """The server reported an error inside a stream."""


class _Reader:
    """Takes the bytes of an answer and fills an Answer."""

    def __init__(self, answer: Answer) -> None:
        self._answer = answer
        self._buffer = b""
        self.status = 0
        self.streams = False
        self.done = False

    def head(self, status: int, content_type: str) -> None:
        """Status and content type."""
        self.status = status
        self.streams = content_type == "text/event-stream"

    def body(self, data: bytes, now: float) -> None:
        """A piece of the body. Raises _Malformed and _Failed."""
        self._buffer += data
        if self.status == 200 and self.streams:
            if b"\r" in self._buffer:
                self._buffer = self._buffer.replace(b"\r\n", b"\n")
            *events, self._buffer = self._buffer.split(b"\n\n")
            for event in events:
                self._event(event, now)
        if len(self._buffer) > _MAX_EVENT_BYTES:
            raise _Malformed("over 1 MiB came without an end of the event")

    def rest(self) -> Any:
        """The JSON of an answer that was no stream; None if it is none."""
        try:
            return json.loads(self._buffer)
        except (ValueError, RecursionError):
            return None

    def _event(self, event: bytes, now: float) -> None:
        for line in event.split(b"\n"):
            if not line.startswith(b"data:"):
                continue  # a comment (a ping), or the event's name
            payload = line[5:].strip()
            if payload == b"[DONE]":
                self.done = True
                continue
            try:
                chunk = json.loads(payload)
            except (ValueError, RecursionError):
                raise _Malformed(f"an event that is not JSON: {_short(payload)}") from None
            if not isinstance(chunk, dict):
                raise _Malformed(f"an event that is no JSON object: {_short(payload)}")
            self._chunk(chunk, now)

    def _chunk(self, chunk: dict[str, Any], now: float) -> None:
        if chunk.get("error"):
            raise _Failed(_message(chunk) or "an error without a message")
        answer = self._answer
        choices = chunk.get("choices")
        if isinstance(choices, list) and choices and isinstance(choices[0], dict):
            choice = choices[0]
            delta = choice.get("delta")
            text = choice.get("text")
            if isinstance(delta, dict):
                text = delta.get("content") or delta.get("reasoning_content") or delta.get("reasoning")
            if text:
                answer.token_times.append(now)
        if isinstance(chunk.get("usage"), dict):
            answer.usage = chunk["usage"]
        if isinstance(chunk.get("timings"), dict):
            answer.timings = chunk["timings"]


async def ask(
    endpoint: Endpoint,
    what: Ask,
    prompt: str,
    *,
    tokens: int | None = None,
    sent: float | None = None,
    into: Answer | None = None,
) -> Answer:
    """Ask once and time the answer. Never raises for what a server does: that is in `trouble` and `why`.

    `sent`: when the request was due, for open-loop load; a late start is then part of its waiting time. `into`: an
    answer that somebody looks at while it grows.
    """
    answer = into or Answer(sent=perf_counter() if sent is None else sent)
    reader = _Reader(answer)
    path = "/chat/completions" if what.api == "chat" else "/completions"
    try:
        await exchange(endpoint, "POST", path, what.body(prompt, tokens), reader.head, reader.body, what.silence)
    except WireError as error:
        if not (reader.done and answer.token_times):  # some servers close without the last chunk, after [DONE]
            _fail(answer, Trouble.CLOSED if reader.status else Trouble.NO_CONNECTION, str(error))
    except TimeoutError:
        _fail(answer, Trouble.SILENT, f"nothing came for {what.silence:g} s")
    except _Malformed as error:
        _fail(answer, Trouble.MALFORMED, str(error))
    except _Failed as error:
        _fail(answer, Trouble.ERROR_EVENT, str(error))
    answer.ended = perf_counter()
    if answer.good:
        _judge(answer, reader, path)
    return answer


def _judge(answer: Answer, reader: _Reader, path: str) -> None:
    """An answer that ended by HTTP's rules may still be none."""
    if reader.status != 200:
        message = _message(reader.rest())
        hint = " (is it `--api chat` there?)" if reader.status == 404 and path == "/completions" else ""
        _fail(answer, Trouble.REFUSED, f"HTTP {reader.status}" + (f": {message}" if message else "") + hint)
    elif not reader.streams:
        _fail(answer, Trouble.NOT_STREAMED, "the server answered in one piece although a stream was asked for")
    elif not reader.done:
        _fail(answer, Trouble.CLOSED, "the stream ended without [DONE]")
    elif not answer.token_times:
        _fail(answer, Trouble.EMPTY, "the answer had no text")


def _fail(answer: Answer, trouble: Trouble, why: str) -> None:
    answer.trouble, answer.why = trouble, why


def _message(body: Any) -> str:
    error = body.get("error") if isinstance(body, dict) else None
    message = error.get("message") if isinstance(error, dict) else error
    return _short(str(message).encode()) if message else ""


def _short(data: bytes) -> str:
    text = "".join(c for c in data.decode("utf-8", "replace") if c.isprintable())
    return text if len(text) <= 120 else text[:117] + "…"


async def get_json(endpoint: Endpoint, path: str, silence: float) -> Any:
    """The JSON that `GET base+path` answers. Raises WireError (also for a status that is not 200) and TimeoutError."""
    answer = Answer(sent=0.0)
    reader = _Reader(answer)
    try:
        await exchange(endpoint, "GET", path, b"", reader.head, reader.body, silence)
    except _Malformed as error:
        raise WireError(str(error)) from None
    if reader.status != 200:
        raise WireError(f"GET {path} answered HTTP {reader.status}: {_message(reader.rest())}".rstrip(": "))
    return reader.rest()


async def first_model(endpoint: Endpoint, silence: float = 10.0) -> str | None:
    """The name of the first model that the server lists; None when it lists none. Raises WireError, TimeoutError."""
    listed = await get_json(endpoint, "/models", silence)
    data = listed.get("data") if isinstance(listed, dict) else None
    first = data[0] if isinstance(data, list) and data else None
    name = first.get("id") if isinstance(first, dict) else None
    return name if isinstance(name, str) else None
