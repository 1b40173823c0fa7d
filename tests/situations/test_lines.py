"""Lines that fill up, clients that vanish, engines that are killed: no slot is lost, and the right one is next."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

import anyio
import openai
import pytest

from tests.situations.client import (
    CHAT,
    Answer,
    Stream,
    ask,
    count,
    healthy,
    models,
    request,
    sdk,
    stream,
    until,
    until_text,
)
from tests.situations.conftest import Fakes, Known, Serve
from tests.support.fake_build import change, read_log, until_log
from tests.support.serving import PATIENCE_S, Serving

pytestmark = pytest.mark.anyio

KEYS = """\
keys:
  - {name: shop, key_env: SHOP, tier: paid}
  - {name: club, key_env: CLUB, tier: free}
  - {name: crowd, key_env: CROWD, tier: free}
  - {name: capped, key_env: CAPPED, tier: subscriber, max_in_flight: 2}
default_tier: free
"""
ENV = {"SHOP": "sk-shop", "CLUB": "sk-club", "CROWD": "sk-crowd", "CAPPED": "sk-capped"}


def said(log: Mapping[str, Any]) -> list[str]:
    """What the engine was asked, in the order in which it began."""
    return [entry["body"]["messages"][0]["content"] for entry in log["requests"]]


@asynccontextmanager
async def one_at_work(fakes: Fakes, *, top: str = KEYS, parallel: int = 1) -> AsyncIterator[tuple[Serving, str]]:
    """A server whose only model has all slots taken, until the stall of its engine ends."""
    line = fakes.model("x", {"stall_after_chunks": 1, "tokens": 2}, parallel=parallel)
    async with fakes.serve(line, top=top, env=ENV) as server:
        async with anyio.create_task_group() as group:
            for _ in range(parallel):
                group.start_soon(ask, server, "x", "first")
            engine = await fakes.listening("x")
            with anyio.fail_after(PATIENCE_S):
                await until_log(engine, processing=parallel)
            yield server, engine


async def test_parallel_1_queue_1_six_requests_four_are_refused_at_once(fakes: Fakes) -> None:
    async with one_at_work(fakes, top="max_waiting: 1\n") as (server, engine):
        second = asyncio.create_task(ask(server, "x", "second"))
        await until(server, "x", lambda model: model["waiting"] == 1)
        async with sdk(server) as client:
            for _ in range(4):  # refused while the first two are where they were
                with pytest.raises(openai.RateLimitError) as refused:
                    await client.chat.completions.create(model="x", messages=[{"role": "user", "content": "no"}])
                headers = refused.value.response.headers
                assert refused.value.code == "queue_full"
                assert headers["x-should-retry"] == "true"
                assert 1 <= int(headers["retry-after"]) <= 60 and int(headers["retry-after-ms"]) >= 1000
        assert (await models(server))["x"]["waiting"] == 1
        await change(engine, stall_after_chunks=None)
        assert (await second).status == 200
        assert said(await read_log(engine)) == ["first", "second"]


async def test_the_sdk_tries_again_as_it_is_told_and_all_six_are_served(fakes: Fakes) -> None:
    async with one_at_work(fakes, top="max_waiting: 1\n") as (server, engine):
        async with sdk(server, retries=8) as client:

            async def one(number: int) -> None:
                done = await client.chat.completions.create(
                    model="x", messages=[{"role": "user", "content": f"number {number}"}]
                )
                assert f"number {number}" in str(done.choices[0].message.content)

            async with anyio.create_task_group() as group:
                for number in range(5):
                    group.start_soon(one, number)
                while not await count(server, "onebit_requests_total", outcome="queue_full"):
                    await anyio.sleep(0.02)
                await change(engine, stall_after_chunks=None)


async def test_a_paid_request_and_500_queued_free_ones(fakes: Fakes) -> None:
    """It waits as in an empty line: for the next slot that comes free, and for nobody who came before it."""
    async with one_at_work(fakes, parallel=4) as (server, engine):
        async with anyio.create_task_group() as group:
            for number in range(500):
                group.start_soon(served, server, f"free {number}")
            await until(server, "x", lambda model: model["waiting_by_tier"]["free"] == 500, key="sk-shop")
            group.start_soon(served, server, "paid", "sk-shop")
            await until(server, "x", lambda model: model["waiting_by_tier"]["paid"] == 1, key="sk-shop")
            await change(engine, stall_after_chunks=None)
        order = said(await read_log(engine))
        assert len(order) == 505
        assert order.index("paid") == 4  # right after the four that were at work
        # Nobody of one key passes another of the same key.
        free = [int(text.removeprefix("free ")) for text in order if text.startswith("free ")]
        assert sorted(free) == list(range(500))
        assert await healthy(server)


async def served(server: Serving, text: str, key: str = "") -> Answer:
    answer = await ask(server, "x", text, key=key)
    assert answer.status == 200 and text in answer.text
    return answer


async def test_one_keys_200_requests_do_not_starve_another_keys_one(fakes: Fakes) -> None:
    async with one_at_work(fakes) as (server, engine):
        async with anyio.create_task_group() as group:
            for number in range(200):
                group.start_soon(served, server, f"crowd {number}", "sk-crowd")
            await until(server, "x", lambda model: model["waiting"] == 200, key="sk-shop")
            group.start_soon(served, server, "club", "sk-club")
            await until(server, "x", lambda model: model["waiting"] == 201, key="sk-shop")
            await change(engine, stall_after_chunks=None)
        order = said(await read_log(engine))
        assert order.index("club") <= 2  # the keys take turns


async def test_max_in_flight_bounds_a_key_and_leaves_the_rest_to_others(fakes: Fakes) -> None:
    line = fakes.model("x", {"stall_after_chunks": 1, "tokens": 2})
    async with fakes.serve(line, top=KEYS, env=ENV) as server:
        async with anyio.create_task_group() as group:
            for number in range(6):
                group.start_soon(served, server, f"capped {number}", "sk-capped")
            engine = await fakes.listening("x")
            with anyio.fail_after(PATIENCE_S):
                await until_log(engine, processing=2)
            await until(server, "x", lambda model: model["waiting"] == 4, key="sk-shop")
            group.start_soon(served, server, "free", "sk-club")  # a lower tier takes the slot that the key may not
            with anyio.fail_after(PATIENCE_S):
                await until_log(engine, processing=3)
            assert await healthy(server)
            await change(engine, stall_after_chunks=None)
        log = await read_log(engine)
        assert said(log)[2] == "free" and len(log["requests"]) == 7
        runs = [(e["started"], e["ended"]) for e in log["requests"] if "capped" in e["body"]["messages"][0]["content"]]
        assert max(sum(s <= start < e for s, e in runs) for start, _ in runs) <= 2


# --- clients that vanish -------------------------------------------------------------------------------------

_CLIENT = """
import json, sys, urllib.request
url, body = sys.argv[1:]
request = urllib.request.Request(url, body.encode(), {"Content-Type": "application/json"})
answer = urllib.request.urlopen(request)
for line in answer:
    print(line.decode(), end="", flush=True)
