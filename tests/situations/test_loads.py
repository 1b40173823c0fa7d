"""Loads and unloads that take long, fail, are cancelled, or are met half-way by requests. Fake engines."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

import anyio
import pytest

from tests.situations.client import Stream, ask, count, healthy, models, sdk, stream, until
from tests.situations.conftest import Fakes, Known, Serve
from tests.support.fake_build import change, until_log

pytestmark = pytest.mark.anyio
STUBBORN = {"ignore_term": True}  # its end takes two TERMs and a KILL, seconds apart
SLOW_TO_LOAD = {"loading_s": 3600}  # ended by the test


async def test_a_request_that_hits_the_victim_in_mid_eviction_and_later_cold_loads(fakes: Fakes) -> None:
    lines = (fakes.model("a", STUBBORN), fakes.model("b", {}), fakes.model("c", {}))
    async with fakes.serve(*lines) as server:
        assert (await ask(server, "a")).status == 200
        other = asyncio.create_task(ask(server, "b"))
        await until(server, "a", "unloading")
        back = asyncio.create_task(ask(server, "a"))
        await until(server, "a", lambda model: model["waiting"] == 1)
        assert (await models(server))["a"]["state"] == "unloading"  # it met the eviction half-way
        third = asyncio.create_task(ask(server, "c"))
        assert [answer.status for answer in await asyncio.gather(other, back, third)] == [200, 200, 200]
        for name in "bc":  # and nothing is stuck afterwards
            assert (await ask(server, name)).status == 200
        assert await healthy(server)


async def test_a_load_of_x_adds_nothing_to_y_which_is_loaded(fakes: Fakes) -> None:
    """X loads for as long as the test wants; meanwhile Y does all its work, and none of it waits."""
    async with fakes.serve(fakes.model("x", SLOW_TO_LOAD), fakes.model("y"), room=2) as server:
        assert (await ask(server, "y")).status == 200
        loading = asyncio.create_task(ask(server, "x"))
        await until(server, "x", "loading")
        engine = await fakes.listening("x")
        for _ in range(10):
            for answer in await asyncio.gather(*(ask(server, "y") for _ in range(4))):
                assert answer.status == 200
            now = await models(server)
            assert (now["x"]["state"], now["x"]["waiting"], now["y"]["waiting"]) == ("loading", 1, 0)
        await change(engine, loading_s=0)
        assert (await loading).status == 200


async def test_two_waiters_on_one_load_cause_one_start_and_the_first_is_cancelled(fakes: Fakes) -> None:
    async with fakes.serve(fakes.model("x", SLOW_TO_LOAD)) as server:
        first = asyncio.create_task(ask(server, "x"))
        await until(server, "x", lambda model: model["waiting"] == 1)
        second = asyncio.create_task(ask(server, "x"))
        await until(server, "x", lambda model: model["waiting"] == 2)
        engine = await fakes.listening("x")
        first.cancel()
        await until(server, "x", lambda model: model["waiting"] == 1)
        assert (await models(server))["x"]["state"] == "loading"
        await change(engine, loading_s=0)
        assert (await second).status == 200
        assert fakes.started("x") == 1


async def test_the_only_waiter_on_a_load_leaves_and_the_next_one_is_served(fakes: Fakes) -> None:
    async with fakes.serve(fakes.model("x", SLOW_TO_LOAD), fakes.model("y")) as server:
        first = asyncio.create_task(ask(server, "x"))
        await until(server, "x", "loading")
        await fakes.listening("x")
        first.cancel()
        await until(server, "x", lambda model: model["waiting"] == 0)
        assert (await ask(server, "y")).status == 200  # nobody wants the load any more: it gives way


async def test_a_load_that_fails_cools_down_and_says_why(fakes: Fakes) -> None:
    broken = {"exit_at_start": {"code": 1, "stderr": "error loading model: tensor is broken\n"}}
    async with fakes.serve(fakes.model("x", broken), fakes.model("y")) as server:
        waiting = [asyncio.create_task(ask(server, "x")) for _ in range(3)]
        for answer in await asyncio.gather(*waiting):  # all who waited for it are told, not only the first
            assert (answer.status, answer.code) == (503, "load_failed"), answer.body
            assert "llama-server could not load" in answer.body["error"]["message"]
        begun = fakes.started("x")
        again = await ask(server, "x")
        assert (again.status, again.code) == (503, "load_failed")
        assert 1 <= int(again.headers["Retry-After"]) <= 10
        assert again.headers["x-should-retry"] == "true"
        assert fakes.started("x") == begun  # not tried while it cools down
        told = (await models(server))["x"]
        assert (told["state"], told["bytes"]) == ("unloaded", {}) and 0 < told["cooling_seconds"] <= 10
        assert (await ask(server, "y")).status == 200  # its memory is free
        assert await healthy(server)
        assert await count(server, "onebit_model_load_failures_total", model="x") == 1


async def test_a_load_that_failed_is_tried_again_after_the_pause(fakes: Fakes) -> None:
    bad_once = {"exit_at_start": {"code": 1, "stderr": "error loading model: no\n"}, "fail_first_n_starts": 1}
    async with fakes.serve(fakes.model("x", bad_once)) as server:
        assert (await ask(server, "x")).code == "load_failed"
        async with sdk(server, retries=1) as client:  # the SDK waits as Retry-After says
            done = await client.chat.completions.create(model="x", messages=[{"role": "user", "content": "hi"}])
        assert done.choices[0].message.content
        assert (await models(server))["x"]["cooling_seconds"] is None


async def test_eviction_of_a_busy_model_gives_the_grace_period_and_then_a_clean_refusal(fakes: Fakes) -> None:
    keys = "keys: [{name: shop, key_env: SHOP, tier: paid}]\ndefault_tier: free\nmin_residency: 0\ngrace: 0.5\n"
    stalls = {"stall_after_chunks": 2}
    lines = (fakes.model("a", stalls), fakes.model("b"))
    async with fakes.serve(*lines, top=keys, env={"SHOP": "sk-shop"}) as server:
        got = Stream()
        streaming = asyncio.create_task(stream(server, "a", into=got))
        whole = asyncio.create_task(ask(server, "a"))
        await until(server, "a", lambda model: model["running_by_tier"]["free"] == 2, key="sk-shop")
        await until_log(fakes.address("a"), processing=2)
        assert (await ask(server, "b", key="sk-shop")).status == 200
        await streaming
        assert not got.done and (got.error["type"], got.error["code"]) == ("server_error", "evicted")
        refused = await whole
        assert (refused.status, refused.code) == (503, "evicted")
        assert refused.headers["x-should-retry"] == "true" and int(refused.headers["Retry-After"]) >= 1
        told = await models(server, "sk-shop")
        assert (told["a"]["state"], told["a"]["engines"][0]["slots_in_use"]) == ("unloaded", 0)
        key = {"reason": "evicted", "model": "a", "tier": "free", "for_tier": "paid"}
        assert await count(server, "onebit_model_unloads_total", key="sk-shop", **key) == 1


async def test_a_busy_model_that_must_go_may_finish_within_the_grace_period(fakes: Fakes) -> None:
    keys = "keys: [{name: shop, key_env: SHOP, tier: paid}]\ndefault_tier: free\nmin_residency: 0\ngrace: 1h\n"
    lines = (fakes.model("a", {"stall_after_chunks": 2}), fakes.model("b"))
    async with fakes.serve(*lines, top=keys, env={"SHOP": "sk-shop"}) as server:
        streaming = asyncio.create_task(stream(server, "a"))
        await until(server, "a", lambda model: model["running_by_tier"]["free"] == 1, key="sk-shop")
        await until_log(fakes.address("a"), processing=1)
        paid = asyncio.create_task(ask(server, "b", key="sk-shop"))
        await until(server, "a", "unloading", key="sk-shop")
        await change(fakes.address("a"), stall_after_chunks=None)
        assert (await streaming).done
        assert (await paid).status == 200


async def test_who_meets_protection_is_told_how_long_it_lasts(fakes: Fakes) -> None:
    """The SDK obeys: it waits as the header says, and is served then."""
    keys = "keys: [{name: shop, key_env: SHOP, tier: paid}, {name: club, key_env: CLUB, tier: free}]\n"
    top = f"{keys}min_residency: 0\nprotect: 3\n"
    env = {"SHOP": "sk-shop", "CLUB": "sk-club"}
    async with fakes.serve(fakes.model("a"), fakes.model("b"), top=top, env=env) as server:
        assert (await ask(server, "a", key="sk-shop")).status == 200
        refused = await ask(server, "b", key="sk-club")
        assert (refused.status, refused.code) == (503, "memory_protected")
        seconds, ms = int(refused.headers["Retry-After"]), int(refused.headers["retry-after-ms"])
        assert 1 <= seconds <= 3 and seconds - 1 < ms / 1000 <= seconds
        async with sdk(server, "sk-club", retries=2) as client:
            done = await client.chat.completions.create(model="b", messages=[{"role": "user", "content": "hi"}])
        assert done.choices[0].message.content
        assert (await models(server, "sk-shop"))["a"]["state"] == "unloaded"


@pytest.mark.engine
async def test_1000_requests_timed_to_fall_on_the_idle_unload(real: Serve, known: Mapping[str, Known]) -> None:
    """Some meet a loaded model, some one that is just leaving, some one that is gone; none is lost."""
    idle_s, waves, each = 0.1, 50, 20
    shape = "device: cpu, ctx_size: 512, parallel: 4, idle_unload: 0.1"
    async with real("a", model=shape) as server:
        assert (await ask(server, "a", max_tokens=1)).status == 200

        async def one(delay: float) -> None:
            await anyio.sleep(delay)
            answer = await ask(server, "a", max_tokens=2)
            assert answer.status == 200, answer.body
            assert answer.text and known["a"].words.startswith(answer.text)

        for wave in range(waves):  # around the moment in which it has been idle since the wave before
            first = idle_s * (0.7 + 0.6 * wave / waves)
            async with anyio.create_task_group() as group:
                for number in range(each):
                    group.start_soon(one, first + 0.04 * idle_s * number)
        left = await count(server, "onebit_model_unloads_total", model="a", reason="idle")
        loaded = await count(server, "onebit_model_loads_total", model="a")
        assert left >= waves / 10 and 0 <= loaded - left <= 1
        assert await count(server, "onebit_requests_total", model="a", outcome="ok") == waves * each + 1
        assert await healthy(server)
