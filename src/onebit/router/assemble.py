"""A streamed answer becomes the whole answer that llama-server itself would have given.

The router streams from the engine, because llama-server notices that a client has left only while it streams to it
(requests for logprobs excepted: `Call.assembled`). These classes turn the events back into one JSON object: the same
fields in the same order as the engine's own non-streamed answer (llama.cpp tools/server/server-task.cpp; compared by a
test with the real one).
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from typing import Any

from onebit.errors import EngineLost


class EngineError(Exception):
    """The engine sent an error object in the stream, after a 200. `body` is passed on with `status`."""

    def __init__(self, error: dict[str, Any]) -> None:
        super().__init__(error.get("message", "error"))
        code = error.get("code")
        self.status = code if isinstance(code, int) and 400 <= code <= 599 else 500
        self.body = {"error": error}


class Answer(ABC):
    """Common to both shapes: events in, choices collected by index, the frame from the last event."""

    object_name = ""

    def __init__(self) -> None:
        self._frame: dict[str, Any] = {}
        self._choices: dict[int, dict[str, Any]] = {}
        self._usage: dict[int, Any] = {}
        self._timings: dict[int, Any] = {}
        self._finished = -1  # the choice that ended last: the usage event that follows belongs to it
        self._done = False

    def feed(self, events: bytes) -> None:
        """Take whole SSE events. Raises EngineError for an error event, EngineLost for what is not JSON."""
        for event in events.split(b"\n\n"):
            if not event.startswith(b"data: "):
                continue  # a comment: llama-server's ping
            data = event[6:]
            if data == b"[DONE]":
                self._done = True
                continue
            try:
                parsed = json.loads(data)
            except ValueError:
                raise EngineLost("the engine sent an event that is not JSON") from None
            if parsed is None:
                continue  # llama-server writes `data: null` for the start of a second sequence
            try:
                if "error" in parsed:
                    raise EngineError(parsed["error"])
                self._take(parsed)
            except (AttributeError, KeyError, TypeError, IndexError):
                raise EngineLost("the engine sent an event that is none of llama-server's") from None

    def result(self) -> dict[str, Any]:
        """The whole answer. Raises EngineLost when the stream did not come to its end."""
        if not self._done or not self._choices:
            raise EngineLost("the engine's answer ended too early")
        first = min(self._choices)  # of several answers, llama-server reports the first one's usage and timings
        answer: dict[str, Any] = {
            "choices": [self._choice(i, self._choices[i]) for i in sorted(self._choices)],
            **{k: self._frame[k] for k in ("created", "model", "system_fingerprint") if k in self._frame},
            "object": self.object_name,
            "usage": self._usage.get(first),
            "id": self._frame.get("id"),
        }
        if first in self._timings:
            answer["timings"] = self._timings[first]
        return answer

    def _take(self, event: dict[str, Any]) -> None:
        self._frame = event
        for part in event["choices"]:
            index = part["index"]
            choice = self._choices.setdefault(index, {"finish_reason": None})
            if part["finish_reason"] is not None:
                choice["finish_reason"] = part["finish_reason"]
                self._finished = index
            self._add(choice, part)
        if "usage" in event:
            self._usage[self._finished] = event["usage"]
        if "timings" in event:
            index = event["choices"][0]["index"] if event["choices"] else self._finished
            self._timings[index] = event["timings"]

    @abstractmethod
    def _add(self, choice: dict[str, Any], part: dict[str, Any]) -> None:
        """Add one event's part to its choice."""

    @abstractmethod
    def _choice(self, index: int, choice: dict[str, Any]) -> dict[str, Any]:
        """The choice as it stands in the whole answer."""


class ChatAnswer(Answer):
    """/v1/chat/completions."""

    object_name = "chat.completion"

    def _add(self, choice: dict[str, Any], part: dict[str, Any]) -> None:
        delta = part["delta"]
        for field in ("content", "reasoning_content"):
            if delta.get(field):
                choice.setdefault(field, []).append(delta[field])
        for piece in delta.get("tool_calls", ()):
            calls = choice.setdefault("tool_calls", {})
            call = calls.setdefault(piece["index"], {"name": "", "arguments": [], "id": ""})
            call["id"] = piece.get("id") or call["id"]
            function = piece.get("function", {})
            call["name"] += function.get("name", "")
            call["arguments"].append(function.get("arguments", ""))

    def _choice(self, index: int, choice: dict[str, Any]) -> dict[str, Any]:
        message: dict[str, Any] = {"role": "assistant", "content": "".join(choice.get("content", ()))}
        if "reasoning_content" in choice:
            message["reasoning_content"] = "".join(choice["reasoning_content"])
        if "tool_calls" in choice:
            message["tool_calls"] = [
                {
                    "type": "function",
                    "function": {"name": call["name"], "arguments": "".join(call["arguments"])},
                    **({"id": call["id"]} if call["id"] else {}),
                }
                for _, call in sorted(choice["tool_calls"].items())
            ]
        return {"finish_reason": choice["finish_reason"], "index": index, "message": message}


class TextAnswer(Answer):
    """/v1/completions."""

    object_name = "text_completion"

    def _add(self, choice: dict[str, Any], part: dict[str, Any]) -> None:
        choice.setdefault("text", []).append(part["text"])

    def _choice(self, index: int, choice: dict[str, Any]) -> dict[str, Any]:
        return {
            "text": "".join(choice["text"]),
            "index": index,
            "logprobs": None,
            "finish_reason": choice["finish_reason"],
        }