"""


def client_process(server: Serving, model: str, **fields: Any) -> subprocess.Popen[str]:
    """A client that is a process of its own, and can be killed."""
    arguments = [server.url + CHAT, json.dumps(request(CHAT, model, "hello", stream=True, **fields))]
    return subprocess.Popen([sys.executable, "-c", _CLIENT, *arguments], stdout=subprocess.PIPE, text=True)


@pytest.mark.parametrize("chunks", [0, 2], ids=["before-the-first-byte", "mid-stream"])
async def test_a_client_is_killed_and_its_slot_is_free(fakes: Fakes, chunks: int) -> None:
    line = fakes.model("x", {"stall_after_chunks": chunks}, parallel=1)
    async with fakes.serve(line) as server:
        with client_process(server, "x") as client:
            engine = await fakes.listening("x")
            with anyio.fail_after(PATIENCE_S):
                await until_log(engine, processing=1)
            if chunks > 0:
                assert client.stdout is not None and client.stdout.readline().startswith("data: ")
            client.kill()
        await until(server, "x", lambda model: model["engines"][0]["slots_in_use"] == 0)
        with anyio.fail_after(PATIENCE_S):
            await until_log(engine, processing=0)
        await change(engine, stall_after_chunks=None)
        assert (await ask(server, "x")).status == 200
        assert await count(server, "onebit_requests_total", model="x", outcome="left") == 1


@pytest.mark.engine
async def test_a_client_of_a_real_engine_is_killed_mid_stream(real: Serve, known: Mapping[str, Known]) -> None:
    async with real("slow", model="device: cpu, parallel: 1, ctx_size: 2048") as server:
        with client_process(server, "slow") as client:
            assert client.stdout is not None
            for _ in range(3):
                await anyio.to_thread.run_sync(client.stdout.readline)
            client.kill()
        await until(server, "slow", lambda model: model["engines"][0]["slots_in_use"] == 0)
        assert (await ask(server, "slow", max_tokens=3)).status == 200
        assert await count(server, "onebit_requests_total", model="slow", outcome="left") == 1


# --- engines that are killed ----------------------------------------------------------------------------------


@pytest.mark.engine
async def test_kill_9_of_an_engine_is_noticed_and_it_is_restarted(real: Serve, known: Mapping[str, Known]) -> None:
    async with real("slow") as server:
        assert (await ask(server, "slow", max_tokens=1)).status == 200
        first = (await models(server))["slow"]["engines"][0]["pid"]
        os.kill(first, signal.SIGKILL)  # idle
        await until(server, "slow", lambda model: model["engines"][0]["restarts"] == 1 and ready(model))
        second = (await models(server))["slow"]["engines"][0]["pid"]
        assert second not in (first, None)
        got = Stream()
        streaming = asyncio.create_task(stream(server, "slow", into=got))
        await until_text(got, 3)
        os.kill(second, signal.SIGKILL)  # at work
        await streaming
        assert got.error["code"] == "engine_lost" and not got.done
        answer = await ask(server, "slow")  # waits for the restart, if need be
        assert answer.text == known["slow"].words
        told = (await models(server))["slow"]
        assert told["engines"][0]["restarts"] == 2 and "SIGKILL" in told["engines"][0]["last_error"]
        assert await healthy(server)


def ready(model: Mapping[str, Any]) -> bool:
    return all(engine["state"] == "ready" for engine in model["engines"])


async def test_a_killed_engine_keeps_its_memory_and_nobody_takes_it_meanwhile(fakes: Fakes) -> None:
    """A crash is no departure: what waits for its memory still waits for its turn."""
    async with fakes.serve(fakes.model("a"), fakes.model("b")) as server:
        assert (await ask(server, "a")).status == 200
        os.kill((await models(server))["a"]["engines"][0]["pid"], signal.SIGKILL)
        answers = await asyncio.gather(*(ask(server, name) for name in "abab"))
        assert [answer.status for answer in answers] == [200] * 4
        assert await healthy(server)


async def test_health_is_red_while_what_is_loaded_does_not_answer(fakes: Fakes) -> None:
    async with fakes.serve(fakes.model("x", {"loading_s": 3600}), fakes.model("y"), room=2) as server:
        assert await healthy(server)  # nothing is loaded, and nothing has to be
        first = asyncio.create_task(ask(server, "x"))
        await change(await fakes.listening("x"), loading_s=0)
        assert (await first).status == 200 and await healthy(server)
        os.kill((await models(server))["x"]["engines"][0]["pid"], signal.SIGKILL)
        while await healthy(server):  # its restart takes as long as the test wants
            await anyio.sleep(0.01)
        waiting = asyncio.create_task(ask(server, "x"))
        assert (await ask(server, "y")).status == 200  # the others do not suffer
        assert not await healthy(server)
        with anyio.fail_after(PATIENCE_S):
            while fakes.started("x") < 2:
                await anyio.sleep(0.01)
        await change(await fakes.listening("x"), loading_s=0)
        assert (await waiting).status == 200 and await healthy(server)
