"""Engines that die, break off and talk nonsense under requests; shutdown with requests running."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from typing import Any

import anyio
import psutil
import pytest

from tests.router.conftest import Serve, fakes
from tests.router.test_serving import CHAT, body, streamed
from tests.support.fake_build import change, read_log, until_log
from tests.support.serving import Serving, events, gone_or_alive

pytestmark = pytest.mark.anyio
TWO = ["--adaptive", "--adaptive-at", "1", "--device", "cpu,vulkan", "--parallel", "1,4"]


async def ready(server: Serving) -> None:
    await server.until(lambda es: all(e["state"] == "ready" for e in es))


async def raw_stream(server: Serving, path: str = CHAT, **fields: Any) -> list[str]:
    """All lines of a stream, however it ends."""
    payload = {**body(stream=True), **fields}
    async with server.session.post(server.url + path, json=payload) as response:
        assert response.status == 200, await response.text()
        return (await response.text()).split("\n")


def error_of(lines: list[str]) -> dict[str, Any]:
    """The error in the last event of a stream."""
    last = [line for line in lines if line.startswith("data: ")][-1]
    error: dict[str, Any] = json.loads(last[6:])["error"]
    return error


@pytest.mark.parametrize("fault", ["die_after_chunks", "close_after_chunks", "garbage_after_chunks"])
@pytest.mark.parametrize("stream", [True, False])
async def test_before_the_first_byte_another_engine_takes_over(serve: Serve, fault: str, stream: bool) -> None:
    async with serve({}, *TWO) as server:
        await ready(server)
        first, second = fakes(server)
        await change(first, **{fault: -1})
        if stream:
            assert "answer me" in await streamed(server, "answer me")
        else:
            status, answer, _ = await server.post(CHAT, **body("answer me"))
            assert status == 200
            assert "answer me" in answer["choices"][0]["message"]["content"]
        assert len((await read_log(second))["requests"]) == 1


async def test_with_one_engine_the_request_waits_for_its_restart(serve: Serve) -> None:
    async with serve({}) as server:
        (engine,) = await server.engines()
        await change(fakes(server)[0], die_after_chunks=-1)
        assert "answer me" in await streamed(server, "answer me")
        (again,) = await server.engines()
        assert again["restarts"] == 1 and again["pid"] != engine["pid"]
        assert "SIGKILL" in again["last_error"]


async def test_a_request_is_tried_twice_not_for_ever(serve: Serve) -> None:
    async with serve({"die_after_chunks": -1}) as server:
        status, answer, headers = await server.post(CHAT, **body())
        assert (status, answer["error"]["code"]) == (502, "engine_lost")
        assert "Retry-After" in headers


@pytest.mark.parametrize("fault", ["die_after_chunks", "close_after_chunks", "garbage_after_chunks"])
async def test_after_the_first_byte_the_stream_ends_with_an_error_event(serve: Serve, fault: str) -> None:
    async with serve({fault: 2}) as server:
        lines = await raw_stream(server)
        assert "data: [DONE]" not in lines
        assert sum('"content"' in line for line in lines) >= 2
        error = error_of(lines)
        assert (error["type"], error["code"]) == ("server_error", "engine_lost")
        for line in lines:  # every event is whole, the broken one was held back
            if line.startswith("data: "):
                json.loads(line[6:])
        await server.until(lambda es: es[0]["slots_in_use"] == 0)


async def test_each_protocol_has_its_own_error_event(serve: Serve) -> None:
    async with serve({}) as server:
        await change(fakes(server)[0], close_after_chunks=2)
        messages = await raw_stream(server, "/v1/messages", max_tokens=10)
        assert "event: error" in messages
        last = json.loads([line for line in messages if line.startswith("data: ")][-1][6:])
        assert (last["type"], last["error"]["type"]) == ("error", "api_error")
        await server.until(lambda es: es[0]["state"] == "ready")
        responses = await raw_stream(server, "/v1/responses", input="hi")
        last = json.loads([line for line in responses if line.startswith("data: ")][-1][6:])
        assert (last["type"], last["code"]) == ("error", "engine_lost")


async def test_an_error_event_of_the_engine_goes_through_and_nothing_is_added(serve: Serve) -> None:
    async with serve({"error_event_after_chunks": 2}) as server:
        lines = await raw_stream(server)
        assert error_of(lines)["message"] == "Context size has been exceeded."
        assert sum('"error"' in line for line in lines) == 1
        status, answer, _ = await server.post(CHAT, **body())
        assert (status, answer["error"]["code"]) == (500, 500)


async def test_one_dead_engine_never_takes_the_other_down(serve: Serve) -> None:
    async with serve({"stall_after_chunks": 2}, *TWO) as server:
        await ready(server)
        first, second = fakes(server)
        async with server.session.post(server.url + CHAT, json=body("one", stream=True)) as on_first:
            await until_log(first, processing=1)
            async with server.session.post(server.url + CHAT, json=body("two", stream=True)) as on_second:
                await until_log(second, processing=1)
                os.kill((await server.engines())[0]["pid"], signal.SIGKILL)
                assert error_of((await on_first.text()).split("\n"))["code"] == "engine_lost"
                await change(second, stall_after_chunks=None)
                assert [e async for e in events(on_second)][-1] == "[DONE]"
        await ready(server)


async def test_shutdown_lets_running_requests_finish_and_refuses_new_ones(serve: Serve) -> None:
    async with serve({"stall_after_chunks": 1}) as server:
        (fake,) = fakes(server)
        async with server.session.post(server.url + CHAT, json=body("last", stream=True)) as response:
            await until_log(fake, processing=1)
            server.process.send_signal(signal.SIGINT)
            while "stopping:" not in server.text:
                await anyio.sleep(0.01)
            status, answer, headers = await server.post(CHAT, **body("too late"))
            assert (status, answer["error"]["code"]) == (503, "unavailable")
            assert "Retry-After" in headers
            await change(fake, stall_after_chunks=None)
            assert [e async for e in events(response)][-1] == "[DONE]"
        assert await server.wait() == 0


@pytest.mark.parametrize("stream", [True, False])
async def test_what_outlasts_the_grace_period_is_cut_off_and_told(serve: Serve, stream: bool) -> None:
    async with serve({"stall_after_chunks": 1}, "--grace", "0.3") as server:
        (fake,) = fakes(server)
        asked = asyncio.create_task(_answer(server, stream))
        await until_log(fake, processing=1)
        server.process.send_signal(signal.SIGTERM)
        status, text = await asked
        assert status == (200 if stream else 503)
        assert "shutting down" in text and "[DONE]" not in text
        assert await server.wait() == 3
        assert "cut off" in server.text


async def _answer(server: Serving, stream: bool) -> tuple[int, str]:
    async with server.session.post(server.url + CHAT, json=body(stream=stream)) as response:
        return response.status, await response.text()


async def test_a_second_ctrl_c_stops_now(serve: Serve) -> None:
    script = {"stall_after_chunks": 1, "ignore_term": True}
    async with serve(script, "--grace", "1h") as server:
        children = psutil.Process(server.process.pid).children(recursive=True)
        asked = asyncio.create_task(_answer(server, True))
        await until_log(fakes(server)[0], processing=1)
        server.process.send_signal(signal.SIGINT)
        while "stopping:" not in server.text:
            await anyio.sleep(0.01)
        server.process.send_signal(signal.SIGINT)
        await asked
        assert await server.wait() == 130
        gone_or_alive(children)


async def test_kill_9_of_the_server_leaves_no_engine(serve: Serve) -> None:
    async with serve({"ignore_term": True}, *TWO) as server:
        await ready(server)
        children = psutil.Process(server.process.pid).children(recursive=True)
        assert len(children) >= 2
        os.kill(server.process.pid, signal.SIGKILL)
        await server.wait()
        gone_or_alive(children)
