"""`onebit status`, `top` and `logs` as people and pipes see them."""

from __future__ import annotations

import json
import os
import pty
import re
import select
import signal
import stat
import struct
import subprocess
import termios
from collections.abc import Iterator
from contextlib import contextmanager
from fcntl import ioctl
from pathlib import Path
from time import monotonic
from typing import Any

import anyio
import anyio.to_thread
import pytest

from onebit import paths
from onebit.running import servers
from tests.operating.conftest import FREE, PAID, Site, chat, onebit
from tests.support.fake_build import change, starts, until_log
from tests.support.serving import command

pytestmark = pytest.mark.anyio
CHAT = "/v1/chat/completions"


async def test_status_shows_who_runs_and_who_waits(site: Site) -> None:
    async with site.serve() as server:
        (start,) = starts(site.folder / "build/llama-server")
        await change(str(start.address), stall_after_chunks=1)

        async def ask(key: str) -> None:
            headers = {"Authorization": f"Bearer {key}"}
            async with server.session.post(server.url + CHAT, json=chat("chat"), headers=headers) as response:
                assert response.status == 200

        async with anyio.create_task_group() as group:
            for key in (PAID, PAID, PAID, FREE, FREE):
                group.start_soon(ask, key)
            await until_log(str(start.address), processing=2)
            while sum((await _model("chat"))["waiting_by_tier"].values()) < 3:
                await anyio.sleep(0.02)
            done = await onebit("status")
            await change(str(start.address), stall_after_chunks=None)
        rows = [re.split(r"\s{2,}", line.strip()) for line in done.stdout.splitlines()]
        assert done.returncode == 0 and done.stdout.isprintable() is False and "\x1b" not in done.stdout
        assert rows[0] == [server.url, "2 running, 3 waiting"]
        header = rows.index(["MODEL", "STATE", "GIB", "ENGINE", "SLOTS", "RUNNING", "WAITING"])
        chat_row, small_row = rows[header + 1 : header + 3]
        assert chat_row[:2] == ["chat", "loaded"] and chat_row[3:5] == ["cpu", "2/2"]
        tiers = " ".join(chat_row[5:])
        assert sum(int(n) for n in re.findall(r"\d+", tiers)) == 5 and "paid" in tiers and "free" in tiers
        assert small_row[:2] == ["small", "unloaded"] and small_row[2].startswith("(")
        assert {len(row) for row in (chat_row, small_row)} == {7}


async def _model(name: str) -> dict[str, Any]:
    done = await onebit("status", "--json")
    value = json.loads(done.stdout)
    assert value["memory"]["card"]["total_bytes"] == 8 << 30
    return next(model for model in value["data"] if model["model"] == name)


async def test_status_says_why_it_cannot_tell(site: Site) -> None:
    none = await onebit("status")
    assert none.returncode == 1 and "no server of yours runs" in none.stderr
    gone = await onebit("status", "--url", "127.0.0.1:9/v1/")
    assert gone.returncode == 1 and "http://127.0.0.1:9 does not answer: Connection refused" in gone.stderr
    async with site.serve() as server:
        locked = await onebit("status", key=None)
        assert locked.returncode == 1 and "set ONEBIT_API_KEY" in locked.stderr
        wrong = await onebit("status", "--url", server.url, key="sk-wrong")
        assert (
            wrong.returncode == 1 and "sk-wrong" not in wrong.stderr and "not one of this server's keys" in wrong.stderr
        )
        note = servers()[0].folder / "server.json"
        assert stat.S_IMODE(note.stat().st_mode) == 0o600
        assert not {PAID, FREE} & set(note.read_text().split('"'))
        server.process.send_signal(signal.SIGKILL)
        await server.wait()
    assert (await onebit("status")).returncode == 1  # its note is still there, but nobody holds its lock
    assert servers() == []


async def test_a_failed_load_is_told_in_one_sentence(site: Site) -> None:
    async with site.serve() as server:
        broken = site.folder / "build/llama-server"
        broken.write_text("#!/bin/sh\necho 'error: out of paper' >&2\nexit 1\n")
        status, answer, _ = await server.post(CHAT, **chat("small"))
        assert status == 503, answer
        done = await onebit("status")
        assert re.search(r"small: it could not be loaded: .*; it is tried again in \d+ s", done.stdout), done.stdout
        printed = await onebit("logs", "small", "-n", "1")
        assert printed.stdout == "error: out of paper\n"


# --- logs --------------------------------------------------------------------------------------------------------


