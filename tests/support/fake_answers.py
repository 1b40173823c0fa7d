"""Answers in llama-server's shapes (taken from a running one): chat, text completion, responses, messages.

The words of the answer are the fake's own: chunk i of a request whose last user message is TEXT is `TEXT#i `.
"""

from __future__ import annotations

import json
import secrets
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

Json = dict[str, Any]
FINGERPRINT = "b0-fake"


def chunk_text(text: str, index: int) -> str:
    """The words of chunk `index` (from 0) of the answer to `text`."""
    return f"{text}#{index} "


def full_text(text: str, tokens: int) -> str:
    """The whole answer to `text`."""
    return "".join(chunk_text(text, i) for i in range(tokens))


@dataclass(slots=True)
class Answer:
    """One answer while it is made. `made`: chunks so far; `limited`: max_tokens ends it, not the model."""

    model: str
    text: str
    limited: bool
    include_usage: bool
    made: int = 0
    id: str = field(default_factory=lambda: secrets.token_urlsafe(24))
    created: int = field(default_factory=lambda: int(time.time()))
    began: float = field(default_factory=time.perf_counter)

    @property
    def words(self) -> str:
        """All the text so far."""
        return full_text(self.text, self.made)

    @property
    def prompt_tokens(self) -> int:
        """The fake's tokenizer splits at blanks."""
        return max(1, len(self.text.split()))

    def usage(self) -> Json:
        """OpenAI's usage, with the cached tokens llama-server adds."""
        return {
            "completion_tokens": self.made,
            "prompt_tokens": self.prompt_tokens,
            "total_tokens": self.made + self.prompt_tokens,
            "prompt_tokens_details": {"cached_tokens": 0},
        }

    def input_output_usage(self) -> Json:
        """The usage of /v1/responses."""
        return {
            "input_tokens": self.prompt_tokens,
            "output_tokens": self.made,
            "total_tokens": self.made + self.prompt_tokens,
            "input_tokens_details": {"cached_tokens": 0},
        }

    def timings(self) -> Json:
        """llama-server's timings; the prompt is said to have taken 1 ms."""
        ms = max((time.perf_counter() - self.began) * 1000, 0.001)
        return {
            "cache_n": 0,
            "prompt_n": self.prompt_tokens,
            "prompt_ms": 1.0,
            "prompt_per_token_ms": 1.0 / self.prompt_tokens,
            "prompt_per_second": 1000.0 * self.prompt_tokens,
            "predicted_n": self.made,
            "predicted_ms": ms,
            "predicted_per_token_ms": ms / max(self.made, 1),
            "predicted_per_second": 1000.0 * self.made / ms,
        }


class Dialect(Protocol):
    """How one endpoint writes an answer. The methods that stream return events, ready to send."""

    def delta(self, answer: Answer, piece: str) -> list[bytes]:
        """What chunk number `answer.made - 1` looks like; the first also opens the answer."""
        ...

    def last(self, answer: Answer) -> list[bytes]:
        """What ends the stream."""
        ...

    def whole(self, answer: Answer) -> Json:
        """The answer in one piece."""
        ...


def _data(payload: Mapping[str, Any]) -> bytes:
    return b"data: " + json.dumps(payload, separators=(",", ":"), ensure_ascii=False).encode() + b"\n\n"


def _event(payload: Mapping[str, Any]) -> bytes:
    return b"event: " + str(payload["type"]).encode() + b"\n" + _data(payload)


DONE = b"data: [DONE]\n\n"


class Chat:
    """/v1/chat/completions."""

    def _chunk(self, answer: Answer, choices: list[Json], **more: Any) -> bytes:
        return _data(
            {
                "choices": choices,
                "created": answer.created,
                "id": f"chatcmpl-{answer.id}",
                "model": answer.model,
                "system_fingerprint": FINGERPRINT,
                "object": "chat.completion.chunk",
                **more,
            }
        )

    def delta(self, answer: Answer, piece: str) -> list[bytes]:
        deltas: list[Json] = [{"content": piece}]
        if answer.made == 1:
            deltas.insert(0, {"role": "assistant", "content": None})
        return [self._chunk(answer, [{"finish_reason": None, "index": 0, "delta": d}]) for d in deltas]

    def last(self, answer: Answer) -> list[bytes]:
        choices: list[Json] = [{"finish_reason": _finish(answer), "index": 0, "delta": {}}]
        if not answer.include_usage:
            return [self._chunk(answer, choices, timings=answer.timings()), DONE]
        usage = self._chunk(answer, [], usage=answer.usage(), timings=answer.timings())
        return [self._chunk(answer, choices), usage, DONE]

    def whole(self, answer: Answer) -> Json:
        message = {"role": "assistant", "content": answer.words}
        return {
            "choices": [{"finish_reason": _finish(answer), "index": 0, "message": message}],
            "created": answer.created,
            "model": answer.model,
            "system_fingerprint": FINGERPRINT,
            "object": "chat.completion",
            "usage": answer.usage(),
            "id": f"chatcmpl-{answer.id}",
            "timings": answer.timings(),
        }


