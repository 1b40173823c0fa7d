"""Background work yields at once, and is complete all the same."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from datetime import datetime
from time import monotonic
from typing import Any

import anyio
import openai
import pytest

from tests.situations.client import CHAT, TEXT, Stream, ask, count, healthy, models, sdk, stream, until, until_text
from tests.situations.conftest import Fakes, Known, Serve
from tests.support.fake_build import change, read_log, until_log
from tests.support.serving import PATIENCE_S, Serving

pytestmark = pytest.mark.anyio
KEYS = "keys: [{name: shop, key_env: SHOP, tier: paid}, {name: batch, key_env: BATCH, tier: background}]\n"
ENV = {"SHOP": "sk-shop", "BATCH": "sk-batch"}
PAID, BATCH = "sk-shop", "sk-batch"


def running(tier: str, number: int) -> Any:
    return lambda model: model["running_by_tier"][tier] == number


# --- steered ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("streams", [True, False], ids=["stream", "whole"])
async def test_one_that_has_not_begun_is_restarted_unseen(fakes: Fakes, streams: bool) -> None:
    line = fakes.model("x", {"stall_after_chunks": 0, "tokens": 3})
    async with fakes.serve(line, top=KEYS, env=ENV) as server:
        asked = stream if streams else ask
        background: asyncio.Task[Any] = asyncio.create_task(asked(server, "x", "batch", key=BATCH))
        engine = await fakes.listening("x")
        with anyio.fail_after(PATIENCE_S):
            await until_log(engine, processing=1)
        paid = asyncio.create_task(ask(server, "x", "paid", key=PAID))
        await until(server, "x", running("background", 0), key=PAID)  # stopped at once, while the paid one is at work
        await until(server, "x", running("paid", 1), key=PAID)
        await change(engine, stall_after_chunks=None)
        assert (await paid).status == 200
        got = await background
        assert got.status == 200 and got.text == "batch#0 batch#1 batch#2 "
        log = await read_log(engine)
        assert [e["body"]["messages"][0]["content"] for e in log["requests"]] == ["batch", "paid", "batch"]
        first, second, third = log["requests"]
        assert first["disconnected"] is not None and first["ended"] is None
        assert third["started"] >= second["ended"]  # and not before the card was idle again
        assert await count(server, "onebit_preemptions_total", key=PAID, model="x") == 1


async def test_it_is_admitted_only_when_nothing_higher_runs_or_waits_on_that_device(fakes: Fakes) -> None:
    lines = (fakes.model("x", {"stall_after_chunks": 1}), fakes.model("y"))
    async with fakes.serve(*lines, room=2, top=KEYS, env=ENV) as server:
        paid = asyncio.create_task(ask(server, "x", key=PAID))
        await until(server, "x", running("paid", 1), key=PAID)
        background = asyncio.create_task(ask(server, "y", key=BATCH))  # another model, the same card
        await until(server, "y", lambda model: model["waiting_by_tier"]["background"] == 1, key=PAID)
        await until(server, "y", "loaded", key=PAID)  # loaded it may be: there is room
        told = await models(server, PAID)
        assert told["y"]["running_by_tier"]["background"] == 0 and told["y"]["waiting"] == 1
        assert await healthy(server)
        await change(fakes.address("x"), stall_after_chunks=None)
        assert (await paid).status == 200
        assert (await background).status == 200


async def test_a_begun_stream_that_cannot_be_continued_ends_with_an_error_that_says_so(fakes: Fakes) -> None:
    line = fakes.model("x", {"stall_after_chunks": 2, "tokens": 3})
    async with fakes.serve(line, top=KEYS, env=ENV) as server:
        got = Stream()
        schema = {"type": "json_object"}  # a grammar's state cannot be handed back
        background = asyncio.create_task(stream(server, "x", "b", key=BATCH, into=got, response_format=schema))
        await until_text(got, 3)
        engine = await fakes.listening("x")
        paid = asyncio.create_task(ask(server, "x", "paid", key=PAID))
        await background
        assert not got.done and (got.error["type"], got.error["code"]) == ("server_error", "preempted")
        await change(engine, stall_after_chunks=None)
        assert (await paid).status == 200


async def test_the_sdk_raises_for_a_preempted_stream(fakes: Fakes) -> None:
    line = fakes.model("x", {"stall_after_chunks": 2, "tokens": 3})
    async with fakes.serve(line, top=KEYS, env=ENV) as server, sdk(server, BATCH) as client:
        chunks = await client.chat.completions.create(
            model="x",
            messages=[{"role": "user", "content": "b"}],
            response_format={"type": "json_object"},
            stream=True,
        )
        parts = aiter(chunks)
        assert (await anext(parts)).choices
        paid = asyncio.create_task(ask(server, "x", key=PAID))
        with pytest.raises(openai.APIError, match="gave way to a higher tier"):
            async for _ in parts:
                pass
        await change(fakes.address("x"), stall_after_chunks=None)
        assert (await paid).status == 200


async def test_those_that_gave_way_stand_in_front_of_their_line(fakes: Fakes) -> None:
    line = fakes.model("x", {"stall_after_chunks": 0, "tokens": 1}, parallel=1)
    async with fakes.serve(line, top=KEYS, env=ENV) as server:
        first = asyncio.create_task(ask(server, "x", "first", key=BATCH))
        engine = await fakes.listening("x")
        with anyio.fail_after(PATIENCE_S):
            await until_log(engine, processing=1)
        second = asyncio.create_task(ask(server, "x", "second", key=BATCH))
        await until(server, "x", lambda model: model["waiting"] == 1, key=PAID)
        paid = asyncio.create_task(ask(server, "x", "paid", key=PAID))
        await until(server, "x", running("paid", 1), key=PAID)
        await change(engine, stall_after_chunks=None)
        assert [answer.status for answer in await asyncio.gather(first, second, paid)] == [200] * 3
        order = [e["body"]["messages"][0]["content"] for e in (await read_log(engine))["requests"]]
        assert order == ["first", "paid", "first", "second"]


# --- real ------------------------------------------------------------------------------------------------------


@pytest.mark.engine
async def test_a_begun_stream_is_continued_and_the_client_sees_one_answer(
    real: Serve, known: Mapping[str, Known]
) -> None:
    """Raw completions and chat: the same text, id, finish and usage as without the interruption."""
    async with real("slow", top=KEYS, env=ENV) as server:
        for path, text in ((TEXT, "\n"), (CHAT, "tell me")):
            fields: dict[str, Any] = {"path": path, "max_tokens": 590, "stream_options": {"include_usage": True}}
            undisturbed = await stream(server, "slow", text, key=BATCH, **fields)
            assert undisturbed.done
            before = await count(server, "onebit_preemptions_total", key=PAID, model="slow")
            got = Stream()
            background = asyncio.create_task(stream(server, "slow", text, key=BATCH, into=got, **fields))
            for _ in range(2):  # twice in one answer, as early as may be: it goes on without us
                await until_text(got, len(got.data) + 4)
                assert (await ask(server, "slow", key=PAID, max_tokens=2)).status == 200
            await background
            assert await count(server, "onebit_preemptions_total", key=PAID, model="slow") == before + 2
            assert got.done
            assert got.text == undisturbed.text
            assert known["slow"].words.startswith(got.text)
            assert shape(got) == shape(undisturbed)


def shape(got: Stream) -> dict[str, Any]:
    """What a client sees of a stream beside its text and its timing."""
    chunks = got.chunks
    choices = [choice for chunk in chunks for choice in chunk["choices"]]
    usage = [chunk["usage"] for chunk in chunks if chunk.get("usage")]
    return {
        "ids": len({chunk["id"] for chunk in chunks}),
        "roles": sum("role" in choice.get("delta", {}) for choice in choices),
        "finish": [choice["finish_reason"] for choice in choices if choice["finish_reason"]],
        "usage": [(u["prompt_tokens"], u["completion_tokens"], u["total_tokens"]) for u in usage],
    }


@pytest.mark.engine
async def test_a_continued_answer_ends_by_itself_where_the_undisturbed_one_does(
    real: Serve, known: Mapping[str, Known]
) -> None:
    async with real("slow", top=KEYS, env=ENV) as server, sdk(server, BATCH) as client:
        parts: list[str] = []
        reasons = []
        chunks = await client.chat.completions.create(
            model="slow", messages=[{"role": "user", "content": "tell me"}], temperature=0, stream=True
        )
        async for chunk in chunks:
            parts += [choice.delta.content or "" for choice in chunk.choices]
            reasons += [choice.finish_reason for choice in chunk.choices if choice.finish_reason]
            if len(parts) == 20:
                assert (await ask(server, "slow", key=PAID, max_tokens=2)).status == 200
        assert "".join(parts) == known["slow"].words
        assert reasons == ["stop"]
        assert await count(server, "onebit_preemptions_total", key=PAID, model="slow") == 1


@pytest.mark.engine
async def test_a_batch_of_100_with_sporadic_paid_calls(real: Serve, known: Mapping[str, Known]) -> None:
    """The paid ones see an idle card and one preemption; all 100 answers of the batch arrive, and are whole."""
    words = known["a"].words.split()[:100]
    async with real("a", top=KEYS, env=ENV) as server:
        idle = [await first_token_s(server) for _ in range(3)]
        done: list[str] = []

        async def one(number: int) -> None:
            answer = await ask(server, "a", f"number {number}", key=BATCH, max_tokens=100)
            assert answer.status == 200 and answer.text.split() == words
            done.append(answer.text)

        paid: list[float] = []
        async with anyio.create_task_group() as group:
            for number in range(100):
                group.start_soon(one, number)
            while len(done) < 80:
                await until(server, "a", running("background", 4), key=PAID)
                paid.append(await first_token_s(server))
                target = min(80, len(done) + 8)
                while len(done) < target:
                    await anyio.sleep(0.01)
        assert len(done) == 100
        assert len(paid) >= 5
        # All four at work give way each time; one may end by itself in the moment in which the paid one comes. Had the
        # paid one waited for a slot, at least one would have ended each time. By the server's clock: when an answer
        # reaches its client, here, depends on how busy this process is.
        lines = await requests_logged(server, 100 + len(idle) + len(paid))
        ends = [end_of(line) for line in lines if line["tier"] == "background"]
        came = [(end_of(line) - line["seconds"], line["first_token"]) for line in lines if line["tier"] == "paid"]
        ended_meanwhile = sum(began <= end <= began + first for began, first in came for end in ends)
        assert len(ends) == 100 and ended_meanwhile < len(paid)
        assert await count(server, "onebit_preemptions_total", key=PAID, model="a") > 2 * len(paid)
        print(f"first token of a paid request, s: idle {sorted(idle)}, into the batch {sorted(paid)}")


async def requests_logged(server: Serving, number: int) -> list[dict[str, Any]]:
    """The log's lines of requests, once there are so many."""
    with anyio.fail_after(PATIENCE_S):
        while True:
            lines = [json.loads(line) for line in server.output if '"message": "request"' in line]
            if len(lines) >= number:
                return lines
            await anyio.sleep(0.05)


def end_of(line: Mapping[str, Any]) -> float:
    """When a request was over, seconds by the server's clock."""
    return datetime.fromisoformat(line["time"]).timestamp()


async def first_token_s(server: Serving) -> float:
    """Of a paid request: seconds to its first token."""
    got = Stream()
    began = monotonic()
    paid = asyncio.create_task(stream(server, "a", key=PAID, into=got, max_tokens=1))
    await until_text(got, 1)
    took = monotonic() - began
    await paid
    assert got.done
    return took
