"""The log of a running server: one line a request and an event, no prompt, no key, and nobody waits for its reader."""

from __future__ import annotations

import fcntl
import json
import os
import signal
import subprocess
from typing import Any

import aiohttp
import anyio
import anyio.to_thread
import pytest

from onebit.running import servers
from tests.operating.conftest import FREE, PAID, Site, chat
from tests.support.fake_build import starts
from tests.support.serving import Serving, command

pytestmark = pytest.mark.anyio
CHAT = "/v1/chat/completions"
SECRET = "the prompt that nobody may read"


def lines(server: Serving) -> list[dict[str, Any]]:
    """The log's lines so far; all else that was printed is no JSON."""
    return [json.loads(line) for line in server.output if line.startswith("{")]


async def until(server: Serving, **wanted: Any) -> dict[str, Any]:
    """The first line of the log with these fields."""
    with anyio.move_on_after(server.patience):
        while True:
            for line in lines(server):
                if wanted.items() <= line.items():
                    return line
            await anyio.sleep(0.02)
    raise AssertionError(f"no line with {wanted}:\n{server.text}")


async def test_a_line_for_each_request_and_event(site: Site) -> None:
    async with site.serve() as server:
        free = {"Authorization": f"Bearer {FREE}"}
        for model, more in (("chat", {}), ("chat", {"stream": True}), ("small", {})):
            body = chat(model, SECRET, **more)
            headers = {**free, "X-Request-Id": f"mine-{model}-{len(more)}"}
            async with server.session.post(server.url + CHAT, json=body, headers=headers) as response:
                assert response.status == 200
                await response.read()
        status, _, headers_back = await server.post(CHAT, **chat("unknown", SECRET))
        assert status == 404
        for name in ("mine-chat-0", "mine-chat-1", "mine-small-0"):
            line = await until(server, id=name)
            assert (
                line
                | {
                    "logger": "onebit.access",
                    "key": "club",
                    "tier": "free",
                    "model": name.split("-")[1],
                    "engine": "cpu",
                    "tokens": 3,
                    "outcome": "ok",
                    "status": 200,
                    "preemptions": 0,
                }
                == line
            )
            assert 0 <= line["wait"] <= line["first_token"] <= line["seconds"]
        refused = await until(server, id=headers_back["x-request-id"])
        assert (refused["key"], refused["status"], refused["outcome"]) == ("shop", 404, "model_not_found")
        assert refused["engine"] is None and refused["tokens"] is None
        assert len([line for line in lines(server) if line["logger"] == "onebit.access"]) == 4

        loaded = await until(server, event="loaded", model="small")
        assert loaded["message"] == f"small: loaded in {loaded['seconds']:.1f} s" and loaded["level"] == "info"
        pid = (await server.engines())[0]["pid"]
        os.kill(pid, signal.SIGKILL)
        crashed = await until(server, event="engine_crashed", model="chat")
        assert crashed["level"] == "warning" and "SIGKILL" in crashed["cause"]
        again = await until(server, event="engine_ready", model="chat", restarts=1)
        assert again["message"] == "chat, engine cpu: ready again, restart 1"
        assert SECRET not in server.text and FREE not in server.text and PAID not in server.text


async def test_an_eviction_names_the_tier_it_was_for(site: Site) -> None:
    site.config["models"]["chat"] |= {"preload": False}
    site.config["memory"] = "60MiB"  # room for one of the two
    site.config |= {"min_residency": 0, "protect": 0}
    async with site.serve() as server:
        for model in ("chat", "small"):
            status, answer, _ = await server.post(CHAT, **chat(model))
            assert status == 200, answer
        line = await until(server, event="unloaded", model="chat")
        assert (line["message"], line["reason"]) == ("chat: evicted for paid", "evicted")


async def test_people_get_lines_of_their_own(site: Site) -> None:
    site.config["log_format"] = "human"
    async with site.serve() as server:
        await server.post(CHAT, **chat("chat"))
        with anyio.fail_after(server.patience):
            while not any("chat/cpu paid shop" in line for line in server.output):
                await anyio.sleep(0.02)
        (line,) = [line for line in server.output if "chat/cpu paid shop" in line]
        assert line[8:].startswith(" 200 ") and "3 tok" in line and not lines(server)


async def test_a_server_whose_stderr_nobody_reads_goes_on(site: Site) -> None:
    site.write()
    reading, writing = os.pipe()
    fcntl.fcntl(writing, fcntl.F_SETPIPE_SZ, 4096)  # the start panel and a few lines fill it
    process = subprocess.Popen(
        command("serve", "--port", "0", "--config", site.file),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=writing,
        start_new_session=True,
    )
    os.close(writing)
    try:
        with anyio.fail_after(60):
            while not (there := servers()):
                await anyio.sleep(0.05)
        async with aiohttp.ClientSession(headers={"Authorization": f"Bearer {PAID}"}) as session:
            for _ in range(60):
                async with session.post(there[0].note.url + CHAT, json=chat("chat")) as response:
                    assert response.status == 200
                    await response.read()
        process.send_signal(signal.SIGINT)
        assert await anyio.to_thread.run_sync(process.wait, 30) == 0
    finally:
        process.kill()
        process.wait()
        os.close(reading)
    assert not servers()
    assert len(starts(site.folder / "build/llama-server")) == 1
