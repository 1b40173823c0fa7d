"""The whole server on fake engines: bursts, waiting, refusals, keys, bodies."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from typing import Any

import aiohttp
import anyio
import pytest

from tests.router.conftest import Serve, fakes
from tests.support.fake_build import change, read_log, until_log
from tests.support.serving import Serving, events

pytestmark = pytest.mark.anyio
CHAT = "/v1/chat/completions"


def body(text: str = "hi", **more: Any) -> dict[str, Any]:
    return {"model": "demo", "messages": [{"role": "user", "content": text}], **more}


async def streamed(server: Serving, text: str, **more: Any) -> str:
    """The text of a streamed answer, which must end in [DONE]."""
    parts: list[str] = []
    async with server.session.post(server.url + CHAT, json=body(text, stream=True, **more)) as response:
        assert response.status == 200, await response.text()
        async for data in events(response):
            parts.append(data)
    assert parts[-1] == "[DONE]"
    chunks = [json.loads(p) for p in parts[:-1]]
    return "".join(c["choices"][0]["delta"].get("content") or "" for c in chunks if c["choices"])


async def test_a_burst_of_24_puts_8_on_the_first_and_16_on_the_second(serve: Serve) -> None:
    arguments = ["--adaptive", "--adaptive-at", "8", "--device", "cpu,vulkan", "--parallel", "8,16"]
    async with serve({"stall_after_chunks": 1}, *arguments) as server:
        for _ in range(5):
            async with anyio.create_task_group() as group:
                for n in range(24):
                    group.start_soon(streamed, server, f"request {n}")
                engines = await server.until(lambda es: sum(e["slots_in_use"] for e in es) == 24)
                assert [(e["name"], e["slots_in_use"]) for e in engines] == [("cpu", 8), ("vulkan", 16)]
                assert engines[0]["waiting"] == 0
                for fake in fakes(server):
                    await until_log(fake, processing=8 if fake == fakes(server)[0] else 16)
                    await change(fake, stall_after_chunks=None)
            for fake in fakes(server):
                await change(fake, stall_after_chunks=1)
        logs = [await read_log(fake) for fake in fakes(server)]
        assert [log["max_processing"] for log in logs] == [8, 16]
        assert [len(log["requests"]) for log in logs] == [5 * 8, 5 * 16]


async def test_each_client_gets_its_own_answer_streamed_or_whole(serve: Serve) -> None:
    async with serve({"tokens": 5}, "--parallel", "4") as server:
        texts: dict[int, str] = {}

        async def ask(n: int) -> None:
            if n % 2:
                texts[n] = await streamed(server, f"<{n}>")
            else:
                status, answer, _ = await server.post(CHAT, **body(f"<{n}>"))
                assert status == 200
                texts[n] = answer["choices"][0]["message"]["content"]

        async with anyio.create_task_group() as group:
            for n in range(40):
                group.start_soon(ask, n)
        assert len(texts) == 40
        for n, text in texts.items():
            assert text.count(f"<{n}>") == text.count("<") == 5
        (engine,) = await server.engines()
        assert engine["slots_in_use"] == 0


async def test_waiters_are_served_in_their_order_and_the_line_is_bounded(serve: Serve) -> None:
    async with serve({"stall_after_chunks": 1}, "--parallel", "1", "--max-waiting", "3") as server:
        (fake,) = fakes(server)
        async with anyio.create_task_group() as group:
            for n in range(4):
                group.start_soon(streamed, server, f"request {n}")
                await server.until(lambda es, n=n: es[0]["slots_in_use"] + es[0]["waiting"] == n + 1)  # type: ignore[misc]
            status, answer, headers = await server.post(CHAT, **body("one too many"))
            assert (status, answer["error"]["type"], answer["error"]["code"]) == (429, "rate_limit_error", "queue_full")
            assert int(headers["Retry-After"]) >= 1
            assert int(headers["retry-after-ms"]) >= 1000
            await change(fake, stall_after_chunks=None)
        log = await read_log(fake)
        asked = [r["body"]["messages"][0]["content"] for r in log["requests"]]
        assert asked == [f"request {n}" for n in range(4)]
        assert log["max_processing"] == 1


async def test_an_error_of_the_engines_own_is_passed_on_and_logged_as_one(serve: Serve) -> None:
    async with serve({"error_status": 400}, "--parallel", "1") as server:
        status, answer, _ = await server.post(CHAT, **body())
        assert status == 400 and "error" in answer
        await server.until(lambda _: '"outcome": "engine_error", "status": 400' in server.text)


async def test_a_deadline_in_line_is_a_503_with_the_time_to_wait(serve: Serve) -> None:
    async with serve({"stall_after_chunks": 1}, "--parallel", "1", "--max-wait", "0.2") as server:
        async with anyio.create_task_group() as group:
            group.start_soon(streamed, server, "long")
            await server.until(lambda es: es[0]["slots_in_use"] == 1)
            status, answer, headers = await server.post(CHAT, **body())
            assert (status, answer["error"]["code"]) == (503, "wait_timeout")
            assert "Retry-After" in headers and "retry-after-ms" in headers
            await change(fakes(server)[0], stall_after_chunks=None)


async def test_a_client_that_leaves_the_line_frees_its_place(serve: Serve) -> None:
    async with serve({"stall_after_chunks": 1}, "--parallel", "1") as server:
        async with anyio.create_task_group() as group:
            group.start_soon(streamed, server, "first")
            await server.until(lambda es: es[0]["slots_in_use"] == 1)
            leaving = asyncio.create_task(streamed(server, "leaves"))
            await server.until(lambda es: es[0]["waiting"] == 1)
            leaving.cancel()
            await server.until(lambda es: es[0]["waiting"] == 0)
            await change(fakes(server)[0], stall_after_chunks=None)
        log = await read_log(fakes(server)[0])
        assert [r["body"]["messages"][0]["content"] for r in log["requests"]] == ["first"]


@pytest.mark.parametrize("stream", [True, False])
async def test_a_slot_counts_as_free_only_when_the_engine_has_let_go(serve: Serve, stream: bool) -> None:
    """The engine goes on for a while after its client has left: nobody else may be given the slot meanwhile."""
    lingers = 1.0
    async with serve({"stall_after_chunks": 1, "silent_slots_free_s": lingers}, "--parallel", "1") as server:
        (fake,) = fakes(server)
        leaving = asyncio.create_task(server.post(CHAT, **body("leaves", stream=stream)))
        await until_log(fake, processing=1)
        async with anyio.create_task_group() as group:
            group.start_soon(streamed, server, "next")
            await server.until(lambda es: es[0]["waiting"] == 1)
            leaving.cancel()
            await until_log(fake, disconnected=1)
            await change(fake, stall_after_chunks=None)
        first, second = (await read_log(fake))["requests"]
        assert second["came"] >= first["disconnected"] + lingers


async def test_a_client_that_leaves_before_the_headers_keeps_its_slot_until_the_engine_lets_go(serve: Serve) -> None:
    """The engine reads a long prompt: nothing has come yet, and it will not notice for a while."""
    lingers = 1.0
    script = {"headers_delay_s": 0.5, "stall_after_chunks": 1, "silent_slots_free_s": lingers}
    async with serve(script, "--parallel", "1") as server:
        (fake,) = fakes(server)
        leaving = asyncio.create_task(server.post(CHAT, **body("leaves", stream=True)))
        await until_log(fake, processing=1)
        async with anyio.create_task_group() as group:
            group.start_soon(streamed, server, "next")
            await server.until(lambda es: es[0]["waiting"] == 1)
            leaving.cancel()
            await until_log(fake, disconnected=1)
            await change(fake, stall_after_chunks=None, headers_delay_s=0)
        first, second = (await read_log(fake))["requests"]
        assert second["came"] >= first["disconnected"] + lingers


async def test_a_client_that_leaves_before_an_engine_dies_is_not_tried_again(serve: Serve) -> None:
    async with serve({"headers_delay_s": 3600}, "--parallel", "1") as server:
        (fake,) = fakes(server)
        leaving = asyncio.create_task(server.post(CHAT, **body("leaves", stream=True)))
        await until_log(fake, processing=1)
        leaving.cancel()
        await asyncio.wait([leaving])
        os.kill((await server.engines())[0]["pid"], signal.SIGKILL)
        await server.until(lambda es: es[0]["restarts"] == 1 and es[0]["state"] == "ready")
        await server.until(lambda es: es[0]["slots_in_use"] == 0 and es[0]["waiting"] == 0)
        assert (await read_log(fakes(server)[0]))["requests"] == []


async def test_an_answer_in_one_piece_does_not_hold_the_slots_of_those_who_leave(serve: Serve) -> None:
    script = {"stall_after_chunks": 1, "first_token_delay_s": 0}
    async with serve(script, "--parallel", "2") as server:
        (fake,) = fakes(server)
        await change(fake, first_token_delay_s=3600)
        whole = asyncio.create_task(server.post("/v1/messages", model="demo", messages=[], max_tokens=5))
        await until_log(fake, processing=1)
        await change(fake, first_token_delay_s=0)
        leaving = asyncio.create_task(streamed(server, "leaves"))
        await until_log(fake, processing=2)
        leaving.cancel()
        await server.until(lambda es: es[0]["slots_in_use"] == 1)
        assert not whole.done()
        whole.cancel()


async def test_a_crowd_that_leaves_at_once_leaves_nothing_behind(serve: Serve) -> None:
    async with serve({"stall_after_chunks": 2}, "--parallel", "8") as server:
        crowd = [asyncio.create_task(streamed(server, f"{n}")) for n in range(30)]
        await server.until(lambda es: es[0]["slots_in_use"] == 8 and es[0]["waiting"] == 22)
        for task in crowd:
            task.cancel()
        await server.until(lambda es: es[0]["slots_in_use"] == 0 and es[0]["waiting"] == 0)
        await change(fakes(server)[0], stall_after_chunks=None)
        assert "still here" in await streamed(server, "still here")


@pytest.mark.parametrize(
    ("path", "payload", "status", "text"),
    [
        (CHAT, b"", 400, "empty"),
        (CHAT, b'{"model"', 400, "not valid JSON"),
        (CHAT, b'{"model": "demo"}', 400, "'messages' is required"),
        (CHAT, b'{"model": "nope", "messages": []}', 404, "served here: demo"),
        ("/v1/nothing", b"{}", 404, "there is no /v1/nothing"),
        (CHAT, b'{"model": "demo", "messages": "' + b"x" * 2000 + b'"}', 413, "over the limit of 2000 bytes"),
    ],
)
async def test_bad_requests_get_one_clear_message(
    serve: Serve, path: str, payload: bytes, status: int, text: str
) -> None:
    async with (
        serve({}, "--max-body", "2000") as server,
        server.session.post(server.url + path, data=payload) as response,
    ):
        error = (await response.json())["error"]
        assert response.status == status
        assert text in error["message"]
        assert set(error) == {"message", "type", "param", "code"}
        assert response.headers["X-Request-Id"]


async def test_a_body_without_a_length_is_bounded_too(serve: Serve) -> None:
    async def endless() -> Any:
        for _ in range(100):
            yield b"x" * 1000

    async with (
        serve({}, "--max-body", "2000") as server,
        server.session.post(server.url + CHAT, data=endless()) as response,
    ):
        assert response.status == 413


async def test_wrong_methods_and_what_is_told_without_an_engine(serve: Serve) -> None:
    async with serve({}) as server:
        async with server.session.get(server.url + CHAT) as response:
            assert response.status == 405
        async with server.session.get(server.url + "/health") as response:
            assert (response.status, await response.json()) == (200, {"status": "ok"})
        async with server.session.get(server.url + "/v1/models") as response:
            assert [m["id"] for m in (await response.json())["data"]] == ["demo"]
        async with server.session.get(server.url + "/metrics") as response:
            text = await response.text()
            assert 'onebit_slots{engine="vulkan",model="demo"} 4.0' in text


async def test_keys_guard_everything_but_health_and_never_show(serve: Serve) -> None:
    import psutil

    key = "sk-test-0123456789"
    build_args = ["--api-key-file"]
    async with serve({}, *build_args, str(await _key_file(key))) as server:
        for headers, status in (
            ({}, 401),
            ({"Authorization": "Bearer wrong"}, 401),
            ({"Authorization": f"Bearer {key}x"}, 401),
            ({"Authorization": f"Bearer {key}"}, 200),
            ({"X-Api-Key": key}, 200),
        ):
            async with server.session.post(server.url + CHAT, json=body(), headers=headers) as response:
                assert response.status == status
        async with server.session.get(server.url + "/v1/engines") as response:
            assert response.status == 401
        async with server.session.get(server.url + "/health") as response:
            assert response.status == 200
        family = [psutil.Process(server.process.pid), *psutil.Process(server.process.pid).children(recursive=True)]
        assert len(family) >= 2
        assert not any(key in argument for process in family for argument in process.cmdline())
        engine_key = family[1].environ()["LLAMA_API_KEY"]
        assert len(engine_key) >= 32
        assert key not in str(family[1].environ())
        assert not any(engine_key in argument for process in family for argument in process.cmdline())
        assert key not in server.text
        log = await read_log(fakes(server)[0])
        assert key not in json.dumps(log)


async def _key_file(key: str) -> anyio.Path:
    import tempfile

    file = anyio.Path(tempfile.mkdtemp()) / "keys"
    await file.write_text(key + "\n")
    await file.chmod(0o600)
    return file


async def test_unknown_fields_reach_the_engine_and_the_bytes_of_a_stream_are_the_clients(serve: Serve) -> None:
    async with serve({}) as server:
        messages = b'"messages": [{"role":"user","content":"\\u00e4"}]'
        raw = b'{"model": "demo",  "stream": true, ' + messages + b', "mirostat_xyz": 1.50}'
        async with server.session.post(server.url + CHAT, data=raw) as response:
            assert response.status == 200
            await response.read()
        await server.post(CHAT, **body("whole", mirostat_xyz={"deep": [1, 2]}))
        first, second = (await read_log(fakes(server)[0]))["requests"]
        import hashlib

        assert first["sha256"] == hashlib.sha256(raw).hexdigest()
        assert second["body"]["mirostat_xyz"] == {"deep": [1, 2]}
        assert second["body"]["stream"] is True


async def test_the_engines_own_errors_keep_status_code_and_words(serve: Serve) -> None:
    error = {"error": {"code": 400, "message": "too long", "type": "exceed_context_size_error", "n_ctx": 512}}
    async with serve({"error_status": 400, "error_body": error}) as server:
        for stream in (True, False):
            status, answer, _ = await server.post(CHAT, **body(stream=stream))
            assert (status, answer) == (400, error)


async def test_the_clients_request_id_comes_back_unless_it_is_odd(serve: Serve) -> None:
    async with serve({}) as server:
        for given, expected in (("abc-123", "abc-123"), ("x" * 500, None), ("tab\there", None)):
            async with server.session.post(server.url + CHAT, json=body(), headers={"X-Request-Id": given}) as response:
                back = response.headers["X-Request-Id"]
                assert back == expected if expected else back.startswith("req-")


async def test_a_thousand_streams_at_once_none_lost_none_mixed_up(serve: Serve) -> None:
    """Also: two descriptors a stream, so the limit on them must have been raised."""
    count = 1000
    async with serve({"stall_after_chunks": 1, "tokens": 3}, "--parallel", str(count)) as server:
        texts: dict[int, str] = {}

        async def ask(n: int) -> None:
            texts[n] = await streamed(server, f"<{n}>")

        server.session._timeout = aiohttp.ClientTimeout(total=None)
        async with anyio.create_task_group() as group:
            for n in range(count):
                group.start_soon(ask, n)
            await server.until(lambda es: es[0]["slots_in_use"] == count)
            await until_log(fakes(server)[0], processing=count)
            await change(fakes(server)[0], stall_after_chunks=None)
        assert len(texts) == count
        assert all(text.count(f"<{n}>") == text.count("<") == 3 for n, text in texts.items())
