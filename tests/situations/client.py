"""What clients of a server with several models do, and what they see. Raw HTTP; the official SDK where it matters."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

import anyio
import openai
import psutil
from prometheus_client.parser import text_string_to_metric_families

from tests.support.serving import PATIENCE_S, Serving, events

CHAT, TEXT = "/v1/chat/completions", "/v1/completions"


@dataclass(frozen=True, slots=True)
class Answer:
    """A whole answer. `body`: its JSON."""

    status: int
    headers: Mapping[str, str]
    body: Any

    @property
    def text(self) -> str:
        """What the model said."""
        choice = self.body["choices"][0]
        text: str = choice["text"] if "text" in choice else choice["message"]["content"]
        return text

    @property
    def code(self) -> str:
        """Of an error."""
        code: str = self.body["error"]["code"]
        return code


@dataclass(slots=True)
class Stream:
    """A stream, as far as it has come."""

    status: int = 0
    headers: Mapping[str, str] = field(default_factory=dict)
    data: list[str] = field(default_factory=list)  # of each event

    @property
    def done(self) -> bool:
        """It came to its end."""
        return self.data[-1:] == ["[DONE]"]

    @property
    def chunks(self) -> list[dict[str, Any]]:
        """The events that are JSON."""
        return [json.loads(data) for data in self.data if data != "[DONE]"]

    @property
    def text(self) -> str:
        """What the model said."""
        choices = [choice for chunk in self.chunks for choice in chunk.get("choices", ())]
        return "".join(c["text"] if "text" in c else c["delta"].get("content") or "" for c in choices)

    @property
    def error(self) -> dict[str, Any]:
        """The error in the last event."""
        error: dict[str, Any] = self.chunks[-1]["error"]
        return error


def headers(key: str = "", tier: str = "") -> dict[str, str]:
    """A client's headers."""
    return {
        **({"Authorization": f"Bearer {key}"} if key else {}),
        **({"X-Onebit-Tier": tier} if tier else {}),
    }


def request(path: str, model: str, text: str, **fields: Any) -> dict[str, Any]:
    """The body of a request that says `text`."""
    said: dict[str, Any] = {"prompt": text} if path == TEXT else {"messages": [{"role": "user", "content": text}]}
    return {"model": model, "temperature": 0, **said, **fields}


async def ask(
    server: Serving, model: str, text: str = "hi", *, path: str = CHAT, key: str = "", tier: str = "", **fields: Any
) -> Answer:
    """A whole answer."""
    body = request(path, model, text, **fields)
    async with server.session.post(server.url + path, json=body, headers=headers(key, tier)) as response:
        return Answer(response.status, response.headers, await response.json(content_type=None))


async def stream(
    server: Serving,
    model: str,
    text: str = "hi",
    *,
    path: str = CHAT,
    key: str = "",
    tier: str = "",
    into: Stream | None = None,
    **fields: Any,
) -> Stream:
    """A stream to its end, however it ends. `into`: filled as it goes."""
    got = into if into is not None else Stream()
    body = request(path, model, text, stream=True, **fields)
    async with server.session.post(server.url + path, json=body, headers=headers(key, tier)) as response:
        got.status, got.headers = response.status, response.headers
        if response.status != 200:
            got.data.append(await response.text())
            return got
        async for data in events(response):
            got.data.append(data)
    return got


def sdk(server: Serving, key: str = "none", *, retries: int = 0) -> openai.AsyncOpenAI:
    """OpenAI's own client."""
    return openai.AsyncOpenAI(base_url=f"{server.url}/v1", api_key=key, max_retries=retries, timeout=PATIENCE_S)


async def report(server: Serving, key: str = "") -> dict[str, Any]:
    """/v1/engines."""
    async with server.session.get(f"{server.url}/v1/engines", headers=headers(key)) as response:
        assert response.status == 200, await response.text()
        told: dict[str, Any] = await response.json()
        return told


async def models(server: Serving, key: str = "") -> dict[str, dict[str, Any]]:
    """The models of /v1/engines, by name."""
    return {model["model"]: model for model in (await report(server, key))["data"]}


async def until(
    server: Serving, name: str, what: Callable[[dict[str, Any]], bool] | str, *, key: str = ""
) -> dict[str, Any]:
    """Wait until the model `name` is as `what` says: a state, or a test of its report."""
    model: dict[str, Any] = {}
    with anyio.move_on_after(server.patience):
        while True:
            model = (await models(server, key))[name]
            if model["state"] == what if isinstance(what, str) else what(model):
                return model
            await anyio.sleep(0.01)
    raise AssertionError(f"still not so after {server.patience} s: {model}\n{server.text}")


async def until_text(got: Stream, chunks: int) -> None:
    """Wait until a stream has brought this many events."""
    with anyio.fail_after(PATIENCE_S):
        while len(got.data) < chunks:
            await anyio.sleep(0.001)


async def healthy(server: Serving) -> bool:
    """Is /health green?"""
    async with server.session.get(f"{server.url}/health") as response:
        return response.status == 200


async def count(server: Serving, name: str, *, key: str = "", **labels: str) -> float:
    """The sum of a metric over all series with these labels. `name`: with its _total."""
    async with server.session.get(f"{server.url}/metrics", headers=headers(key)) as response:
        text = await response.text()
    return sum(
        sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if sample.name == name and labels.items() <= sample.labels.items()
    )


class Residents:
    """What was in memory at the same time, seen from outside."""

    def __init__(self) -> None:
        self.processes = 0  # the most engines that ran at once
        self.together: set[frozenset[str]] = set()  # models that held memory at once
        self.looks = 0
        self.over = 0  # looks at which more memory was set aside than there is


@asynccontextmanager
async def watched(server: Serving, key: str = "") -> AsyncIterator[Residents]:
    """Look again and again, as long as the block lasts."""
    seen = Residents()
    process = psutil.Process(server.process.pid)

    async def look() -> None:
        while True:
            told = await report(server, key)
            memory = told["memory"].values()
            seen.over += any(pool["reserved_bytes"] > pool["total_bytes"] for pool in memory)
            seen.together.add(frozenset(model["model"] for model in told["data"] if model["bytes"]))
            with suppress(psutil.Error):
                seen.processes = max(seen.processes, len(process.children()))
            seen.looks += 1
            await anyio.sleep(0.02)

    task = asyncio.create_task(look())
    try:
        yield seen
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task
    assert seen.looks
