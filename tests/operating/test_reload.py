"""An edited config applied to a running server: what did not change is not touched, a mistake changes nothing."""

from __future__ import annotations

import json
import signal
from collections.abc import Mapping
from typing import Any

import anyio
import pytest

from onebit.running import servers
from tests.operating.conftest import FREE, PAID, Site, chat, onebit, state
from tests.support.fake_build import change, starts, until_log
from tests.support.serving import Serving, events

pytestmark = pytest.mark.anyio
CHAT = "/v1/chat/completions"


async def until_state(server: Serving, model: str, **wanted: Any) -> Mapping[str, Any]:
    with anyio.move_on_after(server.patience):
        while True:
            found = (await state(server)).get(model, {})
            if wanted.items() <= found.items():
                return found
            await anyio.sleep(0.02)
    raise AssertionError(f"{model} is still not {wanted}: {await state(server)}\n{server.text}")


async def status_of(server: Serving, body: dict[str, Any], key: str = PAID) -> int:
    headers = {"Authorization": f"Bearer {key}"}
    async with server.session.post(server.url + CHAT, json=body, headers=headers) as response:
        await response.read()
        return response.status


async def applied(site: Site) -> str:
    """Write the config, reload, and return what was said to have changed."""
    site.write()
    done = await onebit("reload")
    assert done.returncode == 0, done.stderr
    return done.stdout.removeprefix("applied: ").strip()


async def test_models_come_go_and_change_around_one_that_streams(site: Site) -> None:
    async with site.serve() as server:
        assert await status_of(server, chat("small")) == 200
        before = await state(server)
        (fake, _) = [str(start.address) for start in starts(site.folder / "build/llama-server")]
        await change(fake, stall_after_chunks=1)
        stream = server.session.post(server.url + CHAT, json=chat("chat", stream=True, max_tokens=3))
        async with stream as response:
            await until_log(fake, processing=1)
            assert await applied(site) == "nothing has changed"
            site.config["models"]["small"] = {"path": "tiny.gguf", "device": "cpu", "parallel": 3}
            site.config["models"]["more"] = {"path": "tiny.gguf", "device": "cpu", "preload": True}
            assert await applied(site) == "+more ~small"
            assert await status_of(server, chat("small")) == 200
            assert (await state(server))["small"]["engines"][0]["slots"] == 3
            await until_state(server, "more", state="loaded")
            del site.config["models"]["small"]
            assert await applied(site) == "-small"
            assert await status_of(server, chat("small")) == 404
            await change(fake, stall_after_chunks=None)
            assert [data async for data in events(response)][-1] == "[DONE]"
        after = await state(server)
        assert set(after) == {"chat", "more"}
        assert after["chat"]["engines"] == before["chat"]["engines"]  # the same process, never started again
        site.config["models"]["small"] = {"path": "tiny.gguf", "device": "cpu", "parallel": 1}
        assert await applied(site) == "+small"
        assert await status_of(server, chat("small")) == 200


async def test_a_model_that_changes_finishes_what_runs_and_serves_who_waits_with_the_new_one(site: Site) -> None:
    async with site.serve() as server:
        (start,) = starts(site.folder / "build/llama-server")
        await change(str(start.address), stall_after_chunks=1)
        async with server.session.post(server.url + CHAT, json=chat("chat", stream=True)) as response:
            await until_log(str(start.address), processing=1)
            site.config["models"]["chat"]["parallel"] = 3
            assert await applied(site) == "~chat"
            assert (await state(server))["chat"]["state"] == "unloading"
            # Twice more while the old engine is still there: the last word counts.
            site.config["models"]["chat"]["parallel"] = 4
            assert await applied(site) == "~chat"
            site.config["models"]["chat"]["idle_unload"] = "1h"
            assert await applied(site) == "~chat"
            statuses: list[int] = []

            async def ask() -> None:
                statuses.append(await status_of(server, chat("chat")))

            async with anyio.create_task_group() as group:
                group.start_soon(ask)
                await until_state(server, "chat", waiting=1)
                await change(str(start.address), stall_after_chunks=None)
                assert [data async for data in events(response)][-1] == "[DONE]"
        assert statuses == [200]
        engine = (await until_state(server, "chat", state="loaded"))["engines"][0]
        assert engine["slots"] == 4 and engine["state"] == "ready"
        assert len(starts(site.folder / "build/llama-server")) == 2


