"""The official OpenAI SDK as the client, the real llama-server as the engine."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import anyio
import openai
import pytest

from onebit.engines.device import Build
from tests.support.serving import Serving, past_the_router, serving

pytestmark = [pytest.mark.anyio, pytest.mark.engine]
WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Get the weather of a city",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    },
}

# The demo's own template knows no tools. With this one, and three examples, even 135M parameters get a call right.
TOOLS_TEMPLATE = ("--", "--chat-template-file", str(Path(__file__).parents[1] / "support/templates/tools.jinja"))


def _asked_before(city: str) -> list[dict[str, Any]]:
    function = {"name": "get_weather", "arguments": json.dumps({"city": city})}
    return [
        {"role": "user", "content": f"weather in {city}?"},
        {"role": "assistant", "content": None, "tool_calls": [{"id": city, "type": "function", "function": function}]},
        {"role": "tool", "tool_call_id": city, "content": "sunny"},
        {"role": "assistant", "content": "sunny"},
    ]


ASK_FOR_WEATHER = [
    *_asked_before("Rome"),
    *_asked_before("Berlin"),
    *_asked_before("Madrid"),
    {"role": "user", "content": "weather in Paris?"},
]


@pytest.fixture
async def server(cpu_build: Build, demo: Path) -> AsyncIterator[Serving]:
    arguments = ("--alias", "demo", "--parallel", "2", "-c", "1024", "--embeddings", "--device", "cpu", *TOOLS_TEMPLATE)
    async with serving("-m", demo, *arguments, env={"ONEBIT_API_KEY": "sk-one,sk-two"}) as running:
        yield running


@pytest.fixture
async def client(server: Serving) -> AsyncIterator[openai.AsyncOpenAI]:
    async with openai.AsyncOpenAI(base_url=f"{server.url}/v1", api_key="sk-two") as made:
        yield made


async def test_chat_whole_and_streamed(client: openai.AsyncOpenAI) -> None:
    whole = await client.chat.completions.create(
        model="demo",
        messages=[{"role": "user", "content": "Name three colours."}],
        temperature=0,
        max_tokens=16,
        extra_body={"cache_prompt": False},  # a cached prompt is worked off in other batches, which flips near-ties
    )
    text = whole.choices[0].message.content
    assert text is not None and "Red" in text
    assert whole.usage is not None and whole.usage.completion_tokens <= 16
    parts: list[str] = []
    usage = None
    stream = await client.chat.completions.create(
        model="demo",
        messages=[{"role": "user", "content": "Name three colours."}],
        temperature=0,
        max_tokens=16,
        extra_body={"cache_prompt": False},  # a cached prompt is worked off in other batches, which flips near-ties
        stream=True,
        stream_options={"include_usage": True},
    )
    async for chunk in stream:
        usage = chunk.usage or usage
        parts += [c.delta.content or "" for c in chunk.choices]
    assert "".join(parts) == text
    assert usage is not None and usage.completion_tokens == whole.usage.completion_tokens


async def test_tools_go_through_and_come_back(client: openai.AsyncOpenAI) -> None:
    create: Any = client.chat.completions.create  # its overloads do not take a `stream` that varies
    for stream in (False, True):
        name = arguments = ""
        answer = await create(
            model="demo", messages=ASK_FOR_WEATHER, tools=[WEATHER], temperature=0, max_tokens=60, stream=stream
        )
        if stream:
            reason = None
            async for chunk in answer:
                for choice in chunk.choices:
                    reason = choice.finish_reason or reason
                    for piece in choice.delta.tool_calls or ():
                        name += piece.function.name or ""
                        arguments += piece.function.arguments or ""
        else:
            (call,) = answer.choices[0].message.tool_calls
            name, arguments = call.function.name, call.function.arguments
            reason = answer.choices[0].finish_reason
        assert (name, json.loads(arguments), reason) == ("get_weather", {"city": "Paris"}, "tool_calls")


async def test_legacy_completions_of_several_prompts(client: openai.AsyncOpenAI) -> None:
    answer = await client.completions.create(
        model="demo", prompt=["One, two, three,", "Monday, Tuesday, Wednesday,"], max_tokens=4, temperature=0
    )
    assert [c.index for c in answer.choices] == [0, 1]
    assert "four" in answer.choices[0].text
    assert "Thursday" in answer.choices[1].text
    stream = await client.completions.create(
        model="demo",
        prompt=["One, two, three,", "Monday, Tuesday, Wednesday,"],
        max_tokens=4,
        temperature=0,
        stream=True,
    )
    texts = ["", ""]
    async for chunk in stream:  # llama-server's `data: null` would end this loop with an error
        for choice in chunk.choices:
            texts[choice.index] += choice.text
    assert "four" in texts[0] and "Thursday" in texts[1]


async def test_embeddings_of_one_and_of_several(client: openai.AsyncOpenAI) -> None:
    answer = await client.embeddings.create(model="demo", input=["the cat sat", "the cat sat", "stock market news"])
    one, same, other = (item.embedding for item in answer.data)
    assert len(one) == 576  # the SDK asks for base64 and decodes it
    assert one == pytest.approx(same, abs=1e-3)
    assert one != pytest.approx(other, abs=1e-2)


async def test_responses(client: openai.AsyncOpenAI) -> None:
    answer = await client.responses.create(
        model="demo", input="Name three colours.", temperature=0, max_output_tokens=16
    )
    assert "Red" in answer.output_text
    stream = await client.responses.create(model="demo", input="Say hi", max_output_tokens=4, stream=True)
    kinds = [event.type async for event in stream]
    assert "response.output_text.delta" in kinds
    assert kinds[-1] == "response.completed"


async def test_messages_of_the_other_api(server: Serving) -> None:
    server.session.headers["Authorization"] = "Bearer sk-one"
    question = {"model": "demo", "messages": [{"role": "user", "content": "Name three colours."}]}
    status, answer, _ = await server.post("/v1/messages", **question, max_tokens=16, temperature=0)
    assert status == 200
    assert (answer["type"], answer["role"]) == ("message", "assistant")
    assert "Red" in answer["content"][0]["text"]
    status, answer, _ = await server.post("/v1/messages/count_tokens", **question)
    assert status == 200 and answer["input_tokens"] > 5
    status, answer, _ = await server.post("/tokenize", content="hello world")
    assert status == 200 and len(answer["tokens"]) == 2


async def test_errors_are_the_ones_the_sdk_knows(server: Serving, client: openai.AsyncOpenAI) -> None:
    question: list[openai.types.chat.ChatCompletionMessageParam] = [{"role": "user", "content": "hi"}]
    with pytest.raises(openai.NotFoundError, match="served here: demo"):
        await client.chat.completions.create(model="gpt-5", messages=question)
    with pytest.raises(openai.BadRequestError, match=r"max_tokens|n_predict"):
        await client.chat.completions.create(model="demo", messages=question, max_tokens=-5)
    long: list[openai.types.chat.ChatCompletionMessageParam] = [{"role": "user", "content": "word " * 3000}]
    with pytest.raises(openai.BadRequestError) as caught:
        await client.chat.completions.create(model="demo", messages=long)
    assert caught.value.type == "exceed_context_size_error"
    with pytest.raises(openai.AuthenticationError):
        await client.with_options(api_key="sk-three").models.list()
    assert [m.id for m in (await client.models.list()).data] == ["demo"]


async def test_cancelling_in_the_client_frees_the_slot(server: Serving, client: openai.AsyncOpenAI) -> None:
    server.session.headers["Authorization"] = "Bearer sk-one"
    create: Any = client.chat.completions.create
    for stream in (True, False):
        with anyio.move_on_after(60) as scope:
            async with anyio.create_task_group() as group:

                async def ask(stream: bool = stream) -> None:
                    answer = await create(
                        model="demo",
                        messages=[{"role": "user", "content": "Count to a thousand."}],
                        max_tokens=900,
                        stream=stream,
                        extra_body={"ignore_eos": True},
                    )
                    async for _ in answer:
                        pass

                group.start_soon(ask)
                await server.until(lambda es: es[0]["slots_in_use"] == 1)
                group.cancel_scope.cancel()
        assert not scope.cancelled_caught
        await server.until(lambda es: es[0]["slots_in_use"] == 0)
    async with past_the_router(server) as session, session.get("http://engine/metrics") as response:
        text = await response.text()
    (made,) = (float(line.split()[1]) for line in text.splitlines() if line.startswith("llamacpp:tokens_predicted_tot"))
    assert made < 900  # of 1,800: neither of the two ran to its end
    assert (await server.engines())[0]["restarts"] == 0
