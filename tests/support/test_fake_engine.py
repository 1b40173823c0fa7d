"""The fake engine behaves as scripted: the other tests lean on it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import aiohttp
import anyio
import anyio.to_thread
import pytest

from tests.support import fake_build
from tests.support.fake_answers import full_text
from tests.support.fake_build import make_fake_build
from tests.support.fake_script import FakeScript

pytestmark = pytest.mark.anyio
KEY = "a key"
CHAT = "/v1/chat/completions"


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@asynccontextmanager
async def engine(
    folder: Path, *flags: str, **script: Any
) -> AsyncIterator[tuple[anyio.abc.Process, aiohttp.ClientSession, str]]:
    """A running fake engine: its process, a session with the key, its address."""
    build = make_fake_build(folder, script)
    argv = [str(build), "-m", "m.gguf", "--host", str(folder / "e.sock"), *flags]
    async with AsyncExitStack() as stack:
        process = await stack.enter_async_context(
            await anyio.open_process(argv, env={"LLAMA_API_KEY": KEY}, stderr=subprocess.PIPE)
        )
        stack.callback(_kill, process)
        while not (seen := fake_build.starts(build)) or seen[-1].address is None:
            assert process.returncode is None
            await anyio.sleep(0.005)
        address = seen[-1].address
        yield process, await stack.enter_async_context(fake_build.session(address, KEY)), address


def _kill(process: anyio.abc.Process) -> None:
    if process.returncode is None:
        process.kill()


def ask(text: str, **more: Any) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": text}], **more}


def events(raw: bytes) -> list[Any]:
    lines = [line.removeprefix("data: ") for line in raw.decode().splitlines() if line.startswith("data: ")]
    return [line if line == "[DONE]" else json.loads(line) for line in lines]


async def first_chunk(response: aiohttp.ClientResponse) -> bytes:
    """Read up to the end of the first event that carries text."""
    raw = b""
    while b'"content":"' not in raw:
        raw += await response.content.readany()
    return raw


async def test_stream_and_whole_answer_have_the_same_words_and_usage(tmp_path: Path) -> None:
    async with engine(tmp_path, "--alias", "fake", "-np", "2", tokens=3) as (_, http, _address):
        async with http.post(CHAT, json=ask("blue sky")) as response:
            whole = await response.json()
        stream = ask("blue sky", stream=True, stream_options={"include_usage": True})
        async with http.post(CHAT, json=stream) as response:
            assert response.headers["Content-Type"] == "text/event-stream"
            got = events(await response.read())
    assert whole["choices"][0]["message"]["content"] == full_text("blue sky", 3)
    assert got[0]["choices"][0]["delta"] == {"role": "assistant", "content": None}
    assert [c["choices"][0]["delta"]["content"] for c in got[1:4]] == [
        "blue sky#0 ",
        "blue sky#1 ",
        "blue sky#2 ",
    ]
    assert got[4]["choices"][0] == {"finish_reason": "stop", "index": 0, "delta": {}}
    assert got[5]["choices"] == []
    assert got[5]["usage"] == whole["usage"]
    assert "timings" in got[5]
    assert got[6:] == ["[DONE]"]
    assert {chunk["model"] for chunk in got[:6]} == {"fake"}


@pytest.mark.parametrize(
    ("path", "body", "find"),
    [
        ("/v1/completions", {"prompt": "hi"}, lambda a: a["choices"][0]["text"]),
        ("/v1/responses", {"input": "hi"}, lambda a: a["output"][0]["content"][0]["text"]),
        ("/v1/messages", ask("hi"), lambda a: a["content"][0]["text"]),
    ],
)
async def test_other_dialects(tmp_path: Path, path: str, body: dict[str, Any], find: Callable[[Any], str]) -> None:
    async with engine(tmp_path) as (_, http, _address):
        async with http.post(path, json={**body, "max_tokens": 2}) as response:
            assert find(await response.json()) == full_text("hi", 2)
        async with http.post(path, json={**body, "max_tokens": 2, "stream": True}) as response:
            raw = (await response.read()).decode()
    assert [raw.count(f'"hi#{i} "') for i in range(3)] == [1, 1, 0]


async def test_key_unknown_paths_and_bad_json(tmp_path: Path) -> None:
    async with engine(tmp_path) as (_, http, address):
        async with fake_build.session(address) as stranger:
            async with stranger.get("/slots") as response:
                assert response.status == 401
                assert (await response.json())["error"]["type"] == "authentication_error"
            async with stranger.get("/health") as response:
                assert response.status == 200
        async with http.post(CHAT, data=b"{no") as response:
            assert response.status == 500
            assert "parse_error" in (await response.json())["error"]["message"]
        async with http.get("/nope") as response:
            assert (await response.json())["error"]["code"] == 404


async def test_more_requests_than_slots_wait_silently(tmp_path: Path) -> None:
    answers: dict[str, bytes] = {}

    async def request(http: aiohttp.ClientSession, text: str) -> None:
        async with http.post(CHAT, json=ask(text, stream=True)) as response:
            answers[text] = b""  # headers are here
            answers[text] = await response.read()

    async with engine(tmp_path, "-np", "1", stall_after_chunks=1) as (_, http, address):
        async with anyio.create_task_group() as group:
            group.start_soon(request, http, "one")
            await fake_build.until_log(address, processing=1)
            group.start_soon(request, http, "two")
            await fake_build.until_log(address, processing=1, waiting=1)
            async with http.get("/slots") as response:
                assert [slot["is_processing"] for slot in await response.json()] == [True]
            assert "two" not in answers  # no headers while it waits
            await fake_build.change(address, stall_after_chunks=None)
        log = await fake_build.until_log(address, processing=0)
    assert log["max_processing"] == 1
    for text, raw in answers.items():
        assert text in raw.decode()
    first, second = log["requests"]
    assert second["started"] >= first["ended"]
    assert "authorization" not in first["headers"]


async def test_a_gone_client_frees_its_slot_when_the_script_says_so(tmp_path: Path) -> None:
    async with engine(tmp_path, stall_after_chunks=1, silent_slots_free_s=3600) as (_, http, address):
        async with http.post(CHAT, json=ask("x", stream=True)) as response:
            await first_chunk(response)
            response.close()
        log = await fake_build.until_log(address, disconnected=1)
        assert log["processing"] == 1  # not noticed for an hour
        await fake_build.change(address, silent_slots_free_s=0)
        async with http.post(CHAT, json=ask("y", stream=True)) as response:
            await first_chunk(response)
            response.close()
        log = await fake_build.until_log(address, max_processing=2, disconnected=2, processing=1)
    assert [entry["ended"] for entry in log["requests"]] == [None, None]


async def raw_answer(address: str, text: str) -> bytes:
    """The bytes of a streamed answer, until the connection ends or what comes is not HTTP."""
    body = json.dumps(ask(text, stream=True)).encode()
    head = f"POST {CHAT} HTTP/1.1\r\nHost: x\r\nX-Api-Key: {KEY}\r\nContent-Length: {len(body)}\r\n\r\n"
    raw = b""
    async with await anyio.connect_unix(address.removeprefix("unix://")) as stream:
        await stream.send(head.encode() + body)
        with suppress(anyio.EndOfStream, anyio.BrokenResourceError):
            while b"no chunk size" not in raw:
                raw += await stream.receive()
    return raw


@pytest.mark.parametrize("fault", ["die_after_chunks", "close_after_chunks", "garbage_after_chunks"])
@pytest.mark.parametrize("chunks", [-1, 0, 2])
async def test_faults_break_the_answer_where_scripted(tmp_path: Path, fault: str, chunks: int) -> None:
    async with engine(tmp_path, **{fault: chunks}) as (process, _, address):
        raw = await raw_answer(address, "x")
        if fault == "die_after_chunks":
            assert await process.wait() == -signal.SIGKILL
    assert raw.startswith(b"HTTP/1.1 200 OK") == (chunks >= 0)
    assert raw.count(b'"content":"') == max(chunks, 0)
    assert (b"no chunk size" in raw) == (fault == "garbage_after_chunks")
    assert b"[DONE]" not in raw
    assert not raw.endswith(b"0\r\n\r\n")


async def test_a_connection_that_closes_after_a_good_answer(tmp_path: Path) -> None:
    async with engine(tmp_path, close_after_answer=True) as (_, _http, address):
        raw = await raw_answer(address, "x")
    assert b"connection: close" not in raw.lower()
    assert raw.endswith(b"data: [DONE]\n\n\r\n0\r\n\r\n")


async def test_a_stopped_process_is_alive_and_silent(tmp_path: Path) -> None:
    async with (
        engine(tmp_path, stop_process_after_chunks=1) as (process, http, _address),
        http.post(CHAT, json=ask("x", stream=True)) as response,
    ):
        await first_chunk(response)
        await anyio.to_thread.run_sync(os.waitid, os.P_PID, process.pid, os.WSTOPPED | os.WNOWAIT)
        with pytest.raises(TimeoutError):
            await http.get("/health", timeout=aiohttp.ClientTimeout(total=0.05))
        process.send_signal(signal.SIGCONT)
        assert events(await response.read())[-1] == "[DONE]"


@pytest.mark.parametrize("again", [False, True])
async def test_a_term_may_wait_for_the_requests(tmp_path: Path, again: bool) -> None:
    async with engine(tmp_path, stall_after_chunks=1, term_waits_for_requests=True) as (process, http, address):
        async with http.post(CHAT, json=ask("x", stream=True)) as response:
            await first_chunk(response)
            process.terminate()
            await fake_build.until_log(address, terms=1, processing=1)
            if again:
                process.terminate()
                assert await process.wait() == 1
                return
        assert await process.wait() == 0  # the client is gone: no request is left


async def test_error_event_and_error_status(tmp_path: Path) -> None:
    async with engine(tmp_path, error_event_after_chunks=1) as (_, http, address):
        async with http.post(CHAT, json=ask("x", stream=True)) as response:
            got = events(await response.read())
        assert got[-1]["error"]["message"] == "Context size has been exceeded."
        body = {"error": {"code": 400, "message": "too long", "type": "exceed_context_size_error"}}
        await fake_build.change(address, error_status=400, error_body=body)
        async with http.post(CHAT, json=ask("x", stream=True)) as response:
            assert (response.status, await response.json()) == (400, body)
        with pytest.raises(ValueError, match="no tokenz"):
            await fake_build.change(address, tokenz=3)


async def test_loading_answers_503_everywhere_until_it_ends(tmp_path: Path) -> None:
    async with engine(tmp_path, loading_s=3600) as (process, http, address):
        for path in ("/health", "/v1/models", "/nope"):
            async with http.get(path) as response:
                assert response.status == 503
                assert (await response.json())["error"]["message"] == "Loading model"
        await fake_build.change(address, loading_s=0)
        assert process.stderr is not None
        line = await process.stderr.receive()
        assert f"listening on {address}".encode() in line
        async with http.get("/health") as response:
            assert await response.json() == {"status": "ok"}


async def test_the_first_starts_fail_and_term_is_obeyed_or_not(tmp_path: Path) -> None:
    failing = {"fail_first_n_starts": 2, "exit_at_start": {"signal": "SIGILL"}}
    build = make_fake_build(tmp_path / "b", failing)
    flags = ["--host", "127.0.0.1", "--port", "0"]
    for _ in range(2):
        assert (await anyio.run_process([str(build), *flags], check=False)).returncode == -signal.SIGILL
    assert [start.address for start in fake_build.starts(build)] == [None, None]
    async with await anyio.open_process([str(build), *flags], stderr=subprocess.PIPE) as process:
        assert process.stderr is not None
        line = (await process.stderr.receive()).decode()
        address = line.split("listening on ")[1].strip()
        assert fake_build.starts(build)[-1] == fake_build.FakeStart(
            process.pid, address, fake_build.starts(build)[-1].argv
        )
        await fake_build.change(address, ignore_term=True)
        process.terminate()
        assert (await fake_build.read_log(address))["pid"] == process.pid
        await fake_build.change(address, ignore_term=False)
        process.terminate()
        assert await process.wait() == 0


async def test_a_stale_socket_a_refused_flag_and_what_a_probe_asks(tmp_path: Path) -> None:
    build = make_fake_build(tmp_path, FakeScript(refuse_flags=("--nope",)), devices=["Vulkan0: llvmpipe (9 MiB)"])
    (tmp_path / "old.sock").touch()
    stale = await anyio.run_process([str(build), "--host", str(tmp_path / "old.sock")], check=False)
    assert stale.returncode == 1
    assert b"couldn't bind HTTP server socket" in stale.stderr
    refused = await anyio.run_process([str(build), "--nope"], check=False)
    assert (refused.returncode, refused.stderr) == (1, b"error: invalid argument: --nope\n")
    version = await anyio.run_process([str(build), "--version"])
    assert version.stderr.startswith(b"version: 0 (fake)\nbuilt with ")
    devices = await anyio.run_process([str(build), "--list-devices"])
    assert devices.stdout == b"Available devices:\n  Vulkan0: llvmpipe (9 MiB)\n"
