"""Streams that end badly, and the shapes the real engine is asked for in end_to_end/test_answers.py."""

from __future__ import annotations

import json
from typing import Any

import pytest

from onebit.errors import EngineLost
from onebit.router.assemble import ChatAnswer, EngineError, TextAnswer

FRAME = {"created": 1, "id": "x", "model": "demo", "system_fingerprint": "b", "object": "chat.completion.chunk"}


def event(*choices: dict[str, Any], **more: Any) -> bytes:
    return b"data: " + json.dumps({"choices": choices, **FRAME, **more}).encode() + b"\n\n"


def delta(index: int = 0, finish: str | None = None, **fields: Any) -> dict[str, Any]:
    return {"finish_reason": finish, "index": index, "delta": fields}


DONE = b"data: [DONE]\n\n"


def test_content_reasoning_and_tool_calls_are_joined() -> None:
    answer = ChatAnswer()
    answer.feed(event(delta(role="assistant", content=None)) + b":\n\n" + event(delta(reasoning_content="thi")))
    answer.feed(event(delta(reasoning_content="nk")) + event(delta(content="a")) + event(delta(content="b")))
    head = {"index": 0, "id": "c1", "type": "function", "function": {"name": "f", "arguments": "{"}}
    answer.feed(event(delta(tool_calls=[head])))
    answer.feed(event(delta(tool_calls=[{"index": 0, "function": {"arguments": "}"}}])))
    answer.feed(event(delta(finish="tool_calls")) + event(usage={"total_tokens": 5}, timings={"n": 1}) + DONE)
    assert answer.result() == {
        "choices": [
            {
                "finish_reason": "tool_calls",
                "index": 0,
                "message": {
                    "role": "assistant",
                    "content": "ab",
                    "reasoning_content": "think",
                    "tool_calls": [{"type": "function", "function": {"name": "f", "arguments": "{}"}, "id": "c1"}],
                },
            }
        ],
        "created": 1,
        "model": "demo",
        "system_fingerprint": "b",
        "object": "chat.completion",
        "usage": {"total_tokens": 5},
        "id": "x",
        "timings": {"n": 1},
    }


def test_of_several_answers_the_first_ones_usage_is_reported_whoever_ends_first() -> None:
    answer = ChatAnswer()
    answer.feed(event(delta(1, content="b")) + event(delta(0, content="a")) + b"data: null\n\n")
    answer.feed(event(delta(1, "stop")) + event(usage={"for": 1}) + event(delta(0, "length")) + event(usage={"for": 0}))
    answer.feed(DONE)
    result = answer.result()
    assert [c["message"]["content"] for c in result["choices"]] == ["a", "b"]
    assert [c["finish_reason"] for c in result["choices"]] == ["length", "stop"]
    assert result["usage"] == {"for": 0}


def test_a_stream_without_its_end_is_no_answer() -> None:
    for stream in (b"", DONE, event(delta(content="a"))):
        answer = TextAnswer() if not stream else ChatAnswer()
        answer.feed(stream)
        with pytest.raises(EngineLost, match="too early"):
            answer.result()


def test_an_error_in_the_stream_keeps_the_engines_status_and_words() -> None:
    error = {"code": 500, "message": "Context size has been exceeded.", "type": "server_error"}
    with pytest.raises(EngineError) as caught:
        ChatAnswer().feed(b"data: " + json.dumps({"error": error}).encode() + b"\n\n")
    assert (caught.value.status, caught.value.body) == (500, {"error": error})


@pytest.mark.parametrize(
    "data", [b"{half", b"5", b"{}", b"[]", b'{"error": "x"}', b'{"choices": [{}]}', b'{"choices": 1}']
)
def test_garbage_is_the_engines_fault_not_ours(data: bytes) -> None:
    with pytest.raises(EngineLost, match="the engine sent an event"):
        ChatAnswer().feed(b"data: " + data + b"\n\n")