async def test_logs_of_engines_with_their_names(site: Site) -> None:
    site.config["models"]["chat"] = {
        "path": "tiny.gguf",
        "engines": [{"device": "cpu"}, {"device": "vulkan"}],
        "preload": True,
    }
    async with site.serve() as server:
        await server.until(lambda engines: all(engine["state"] == "ready" for engine in engines))
        both = (await onebit("logs", "chat")).stdout.splitlines()
        assert {line.split(" | ")[0] for line in both} == {"cpu", "vulkan"}
        one = (await onebit("logs", "chat", "--engine", "vulkan", "-n", "1")).stdout.splitlines()
        assert len(one) == 1 and "listening on unix://" in one[0]
        for arguments in (("logs", "chatt"), ("logs", "chat", "--engine", "rocm")):
            wrong = await onebit(*arguments)
            assert wrong.returncode == 1 and ("there are: chat" in wrong.stderr or "cpu, vulkan" in wrong.stderr)
    assert "listening" in (await onebit("logs", "chat")).stdout  # the server is gone, the log is not


async def test_logs_follow_through_a_rotation(tmp_path: Path) -> None:
    log = paths.log_dir() / "chat-cpu.log"
    log.parent.mkdir(parents=True)
    log.write_text("old\nlatest\n")
    process = subprocess.Popen(
        command("logs", "chat", "-f", "-n", "1"), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stdout is not None and process.stderr is not None
    try:
        with process.stdout as out, process.stderr:
            assert await anyio.to_thread.run_sync(out.readline) == "latest\n"
            log.rename(log.with_suffix(".log.1"))
            log.write_text("after the rotation\n")
            assert await anyio.to_thread.run_sync(out.readline) == "after the rotation\n"
            process.send_signal(signal.SIGINT)
            assert await anyio.to_thread.run_sync(process.wait) == 130
    finally:
        process.kill()
        process.wait()


# --- top ---------------------------------------------------------------------------------------------------------


class Screen:
    """What a command has drawn on a terminal of 80 columns."""

    def __init__(self, master: int) -> None:
        self.master = master
        self.drawn = ""

    def until(self, text: str, seconds: float = 60) -> str:
        """All that was drawn since the last call, once `text` is in it."""
        end = monotonic() + seconds
        while text not in self.drawn:
            assert monotonic() < end, f"no {text!r} in {self.drawn[-2000:]!r}"
            if select.select([self.master], [], [], 0.2)[0]:
                self.drawn += os.read(self.master, 1 << 16).decode("utf-8", "replace")
        drawn, self.drawn = self.drawn, ""
        return drawn


@contextmanager
def on_terminal(*args: str) -> Iterator[tuple[Screen, subprocess.Popen[bytes]]]:
    master, slave = pty.openpty()
    ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
    env = {**os.environ, "ONEBIT_API_KEY": PAID, "TERM": "xterm-256color"}
    for name in ("COLUMNS", "LINES", "NO_COLOR"):
        env.pop(name, None)
    process = subprocess.Popen(command(*args), stdin=slave, stdout=slave, stderr=slave, env=env, start_new_session=True)
    os.close(slave)
    try:
        yield Screen(master), process
    finally:
        process.kill()
        process.wait()
        os.close(master)


async def test_top_draws_goes_on_after_a_restart_and_ends_with_q(site: Site) -> None:
    with on_terminal("top") as (screen, process):
        assert "no server of yours runs" in await anyio.to_thread.run_sync(screen.until, "q ends")
        for _ in range(2):
            async with site.serve() as server:
                drawn = await anyio.to_thread.run_sync(screen.until, server.url)
                drawn += await anyio.to_thread.run_sync(screen.until, "as of")
                assert "chat" in drawn and "loaded" in drawn and "1;31m" not in drawn
            await anyio.to_thread.run_sync(screen.until, "trying again")
        os.write(screen.master, b"xq")
        assert await anyio.to_thread.run_sync(process.wait, 30) == 0


async def test_top_in_a_pipe_says_what_to_use_instead() -> None:
    done = await onebit("top")
    assert done.returncode == 1 and "onebit status" in done.stderr


# --- a terminal that goes ----------------------------------------------------------------------------------------


async def test_a_server_ends_with_its_terminal_and_does_not_take_that_for_a_reload(site: Site) -> None:
    site.write()
    pid, master = pty.fork()
    if pid == 0:  # the child: its controlling terminal is the pty
        os.execv(command()[0], command("serve", "--port", "0", "--config", str(site.file)))  # noqa: S606
    try:
        screen = Screen(master)
        await anyio.to_thread.run_sync(screen.until, "Ctrl-C stops")
        os.kill(pid, signal.SIGHUP)  # the terminal is there: a reload
        await anyio.to_thread.run_sync(screen.until, "the config was applied")
        (engine,) = starts(site.folder / "build/llama-server")
    finally:
        os.close(master)  # and now it is not
    _, status = await anyio.to_thread.run_sync(os.waitpid, pid, 0)
    assert os.waitstatus_to_exitcode(status) == 0
    assert not Path(f"/proc/{engine.pid}").exists()
