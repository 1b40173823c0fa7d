"""Room for one model, requests for several: the memory changes hands, and everybody is served. Real engines."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from itertools import pairwise

import anyio
import pytest

from tests.situations.client import TEXT, Stream, ask, count, healthy, models, stream, until, until_text, watched
from tests.situations.conftest import ROOM_FOR_ONE, Known, Serve
from tests.support.serving import standstill

pytestmark = [pytest.mark.anyio, pytest.mark.engine]


async def test_cold_a_then_b_100_ms_later_a_is_answered_before_it_is_evicted(
    real: Serve, known: Mapping[str, Known]
) -> None:
    ended: list[str] = []

    async with real("a", "b") as server, watched(server) as seen:

        async def one(name: str) -> None:
            answer = await ask(server, name)
            ended.append(name)
            assert (answer.status, answer.text) == (200, known[name].words)

        async with anyio.create_task_group() as group:
            group.start_soon(one, "a")
            await anyio.sleep(0.1)
            group.start_soon(one, "b")
        assert ended == ["a", "b"]
        assert await count(server, "onebit_model_unloads_total", model="a", reason="evicted") == 1
        assert await count(server, "onebit_model_loads_total") == 2
    assert seen.processes == 1


async def test_a_idle_and_b_and_c_together_both_finish(real: Serve, known: Mapping[str, Known]) -> None:
    async with real("a", "b", "c") as server:
        assert (await ask(server, "a")).status == 200
        async with watched(server) as seen:
            answers = await asyncio.gather(ask(server, "b"), ask(server, "c"))
        assert [answer.text for answer in answers] == [known["b"].words, known["c"].words]
        assert seen.processes == 1 and seen.over == 0
        assert await count(server, "onebit_model_loads_total") == 3


async def test_b_arrives_while_a_streams_and_the_stream_completes(real: Serve, known: Mapping[str, Known]) -> None:
    async with real("slow", "b") as server, watched(server) as seen:
        got = Stream()
        streaming = asyncio.create_task(stream(server, "slow", into=got))
        await until_text(got, 3)
        with standstill(server):
            other = asyncio.create_task(ask(server, "b"))
            await until(server, "b", lambda model: model["waiting"] == 1)
            assert not streaming.done()
        await streaming
        assert got.done and got.text == known["slow"].words
        assert (await other).text == known["b"].words
        assert seen.processes == 1


async def test_three_streams_to_three_models_each_ends_in_done(real: Serve, known: Mapping[str, Known]) -> None:
    async with real("a", "b", "c") as server, watched(server) as seen:
        streams = await asyncio.gather(*(stream(server, name) for name in "abc"))
        for name, got in zip("abc", streams, strict=True):
            assert got.done and got.text == known[name].words
        assert seen.processes == 1
        assert max(map(len, seen.together)) == 1


async def test_a_b_a_a_c_a_b_c_costs_few_swaps_and_nobody_waits_for_ever(
    real: Serve, known: Mapping[str, Known]
) -> None:
    ended: list[str] = []

    async with real("a", "b", "c") as server:

        async def one(name: str) -> None:
            assert (await ask(server, name)).text == known[name].words
            ended.append(name)

        async with anyio.create_task_group() as group:
            for name in "abaacabc":
                group.start_soon(one, name)
                await anyio.sleep(0.01)
        assert sorted(ended) == sorted("abaacabc")
        # Those who wait for one model are served together, in turn: a a a a b b c c. One may come too late for that.
        assert 1 + sum(one != other for one, other in pairwise(ended)) <= 4
        assert await count(server, "onebit_model_loads_total") <= 4
        assert await healthy(server)


async def test_a_stream_of_requests_for_a_does_not_keep_b_out(real: Serve, known: Mapping[str, Known]) -> None:
    """`max_hold` is the longest that B is passed over, however many more want A."""
    async with real("a", "b", top="max_hold: 0.5") as server:
        stop = anyio.Event()

        async def more_and_more() -> None:
            while not stop.is_set():
                assert (await ask(server, "a")).status == 200

        async with anyio.create_task_group() as group:
            for _ in range(6):  # more than the slots: somebody always waits
                group.start_soon(more_and_more)
            await until(server, "a", lambda model: model["waiting"] > 0)
            assert (await ask(server, "b")).text == known["b"].words
            stop.set()
        assert await count(server, "onebit_model_loads_total", model="b") == 1


async def test_a_free_slot_but_not_enough_bytes_refuses_or_evicts_and_never_loads_both(
    real: Serve, known: Mapping[str, Known]
) -> None:
    keys = "keys: [{name: shop, key_env: SHOP, tier: paid}]\ndefault_tier: free\nprotect: 30"
    async with real("a", "b", top=keys, env={"SHOP": "sk-shop"}) as server:
        async with watched(server, "sk-shop") as seen:
            assert (await ask(server, "a", key="sk-shop")).status == 200
            refused = await ask(server, "b")
            assert (refused.status, refused.code) == (503, "memory_protected")
            assert refused.headers["x-should-retry"] == "true"
            assert 1 <= int(refused.headers["Retry-After"]) <= 30  # the protection that is left
            assert (await models(server, "sk-shop"))["a"]["state"] == "loaded"
            answer = await ask(server, "b", key="sk-shop")
            assert answer.text == known["b"].words
            told = await models(server, "sk-shop")
            assert (told["a"]["state"], told["b"]["state"]) == ("unloaded", "loaded")
        assert seen.processes == 1 and seen.over == 0
        both = sum(model["needs_bytes"]["card"] for model in told.values())
        assert both > int(ROOM_FOR_ONE.removesuffix("MiB")) << 20  # what was measured would not fit together, either


async def test_raw_completions_are_the_known_words_too(real: Serve, known: Mapping[str, Known]) -> None:
    """The ground on which the tests of continued streams stand."""
    async with real("a") as server:
        answer = await ask(server, "a", "\n", path=TEXT, max_tokens=1000)
        assert answer.text == known["a"].words
