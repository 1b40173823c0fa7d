"""Many at once on the real engine, and what happens to them when it is killed."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import anyio
import psutil
import pytest

from onebit.engines.device import Build
from tests.support.serving import Serving, events, gone_or_alive, real_engines, serving, standstill

pytestmark = [pytest.mark.anyio, pytest.mark.engine]
CHAT = "/v1/chat/completions"


def question(n: int, **more: Any) -> dict[str, Any]:
    messages = [{"role": "user", "content": f"Tell me about the number {n}."}]
    return {"model": "demo", "messages": messages, "max_tokens": 8, "stream": True, **more}


async def asked(server: Serving, n: int, **more: Any) -> list[str]:
    async with server.session.post(server.url + CHAT, json=question(n, **more)) as response:
        assert response.status == 200, await response.text()
        return [data async for data in events(response)]


async def test_24_streams_at_once_on_8_slots(cpu_build: Build, demo: Path) -> None:
    async with serving("-m", demo, "--alias", "demo", "--device", "cpu", "--parallel", "8", "-c", "512") as server:
        answers: dict[int, list[str]] = {}

        async def ask(n: int) -> None:
            answers[n] = await asked(server, n)

        async with anyio.create_task_group() as group:
            with standstill(server):
                for n in range(24):
                    group.start_soon(ask, n)
                await server.until(lambda es: es[0]["slots_in_use"] == 8 and es[0]["waiting"] == 16)
        assert len(answers) == 24
        assert all(lines[-1] == "[DONE]" for lines in answers.values())
        (engine,) = await server.engines()
        assert (engine["slots_in_use"], engine["restarts"]) == (0, 0)


async def test_kill_9_of_the_engine_under_streams(cpu_build: Build, demo: Path) -> None:
    """Those that had begun end with an error event, those in line are served after the restart."""
    arguments = ("--alias", "demo", "--device", "cpu", "--parallel", "2", "-c", "2048")
    async with serving("-m", demo, *arguments) as server:
        ends: dict[int, str] = {}
        begun: list[int] = []

        async def ask(n: int) -> None:
            long = {"max_tokens": 1500, "ignore_eos": True} if n < 2 else {}
            async with server.session.post(server.url + CHAT, json=question(n, **long)) as response:
                async for data in events(response):
                    ends[n] = data
                    if n not in begun:
                        begun.append(n)

        async with anyio.create_task_group() as group:
            for n in range(2):
                group.start_soon(ask, n)
            await server.until(lambda _: len(begun) == 2)
            with standstill(server):
                for n in range(2, 5):
                    group.start_soon(ask, n)
                (engine,) = await server.until(lambda es: es[0]["waiting"] == 3)
                os.kill(engine["pid"], signal.SIGKILL)
        assert "engine_lost" in ends[0] and "engine_lost" in ends[1]
        assert [ends[n] for n in (2, 3, 4)] == ["[DONE]"] * 3
        (engine,) = await server.engines()
        assert engine["restarts"] == 1 and "SIGKILL" in engine["last_error"]


async def test_kill_9_of_onebit_takes_the_engine_with_it(cpu_build: Build, demo: Path) -> None:
    async with serving("-m", demo, "--device", "cpu", "-c", "512") as server:
        children = psutil.Process(server.process.pid).children(recursive=True)
        assert real_engines(server)
        os.kill(server.process.pid, signal.SIGKILL)
        await server.wait()
        gone_or_alive(children)


async def test_shutdown_with_requests_of_both_kinds_pending(cpu_build: Build, demo: Path) -> None:
    """llama-server ignores TERM while a non-streaming request is pending; the server must end all the same."""
    arguments = ("--alias", "demo", "--device", "cpu", "--parallel", "2", "-c", "4096", "--grace", "0.5")
    async with serving("-m", demo, *arguments) as server:
        children = psutil.Process(server.process.pid).children(recursive=True)
        long = {"max_tokens": 3000, "ignore_eos": True}
        statuses: list[int] = []

        async def ask(stream: bool, logprobs: bool) -> None:
            body = question(1, **long, stream=stream, logprobs=logprobs)
            async with server.session.post(server.url + CHAT, json=body) as response:
                statuses.append(response.status)
                await response.text()

        async with anyio.create_task_group() as group:
            group.start_soon(ask, True, False)
            group.start_soon(ask, False, True)  # goes to the engine without streaming
            await server.until(lambda es: es[0]["slots_in_use"] == 2)
            await anyio.sleep(0.5)
            server.process.send_signal(signal.SIGINT)
        assert sorted(statuses) == [200, 503]
        assert await server.wait() == 3
        gone_or_alive(children)
