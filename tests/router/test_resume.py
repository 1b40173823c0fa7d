"""A stream that gave way and goes on: what its client sees of the joint. Pure; with a real engine in situations/."""

from __future__ import annotations

import json
from typing import Any

import pytest

from onebit.router.endpoints import ENDPOINTS
from onebit.router.openai import read_call
from onebit.router.resume import Progress, continuation, joined

CHAT = "/v1/chat/completions"


def event(id: str, text: str | None = None, **more: Any) -> bytes:
    choice = {"index": 0, "finish_reason": None, "delta": {"content": text}}
    return b"data: " + json.dumps({"id": id, "created": 7, "choices": [choice], **more}).encode() + b"\n\n"


def seen(progress: Progress, *parts: bytes) -> str:
    """What the client gets of a further part, as text."""
    progress.go_on()
    text = []
    for part in parts:
        data = joined(part, progress)
        progress.feed(data)
        parsed = json.loads(data.removeprefix(b"data: "))
        text += [choice["delta"]["content"] or "" for choice in parsed["choices"]]
        assert parsed["id"] == "one"
    return "".join(text)


def begun(*texts: str) -> Progress:
    progress = Progress()
    for text in texts:
        progress.feed(event("one", text))
    return progress


@pytest.mark.parametrize(
    "further",
    [
        ("a b c", " d"),  # llama-server repeats the beginning that it was given
        (" c", " d"),  # an engine that does not
        ("a b c a b", " d"),  # only once: what the model says again, it says
    ],
)
def test_the_beginning_is_not_seen_twice(further: tuple[str, str]) -> None:
    progress = begun("a", " b")
    told = "".join(further).removeprefix("a b")
    assert seen(progress, event("two", None), *(event("two", text) for text in further)) == told
    assert progress.text == "a b" + told
    assert progress.tokens == 4


def test_the_usage_is_that_of_the_whole_answer_however_often_it_gave_way() -> None:
    progress = begun("a", " b")
    seen(progress, event("two", "a b c"))
    progress.go_on()
    progress.feed(joined(event("three", "a b c d"), progress))
    # 5 tokens of prompt, 3 of the text so far; 1 new
    usage = {"prompt_tokens": 8, "completion_tokens": 1, "total_tokens": 9}
    last = json.loads(joined(event("three", usage=usage), progress).removeprefix(b"data: "))
    assert last["usage"] == {"prompt_tokens": 5, "completion_tokens": 4, "total_tokens": 9}


@pytest.mark.parametrize(
    "fields",
    [
        {"response_format": {"type": "json_object"}},
        {"tools": [{}]},
        {"logprobs": True},
        {"n": 2},
        {"n_cmpl": 2},
        {"max_tokens": 9.5},
        {"max_tokens": 2},
        {"messages": [{"role": "user", "content": "x"}, {"role": "assistant", "content": "y"}]},
    ],
)
def test_what_cannot_go_on_unseen_does_not(fields: dict[str, Any]) -> None:
    body = {"model": "m", "messages": [{"role": "user", "content": "x"}], "stream": True, **fields}
    call = read_call(ENDPOINTS[CHAT], json.dumps(body).encode(), ["m"])
    assert continuation(call, begun("a", " b")) is None


@pytest.mark.parametrize("limit", [9, 9.0])
def test_the_rest_has_the_tokens_that_are_left(limit: float) -> None:
    body = {"model": "m", "messages": [{"role": "user", "content": "x"}], "stream": True, "max_tokens": limit}
    further = continuation(read_call(ENDPOINTS[CHAT], json.dumps(body).encode(), ["m"]), begun("a", " b"))
    assert further is not None
    sent = json.loads(further.body)
    assert sent["max_tokens"] == 7
    assert sent["messages"][-1] == {"role": "assistant", "content": "a b"}
