"""A supervised engine through its whole life, with a real child that can be told to misbehave."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import anyio
import psutil
import pytest

from onebit.engines.device import Build
from onebit.engines.state import State
from onebit.engines.supervisor import Engine, Patience
from tests.engines.specs import spec
from tests.support.fake_build import change, make_fake_build, starts
from tests.support.serving import PATIENCE_S, gone_or_alive

pytestmark = pytest.mark.anyio
QUICK = Patience(
    start=60, poll=0.02, watch=0.05, silence=1.0, stall=0.5, decode=1.0, backoff=0.01, stop=0.3, attempts=3
)


class Watched(Engine):
    """An engine that remembers the states it was in."""

    def __init__(self, build: Path, tmp_path: Path, patience: Patience = QUICK, **changes: Any) -> None:
        self.states: list[State] = []
        super().__init__(
            spec(build=Build(build, "fake", (), "test"), **changes),
            run_dir=tmp_path,
            log=tmp_path / "log" / "engine.log",
            on_change=self._note,
            patience=patience,
        )

    def _note(self, _: Engine) -> None:
        if self.states[-1:] != [self.state]:  # it may also have become doubted
            self.states.append(self.state)

    async def until(self, state: State, starts: int = 1) -> None:
        with anyio.move_on_after(PATIENCE_S):
            while not (self.state is state and self.starts >= starts):
                await anyio.sleep(0.01)
            return
        raise AssertionError(f"{self.state}, not {state}: {self.cause}")


@asynccontextmanager
async def running(engine: Watched) -> AsyncIterator[Watched]:
    async with anyio.create_task_group() as group:
        engine.load()
        group.start_soon(engine.run)
        yield engine
        children = psutil.Process().children(recursive=True)
        engine.stop()
    gone_or_alive(children)


def address(build: Path) -> str:
    return str(starts(build)[-1].address)


async def test_start_ready_stop(tmp_path: Path) -> None:
    build = make_fake_build(tmp_path / "b", {"start_delay_s": 0.2, "loading_s": 0.3})
    async with running(Watched(build, tmp_path)) as engine:
        await engine.until(State.READY)
        assert engine.client is not None and await engine.client.healthy()
        socket = tmp_path / "cpu.sock"
        assert socket.exists()
        assert os.getpgid(engine.pid or 0) == engine.pid  # a Ctrl-C at the terminal does not reach it
    assert engine.states == [State.STARTING, State.READY, State.STOPPED]
    assert not socket.exists()


async def test_a_stale_socket_is_no_obstacle(tmp_path: Path) -> None:
    (tmp_path / "cpu.sock").write_text("stale")
    async with running(Watched(make_fake_build(tmp_path / "b", {}), tmp_path)) as engine:
        await engine.until(State.READY)


async def test_a_port_when_the_path_is_too_long(tmp_path: Path) -> None:
    deep = tmp_path / ("x" * 100)
    deep.mkdir()
    async with running(Watched(make_fake_build(tmp_path / "b", {}), deep)) as engine:
        await engine.until(State.READY)
        assert address(tmp_path / "b" / "llama-server").startswith("http://127.0.0.1:")


async def test_a_killed_engine_is_started_again(tmp_path: Path) -> None:
    build = make_fake_build(tmp_path / "b", {})
    async with running(Watched(build, tmp_path)) as engine:
        for life in (1, 2):
            await engine.until(State.READY, starts=life)
            os.kill(engine.pid or 0, signal.SIGKILL)
        await engine.until(State.READY, starts=3)
        assert "SIGKILL" in str(engine.cause)
    cycle = [State.READY, State.CRASHED, State.STARTING]
    assert engine.states == [State.STARTING, *cycle, *cycle, State.READY, State.STOPPED]


@pytest.mark.parametrize(
    ("script", "cause", "attempts"),
    [
        ({"exit_at_start": {"signal": "SIGILL"}}, "CPU instructions this machine does not have", 1),
        ({"exit_at_start": {"stderr": "error: invalid argument: --nope"}}, "does not know the flag --nope", 1),
        ({"exit_at_start": {"stderr": "failed to load model"}}, "could not load /m/demo.gguf", 1),
        ({"exit_at_start": {"stderr": "cudaMalloc failed: out of memory"}}, "not enough memory", 3),
        ({"exit_at_start": {"code": 7, "stderr": "odd"}}, "exited with status 7: odd", 3),
    ],
)
async def test_a_start_that_keeps_failing_is_given_up_with_the_cause(
    tmp_path: Path, script: dict[str, Any], cause: str, attempts: int
) -> None:
    async with running(Watched(make_fake_build(tmp_path / "b", script), tmp_path)) as engine:
        await engine.until(State.FAILED)
        assert cause in str(engine.cause)
        assert engine.starts == attempts  # what cannot go better is not tried again
        assert State.READY not in engine.states  # not for an instant: requests would be sent to it


async def test_a_start_that_fails_once_is_tried_again(tmp_path: Path) -> None:
    script = {"exit_at_start": {"code": 1, "stderr": "odd"}, "fail_first_n_starts": 2}
    async with running(Watched(make_fake_build(tmp_path / "b", script), tmp_path)) as engine:
        await engine.until(State.READY)
        assert engine.starts == 3


async def test_an_executable_that_cannot_be_started(tmp_path: Path) -> None:
    async with running(Watched(tmp_path / "nothing", tmp_path)) as engine:
        await engine.until(State.FAILED)
        assert "No such file" in str(engine.cause)


async def test_loading_for_ever_is_given_up(tmp_path: Path) -> None:
    build = make_fake_build(tmp_path / "b", {"loading_s": 3600})
    async with running(Watched(build, tmp_path, replace(QUICK, start=1.5))) as engine:
        await engine.until(State.FAILED)
        assert "not ready after 1.5 s" in str(engine.cause)


async def test_a_silent_engine_is_killed_and_started_again(tmp_path: Path) -> None:
    build = make_fake_build(tmp_path / "b", {})
    async with running(Watched(build, tmp_path)) as engine:
        await engine.until(State.READY)
        os.kill(engine.pid or 0, signal.SIGSTOP)  # alive, but it says nothing and obeys no TERM
        await engine.until(State.READY, starts=2)
        assert "no answer to /health" in str(engine.cause)


async def test_an_engine_that_is_busy_and_silent_is_asked_before_it_is_killed(tmp_path: Path) -> None:
    build = make_fake_build(tmp_path / "b", {})
    async with running(Watched(build, tmp_path)) as engine:
        await engine.until(State.READY)
        assert engine.client is not None
        engine.client.live = 1
        engine.client.last_byte -= 3600
        quiet_since = engine.client.last_byte
        with anyio.fail_after(PATIENCE_S):
            while engine.client.last_byte == quiet_since:  # it was asked, and its loop answered
                await anyio.sleep(0.01)
        assert engine.starts == 1


async def test_a_decode_loop_that_hangs_behind_a_healthy_face_is_killed(tmp_path: Path) -> None:
    build = make_fake_build(tmp_path / "b", {})
    async with running(Watched(build, tmp_path)) as engine:
        await engine.until(State.READY)
        assert engine.client is not None

        async def silent(timeout: float = 0) -> int:
            raise TimeoutError

        engine.client.in_work = silent  # type: ignore[method-assign]
        engine.client.whole = 1  # an answer in one piece: nothing is heard of it before its end
        engine.client.last_byte -= 3600
        await engine.until(State.READY, starts=2)
        assert "decode loop gives no sign of life" in str(engine.cause)


async def test_while_a_hung_engine_is_being_killed_it_takes_nothing(tmp_path: Path) -> None:
    build = make_fake_build(tmp_path / "b", {"ignore_term": True})
    async with running(Watched(build, tmp_path, replace(QUICK, stop=1.0))) as engine:
        await engine.until(State.READY)
        await change(address(build), hang_health_after_s=0)
        with anyio.fail_after(PATIENCE_S):
            while engine.client is not None:
                await anyio.sleep(0.005)
        assert engine.doubted and engine.state is State.READY  # and the process is not gone yet
        await engine.until(State.READY, starts=2)
        assert not engine.doubted


async def test_an_engine_log_that_cannot_be_written_stops_nobody(tmp_path: Path) -> None:
    (tmp_path / "log").write_text("a file where the folder should be")
    async with running(Watched(make_fake_build(tmp_path / "b", {}), tmp_path)) as engine:
        await engine.until(State.READY)


async def test_the_run_ends_even_when_term_is_ignored(tmp_path: Path) -> None:
    async with running(Watched(make_fake_build(tmp_path / "b", {"ignore_term": True}), tmp_path)) as engine:
        await engine.until(State.READY)


async def test_a_doubted_engine_takes_nothing_until_it_was_looked_at(tmp_path: Path) -> None:
    build = make_fake_build(tmp_path / "b", {})
    async with running(Watched(build, tmp_path, replace(QUICK, watch=3600))) as engine:
        await engine.until(State.READY)
        engine.doubt()
        assert engine.doubted
        with anyio.fail_after(PATIENCE_S):
            while engine.doubted:
                await anyio.sleep(0.01)
        assert engine.state is State.READY and engine.starts == 1


async def test_a_hang_of_health_alone_is_noticed(tmp_path: Path) -> None:
    build = make_fake_build(tmp_path / "b", {})
    async with running(Watched(build, tmp_path)) as engine:
        await engine.until(State.READY)
        await change(address(build), hang_health_after_s=0)
        await engine.until(State.CRASHED)
        assert "no answer to /health" in str(engine.cause)


async def test_garbage_output_is_bounded_and_logged(tmp_path: Path) -> None:
    from onebit.engines.process import Child

    argv = ["/bin/sh", "-c", "head -c 3000000 /dev/zero | tr '\\0' x; printf '\\377\\n'; echo last"]
    child = Child(argv, {"PATH": "/usr/bin:/bin"}, tmp_path / "x.log")
    assert await child.wait() == 0
    assert child.tail()[-1] == "last"
    assert max(map(len, child.tail())) <= 4096
    assert (tmp_path / "x.log").stat().st_size > 2_900_000


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="this system has no /dev/full")
async def test_a_full_disk_is_nothing_that_the_terminal_hears_of(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from onebit.engines.process import Child

    failed: list[threading.ExceptHookArgs] = []
    monkeypatch.setattr(threading, "excepthook", failed.append)
    (tmp_path / "x.log").symlink_to("/dev/full")
    child = Child(["/bin/sh", "-c", "echo last"], {"PATH": "/usr/bin:/bin"}, tmp_path / "x.log")
    assert await child.wait() == 0
    for thread in threading.enumerate():
        if thread.name == f"log of {child.pid}":
            thread.join()
    assert child.tail() == ["last"]
    assert failed == []