class Text:
    """/v1/completions: the last chunk brings the usage, asked for or not."""

    def _chunk(self, answer: Answer, piece: str, finish: str | None) -> Json:
        return {
            "choices": [{"text": piece, "index": 0, "logprobs": None, "finish_reason": finish}],
            "created": answer.created,
            "model": answer.model,
            "system_fingerprint": FINGERPRINT,
            "object": "text_completion",
            "id": f"chatcmpl-{answer.id}",
        }

    def delta(self, answer: Answer, piece: str) -> list[bytes]:
        return [_data(self._chunk(answer, piece, None))]

    def last(self, answer: Answer) -> list[bytes]:
        chunk = self._chunk(answer, "", _finish(answer))
        return [_data({**chunk, "usage": answer.usage(), "timings": answer.timings()}), DONE]

    def whole(self, answer: Answer) -> Json:
        chunk = self._chunk(answer, answer.words, _finish(answer))
        return {**chunk, "usage": answer.usage(), "timings": answer.timings()}


class Responses:
    """/v1/responses: named events, no [DONE]."""

    def delta(self, answer: Answer, piece: str) -> list[bytes]:
        item = f"msg_{answer.id}"
        events: list[Json] = []
        if answer.made == 1:
            head = {"id": f"resp_{answer.id}", "object": "response", "status": "in_progress"}
            message = {
                "content": [],
                "id": item,
                "role": "assistant",
                "status": "in_progress",
                "type": "message",
            }
            part = {"type": "output_text", "text": ""}
            events += [
                {"type": "response.created", "response": head},
                {"type": "response.in_progress", "response": head},
                {"type": "response.output_item.added", "item": message},
                {"type": "response.content_part.added", "item_id": item, "part": part},
            ]
        events.append({"type": "response.output_text.delta", "item_id": item, "delta": piece})
        return [_event(event) for event in events]

    def last(self, answer: Answer) -> list[bytes]:
        item, whole = f"msg_{answer.id}", self.whole(answer)
        part = whole["output"][0]["content"][0]
        return [
            _event(event)
            for event in (
                {"type": "response.output_text.done", "item_id": item, "text": answer.words},
                {"type": "response.content_part.done", "item_id": item, "part": part},
                {"type": "response.output_item.done", "item": whole["output"][0]},
                {"type": "response.completed", "response": whole, "timings": answer.timings()},
            )
        ]

    def whole(self, answer: Answer) -> Json:
        part: Json = {"type": "output_text", "annotations": [], "logprobs": [], "text": answer.words}
        message = {
            "content": [part],
            "id": f"msg_{answer.id}",
            "role": "assistant",
            "status": "completed",
            "type": "message",
        }
        return {
            "completed_at": int(time.time()),
            "created_at": answer.created,
            "id": f"resp_{answer.id}",
            "model": answer.model,
            "object": "response",
            "output": [message],
            "status": "completed",
            "usage": answer.input_output_usage(),
        }


class Messages:
    """/v1/messages: Anthropic's named events, no [DONE]."""

    def _message(self, answer: Answer, content: list[Json], stop: str | None, tokens: int) -> Json:
        return {
            "id": f"chatcmpl-{answer.id}",
            "type": "message",
            "role": "assistant",
            "content": content,
            "model": answer.model,
            "stop_reason": stop,
            "stop_sequence": None,
            "usage": {
                "cache_read_input_tokens": 0,
                "input_tokens": answer.prompt_tokens,
                "output_tokens": tokens,
            },
        }

    def _stop(self, answer: Answer) -> str:
        return "max_tokens" if answer.limited else "end_turn"

    def delta(self, answer: Answer, piece: str) -> list[bytes]:
        delta = {"type": "text_delta", "text": piece}
        events: list[Json] = [{"type": "content_block_delta", "index": 0, "delta": delta}]
        if answer.made == 1:
            block = {"type": "text", "text": ""}
            events = [
                {"type": "message_start", "message": self._message(answer, [], None, 0)},
                {"type": "content_block_start", "index": 0, "content_block": block},
                *events,
            ]
        return [_event(event) for event in events]

    def last(self, answer: Answer) -> list[bytes]:
        delta = {"stop_reason": self._stop(answer), "stop_sequence": None}
        return [
            _event({"type": "content_block_stop", "index": 0}),
            _event({"type": "message_delta", "delta": delta, "usage": {"output_tokens": answer.made}}),
            _event({"type": "message_stop"}),
        ]

    def whole(self, answer: Answer) -> Json:
        content = [{"type": "text", "text": answer.words}]
        return self._message(answer, content, self._stop(answer), answer.made)


def _finish(answer: Answer) -> str:
    return "length" if answer.limited else "stop"


DIALECTS: Mapping[str, Dialect] = {
    "/v1/chat/completions": Chat(),
    "/v1/completions": Text(),
    "/v1/responses": Responses(),
    "/v1/messages": Messages(),
}


def last_user_text(body: Mapping[str, Any]) -> str:
    """The text that a request asks about: the last message's, or the prompt, or the input."""
    given = body.get("messages") or body.get("prompt") or body.get("input") or ""
    if isinstance(given, list):
        users = [m for m in given if not isinstance(m, Mapping) or m.get("role", "user") == "user"]
        given = users[-1] if users else ""
    if isinstance(given, Mapping):
        given = given.get("content", "")
    if isinstance(given, list):
        given = "".join(part.get("text", "") for part in given if isinstance(part, Mapping))
    return str(given)
