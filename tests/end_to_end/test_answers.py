"""A whole answer put together from a stream is, field by field, what the engine itself would have said."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from onebit.engines.device import Build
from tests.end_to_end.test_sdk import ASK_FOR_WEATHER, TOOLS_TEMPLATE, WEATHER
from tests.support.mtp import Chain
from tests.support.serving import Serving, past_the_router, serving

pytestmark = [pytest.mark.anyio, pytest.mark.engine]
HELLO = [{"role": "user", "content": "Name three colours."}]


@pytest.fixture
async def server(cpu_build: Build, demo: Path) -> AsyncIterator[Serving]:
    arguments = ("--alias", "demo", "--parallel", "3", "-c", "1024", "--device", "cpu", *TOOLS_TEMPLATE)
    async with serving("-m", demo, *arguments) as running:
        yield running


async def engine_itself(server: Serving, path: str, body: dict[str, Any]) -> tuple[int, Any]:
    """The same request to the same engine, past the router."""
    async with past_the_router(server) as session, session.post("http://engine" + path, json=body) as response:
        return response.status, await response.json()


def comparable(answer: Any) -> Any:
    """Without what differs between any two answers: ids, the time, and how long it took."""
    if isinstance(answer, dict):
        kept = {k: comparable(v) for k, v in answer.items() if k not in ("id", "created")}
        if "timings" in kept:
            kept["timings"] = sorted(kept["timings"])
        return kept | {k: type(answer[k]).__name__ for k in ("id", "created") if k in answer}
    return [comparable(item) for item in answer] if isinstance(answer, list) else answer


@pytest.mark.parametrize(
    ("path", "fields"),
    [
        ("/v1/chat/completions", {"messages": HELLO}),
        ("/v1/chat/completions", {"messages": HELLO, "stream": False, "stream_options": None}),
        ("/v1/chat/completions", {"messages": HELLO, "max_tokens": 200}),  # ends by itself: finish_reason stop
        ("/v1/chat/completions", {"messages": HELLO, "logprobs": True, "top_logprobs": 2}),
        ("/v1/chat/completions", {"messages": HELLO, "logprobs": True, "max_tokens": 200}),
        ("/v1/chat/completions", {"messages": HELLO, "logprobs": True, "tools": [WEATHER]}),
        ("/v1/chat/completions", {"messages": HELLO, "stop": [","]}),
        ("/v1/chat/completions", {"messages": ASK_FOR_WEATHER, "tools": [WEATHER], "max_tokens": 60}),
        ("/v1/chat/completions", {"messages": HELLO, "response_format": {"type": "json_object"}, "max_tokens": 60}),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "Répète: 你好 🙂 ç"}], "max_tokens": 40}),
        ("/v1/chat/completions", {"messages": HELLO, "return_progress": True, "timings_per_token": True}),
        ("/v1/completions", {"prompt": "One, two,"}),
        ("/v1/completions", {"prompt": "One, two,", "logprobs": 2}),
        ("/v1/completions", {"prompt": [504, 28, 827], "stop": "\n"}),
        ("/v1/chat/completions", {"messages": HELLO, "temperature": "hot"}),
        ("/v1/chat/completions", {"messages": HELLO, "n": 50}),
        ("/v1/chat/completions", {"messages": HELLO, "grammar": "this is no grammar"}),
        ("/v1/completions", {"prompt": [9999999]}),
    ],
)
async def test_the_same_answer(server: Serving, path: str, fields: dict[str, Any]) -> None:
    body = {"model": "demo", "temperature": 0, "max_tokens": 12, "seed": 1, "cache_prompt": False, **fields}
    status, answer, _ = await server.post(path, **body)
    expected_status, expected = await engine_itself(server, path, body)
    assert status == expected_status, answer
    assert comparable(answer) == comparable(expected)
    assert list(answer) == list(expected)  # the same order, for those who read it


THINKING_TEMPLATE = ("--", "--chat-template-file", str(Path(__file__).parents[1] / "support/templates/thinking.jinja"))
THOUGHT = [
    {"role": "user", "content": "Colour of grass?"},
    {"role": "assistant", "reasoning_content": "Grass is a plant.", "content": "Green."},
    {"role": "user", "content": "Colour of snow?"},
    {"role": "assistant", "reasoning_content": "Snow is frozen water.", "content": "White."},
    {"role": "user", "content": "Colour of the sky?"},
]


@pytest.mark.parametrize(
    "fields",
    [{}, {"max_tokens": 4}, {"chat_template_kwargs": {"enable_thinking": False}}, {"reasoning_format": "none"}],
    ids=["thinks and answers", "is cut off while it thinks", "does not think", "thinks aloud"],
)
async def test_the_same_thoughts(cpu_build: Build, demo: Path, fields: dict[str, Any]) -> None:
    async with serving(
        "-m", demo, "--alias", "demo", "--parallel", "1", "-c", "512", "--device", "cpu", *THINKING_TEMPLATE
    ) as server:
        body = {"model": "demo", "messages": THOUGHT, "temperature": 0, "max_tokens": 60, "cache_prompt": False}
        status, answer, _ = await server.post("/v1/chat/completions", **{**body, **fields})
        expected_status, expected = await engine_itself(server, "/v1/chat/completions", {**body, **fields})
        assert (status, expected_status) == (200, 200)
        assert comparable(answer) == comparable(expected)
        message = answer["choices"][0]["message"]
        assert ("reasoning_content" in message) == (not fields or "max_tokens" in fields)


@pytest.mark.parametrize(
    ("path", "fields"),
    [
        ("/v1/chat/completions", {"messages": HELLO, "n": 3}),
        ("/v1/completions", {"prompt": ["One, two,", "Red, green,"]}),
        ("/v1/completions", {"prompt": ["One, two,", "Red, green,"], "n": 2}),
    ],
)
async def test_the_same_answers_of_several_at_once(
    cpu_build: Build, right: Chain, path: str, fields: dict[str, Any]
) -> None:
    """On a model whose next token is never in doubt: others flip near-ties when sequences meet in another batch."""
    async with serving(
        "-m", right.path, "--alias", "demo", "--parallel", "4", "-c", "512", "--device", "cpu"
    ) as server:
        body = {"model": "demo", "temperature": 0, "max_tokens": 12, "cache_prompt": False, **fields}
        status, answer, _ = await server.post(path, **body)
        expected_status, expected = await engine_itself(server, path, body)
        assert (status, expected_status) == (200, 200)
        assert comparable(answer) == comparable(expected)
        assert len(answer["choices"]) >= 2