async def test_rules_keys_and_limits_change_without_a_new_start(site: Site) -> None:
    async with site.serve() as server:
        before = (await state(server))["chat"]["engines"]
        site.config["keys"][1]["key_env"] = "NEW_KEY"
        site.write()
        refused = await onebit("reload")  # the variable is the server's, which was started without it
        assert refused.returncode == 2 and "NEW_KEY is not set" in refused.stderr
        assert await status_of(server, chat("chat"), FREE) == 200

        (site.folder / "club.key").write_text("sk-rotated\n")
        (site.folder / "club.key").chmod(0o600)
        site.config["keys"][1] = {"name": "club", "key_file": "club.key", "tier": "free"}
        site.config |= {"max_waiting": 0, "max_body": "1KiB", "max_wait": "5s"}
        site.config["models"]["chat"]["idle_unload"] = "1h"
        assert await applied(site) == "~chat; max_waiting, max_wait, max_body, keys"
        assert await status_of(server, chat("chat"), FREE) == 401
        assert await status_of(server, chat("chat"), "sk-rotated") == 200
        assert await status_of(server, chat("chat", "x" * 2000)) == 413

        (start,) = starts(site.folder / "build/llama-server")
        await change(str(start.address), stall_after_chunks=1)
        async with anyio.create_task_group() as group:
            for _ in range(2):
                group.start_soon(status_of, server, chat("chat", stream=True))
            await until_log(str(start.address), processing=2)
            assert await status_of(server, chat("chat")) == 429  # the line has no place any more
            await change(str(start.address), stall_after_chunks=None)
        assert (await state(server))["chat"]["engines"] == before


async def test_a_mistake_changes_nothing_and_is_told_with_its_line(site: Site) -> None:
    async with site.serve() as server:
        before = await state(server)
        good = site.file.read_text()
        for edit, told in (
            (good.replace("parallel: 1", "paralel: 1"), "did you mean parallel?"),
            (good.replace("memory: 8GiB", "memory: 24 gigs"), "'24 gigs' is not a size"),
            (good.replace("memory: 8GiB", "memory: 1MiB"), "and there are 0.00"),
            (good.replace("memory: 8GiB", "grace: 30s"), "memory: it cannot be set or taken away"),
            (good + "host: localhost\n", "host: it cannot change while the server runs"),
            (good.replace("device: cpu", "device: rocm", 1), "rocm"),
            (good + "models: [", "onebit.yaml:"),
            (None, "onebit.yaml"),
        ):
            if edit is None:
                site.file.unlink()
            else:
                site.file.write_text(edit)
            done = await onebit("reload")
            text = " ".join(done.stderr.split())
            assert done.returncode == 2 and "nothing has changed" in text, (edit, text)
            assert told in text, (edit, text)
            assert "Traceback" not in server.text
        after = await state(server)
        for name, model in before.items():
            for field in ("state", "engines"):
                assert after[name][field] == model[field]
        site.file.write_text(good)
        assert (await onebit("reload")).stdout == "applied: nothing has changed\n"


async def test_sighup_does_the_same_and_many_at_once_are_few(site: Site) -> None:
    async with site.serve() as server:
        (there,) = servers()
        assert (there.note.pid, there.note.url) == (server.process.pid, server.url)
        assert there.note.config == str(site.file) and there.outcome() is None
        site.config["models"]["more"] = {"path": "tiny.gguf", "device": "cpu"}
        site.write()
        for _ in range(20):
            server.process.send_signal(signal.SIGHUP)
        await until_state(server, "more", state="unloaded")
        with anyio.fail_after(server.patience):
            while there.outcome() is None:
                await anyio.sleep(0.02)
        with anyio.fail_after(server.patience):  # the log comes in batches, after the outcome
            while not (told := [json.loads(line)["message"] for line in server.output if '"onebit.reload"' in line]):
                await anyio.sleep(0.02)
        assert told[0] == "the config was applied: +more" and len(told) <= 20
        assert set(told[1:]) <= {"the config was applied: nothing has changed"}


async def test_where_no_server_runs_there_is_nothing_to_reload() -> None:
    done = await onebit("reload", "--url", "localhost:9")
    assert done.returncode == 1
    assert "no server of yours runs at http://localhost:9" in done.stderr and "fix:" in done.stderr
