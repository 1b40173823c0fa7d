"""Sweeps over real child processes that play engines: order, resuming, failures, what is started is stopped."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
import pytest

from onebit.bench.arrivals import Arrival
from onebit.bench.ceiling import measure
from onebit.bench.results import Cell, Result
from onebit.bench.row import Figures
from onebit.bench.summary import notes, summaries
from onebit.bench.sweep import Load, Sweep
from onebit.bench.target import EngineSetup, Running, ServeSetup, UrlSetup, engines_running
from onebit.errors import BenchError, EngineFailed, OnebitError
from tests.bench.servers import answering, fake_engine, fake_spec, stream
from tests.support.fake_build import starts

pytestmark = pytest.mark.anyio


@dataclass
class Seen:
    """What a sweep said."""

    doings: list[str] = field(default_factory=list)
    results: list[Result] = field(default_factory=list)
    failures: dict[str, OnebitError] = field(default_factory=dict)

    def doing(self, what: str) -> None:
        """Kept."""
        self.doings.append(what)

    def measured(self, result: Result) -> None:
        """Kept."""
        self.results.append(result)

    def failed(self, setup: str, error: OnebitError) -> None:
        """Kept."""
        self.failures[setup] = error


def _setup(folder: Path, name: str = "cpu", **script: Any) -> EngineSetup:
    return EngineSetup(name, fake_spec(folder, name=name, **script), folder, 30)


def _sweep(setups: list[EngineSetup | UrlSetup], load: Load, **more: object) -> tuple[Sweep, Seen]:
    seen = Seen()
    return Sweep(setups, load, {"cpu": "test"}, seen, **more), seen  # type: ignore[arg-type]


async def test_everything_is_measured_interleaved_and_stopped(tmp_path: Path) -> None:
    setups = [_setup(tmp_path, name, tokens=8, token_delay_s=0.01) for name in ("a", "b")]
    sweep, seen = _sweep([*setups], Load((1, 2), tokens=8, repeats=2))
    await sweep.run()
    order = [(r.cell.setup, r.cell.requests, r.cell.repeat) for r in seen.results]
    assert order == [
        *[("a", 1, 0), ("a", 2, 0), ("b", 1, 0), ("b", 2, 0)],
        *[("b", 2, 1), ("b", 1, 1), ("a", 2, 1), ("a", 1, 1)],
    ]
    for result in seen.results:
        figures = result.figures
        assert not figures.errors and figures.counts_agree and not figures.queued
        assert figures.tokens == 8 * result.cell.requests
        # The fake engine sleeps 10 ms between two tokens, so no answer takes less than 70 ms. What comes after the
        # first token takes what that left of them, however late this machine read it.
        assert figures.total_tok_s is not None and figures.ttft_ms is not None
        assert figures.total_tok_s * (70 - figures.ttft_ms.p99) <= 1000 * 7 * 1.01 * result.cell.requests
    assert sweep.clock.left() == 0
    pids = [start.pid for setup in setups for start in starts(setup.spec.build.path)]
    assert len(pids) == 4 and not any(psutil.pid_exists(pid) for pid in pids)


async def test_what_is_done_is_not_measured_again(tmp_path: Path) -> None:
    load = Load((1, 2), tokens=4, repeats=1)
    first, before = _sweep([_setup(tmp_path)], load)
    await first.run()
    known = {before.results[0].cell: before.results[0]}
    again, seen = _sweep([_setup(tmp_path)], load, done=dict(known))
    await again.run()
    assert [r.cell.requests for r in seen.results] == [2]
    assert set(again.done) == set(first.done)
    nothing, idle = _sweep([_setup(tmp_path)], load, done=dict(again.done))
    await nothing.run()
    assert idle.doings == [], "no engine is started for nothing"


async def test_a_setup_that_does_not_start_is_left_out(tmp_path: Path) -> None:
    broken = _setup(tmp_path, "broken", exit_at_start={"code": 1, "stderr": "failed to load model\n"})
    good = _setup(tmp_path, "good")
    sweep, seen = _sweep([broken, good], Load((1,), tokens=4, repeats=2))
    await sweep.run()
    assert list(seen.failures) == ["broken"] and isinstance(seen.failures["broken"], EngineFailed)
    assert {r.cell.setup for r in seen.results} == {"good"} and len(seen.results) == 2
    assert len(starts(broken.spec.build.path)) == 1, "it is not tried again and again"
    alone, _ = _sweep([broken], Load((1,), tokens=4, repeats=1))
    with pytest.raises(EngineFailed, match="engine cpu"):
        await alone.run()


async def test_an_engine_that_dies_costs_its_row_only(tmp_path: Path) -> None:
    """The warm-up's four tokens pass, the answer's eighth kills it; the next repeat starts another process."""
    dying, good = _setup(tmp_path, "dying", tokens=16, die_after_chunks=8), _setup(tmp_path, "good", tokens=16)
    sweep, seen = _sweep([dying, good], Load((2,), tokens=16, repeats=1))
    await sweep.run()
    (bad,) = [r for r in seen.results if r.cell.setup == "dying"]
    # The second may come only when the first has killed it.
    assert bad.figures.errors in ({"closed early": 2}, {"closed early": 1, "no connection": 1})
    assert bad.figures.total_tok_s is None
    (said,) = [note for note in notes(seen.results, None) if "dying" in note]
    assert said.startswith("dying, 2 requests: ") and "closed early" in said
    (row,) = [row for row in summaries(seen.results) if row.setup == "dying"]
    assert row.total is None and row.errors == 2


async def test_fewer_slots_than_requests_are_seen(tmp_path: Path) -> None:
    """Two slots, four requests: two of them wait without a byte."""
    async with fake_engine(tmp_path, slots=2, tokens=8, token_delay_s=0.02) as engine:
        sweep, seen = _sweep([UrlSetup("server", engine.endpoint, None)], Load((4,), tokens=8, repeats=1))
        await sweep.run()
    (result,) = seen.results
    assert result.figures.queued and result.figures.answers == 4
    assert any("never all ran at once" in note for note in notes(seen.results, None))


async def test_an_open_loop_counts_from_when_a_request_was_due(tmp_path: Path) -> None:
    """One slot, three requests at once, 5 × 20 ms each: the third waits at least 200 ms."""
    arrivals = (Arrival(0.0), Arrival(0.0, prompt_tokens=3), Arrival(0.0, tokens=5))
    async with fake_engine(tmp_path, slots=1, tokens=5, first_token_delay_s=0.02, token_delay_s=0.02) as engine:
        load = Load(tokens=5, repeats=1, arrivals=arrivals, origin="test")
        sweep, seen = _sweep([UrlSetup("server", engine.endpoint, None)], load)
        await sweep.run()
    (result,) = seen.results
    assert result.cell == Cell("server", 0, 0, "open") and result.figures.answers == 3
    assert result.figures.ttft_ms is not None and result.figures.ttft_ms.p99 >= 200


async def test_a_server_that_never_streams_ends_it_with_a_message() -> None:
    body = b'{"choices": [{"text": "all at once"}]}'
    async with answering(stream(body, kind=b"application/json")) as endpoint:
        sweep, _ = _sweep([UrlSetup("server", endpoint, "m")], Load((1,), repeats=1))
        with pytest.raises(BenchError, match="server: not streamed: the server answered in one piece"):
            await sweep.run()


async def test_a_row_that_cannot_be_stored_ends_the_sweep(tmp_path: Path) -> None:
    def full(_: Result) -> None:
        raise BenchError("disk full")

    sweep, seen = _sweep([_setup(tmp_path)], Load((1, 2), tokens=4, repeats=1), keep=full)
    with pytest.raises(BenchError, match="disk full"):
        await sweep.run()
    assert len(sweep.done) == 1 and not seen.failures


async def test_engines_are_stopped_whatever_happens_in_the_block(tmp_path: Path) -> None:
    spec = fake_spec(tmp_path)

    @asynccontextmanager
    async def running() -> AsyncIterator[list[Running]]:
        async with engines_running([spec], tmp_path, 30) as engines:
            yield engines

    with pytest.raises(ZeroDivisionError):
        async with running():
            raise ZeroDivisionError
    assert not psutil.pid_exists(starts(spec.build.path)[-1].pid)


async def test_the_generator_knows_its_own_ceiling(tmp_path: Path) -> None:
    assert await measure(tmp_path) > 0
    hundred_a_second = Result(Cell("cpu", 1, 0), Figures(chunks=200, window_s=2.0))
    assert notes([hundred_a_second], 2000) == []
    assert notes([hundred_a_second], 900) == [
        "cpu, 1 requests: 100 chunks/s, over a tenth of what the generator can read"
    ]


async def test_a_router_that_ends_says_why(tmp_path: Path) -> None:
    setup = ServeSetup("adaptive", ("-m", str(tmp_path / "none.gguf"), "--device", "cpu"), "m", 30)
    with pytest.raises(EngineFailed, match=r"onebit serve for adaptive ended: .*none.gguf"):
        async with setup.run():
            pytest.fail("it came up")
