"""The simulator: simple queues whose numbers are known, and the router's own gate in it."""

from __future__ import annotations

import asyncio

import pytest

from onebit.bench.arrivals import Arrival, poisson
from onebit.bench.card_model import CardModel
from onebit.bench.simulate import Scene, bursty, simulate
from onebit.bench.virtual_time import run_virtual
from onebit.scheduler.profile import Grid
from onebit.tiers import Tier

FLAT = Grid({(a, b): 10.0 * (a + b) for a in range(9) for b in range(9) if a + b})  # 10 tok/s each, however many


def _scene(grid: Grid = FLAT, **more: object) -> Scene:
    settings: dict[str, object] = {"slots": (8, 8), "adaptive_at": 8, "tokens": 10, "prompt_tokens": 5}
    return Scene(grid, **{**settings, "prompt_tok_s": 50.0, **more})  # type: ignore[arg-type]


def test_time_passes_only_in_the_simulation() -> None:
    async def day() -> float:
        await asyncio.sleep(86_400)
        return asyncio.get_running_loop().time()

    assert run_virtual(day()) == pytest.approx(86_400)

    async def stuck() -> None:
        await asyncio.Event().wait()

    with pytest.raises(RuntimeError, match="never end"):
        run_virtual(stuck())


def test_one_request_takes_its_prompt_and_its_tokens() -> None:
    """5 tokens at 50 a second, then 10 at 10: the first after 0.1 + 0.1 s, the last after 1.1 s."""
    outcome = simulate(_scene(), [Arrival(0.0)])
    figures = outcome.figures
    assert figures.ttft_ms is not None and figures.ttft_ms.p50 == pytest.approx(200)
    assert figures.window_s == pytest.approx(0.9) and figures.tokens == 10
    assert outcome.served == (1, 0) and outcome.longest_line == 0


def test_a_full_engine_makes_others_wait_their_turn() -> None:
    """One slot, three at once: 1.1 s each, one after the other."""
    grid = Grid({(1, 0): 10.0, (0, 1): 10.0})
    outcome = simulate(_scene(grid, slots=(1, 1), adaptive_at=1), [Arrival(0.0)] * 3)
    assert sum(outcome.served) == 3 and min(outcome.served) == 1, "the third takes the slot that comes free first"
    assert outcome.longest_line <= 1
    assert outcome.figures.ttft_ms is not None and outcome.figures.ttft_ms.p99 > 1200


def test_speeds_change_while_a_request_runs() -> None:
    """Alone at 10, both at once 5 each: the second comes when half of the first is done."""
    grid = Grid({(1, 0): 10.0, (0, 1): 10.0, (1, 1): 10.0})
    ends = {}

    async def main() -> None:
        card = CardModel(grid)

        async def one(engine: int, at: float) -> None:
            await asyncio.sleep(at)
            await card.make(engine, 10)
            ends[engine] = asyncio.get_running_loop().time()

        async with asyncio.TaskGroup() as group:
            group.create_task(one(0, 0.0))
            group.create_task(one(1, 0.5))

    run_virtual(main())
    assert ends[0] == pytest.approx(0.5 + 1.0), "5 tokens at 10, 5 at 5"
    assert ends[1] == pytest.approx(1.5 + 0.5), "5 tokens at 5, 5 at 10"


def test_who_leaves_makes_the_others_faster() -> None:
    grid = Grid({(1, 0): 10.0, (2, 0): 10.0})
    ends: list[float] = []

    async def main() -> None:
        card = CardModel(grid)
        loop = asyncio.get_running_loop()
        going = asyncio.ensure_future(card.make(0, 1000))

        async def staying() -> None:
            await card.make(0, 10)
            ends.append(loop.time())

        task = asyncio.ensure_future(staying())
        await asyncio.sleep(1)
        going.cancel()
        await task

    run_virtual(main())
    assert ends == [pytest.approx(1.5)]


def test_an_m_m_like_queue_keeps_up_or_does_not() -> None:
    """80 tok/s for 10 tokens each on the first engine alone: it serves under 8 a second, and not 20."""
    calm = simulate(_scene(slots=(8, 1)), poisson(2, 300, seed=1))
    assert not calm.figures.errors and calm.figures.ttft_ms is not None and calm.figures.ttft_ms.p95 < 400
    flood = simulate(_scene(slots=(8, 1), max_wait=5.0, max_waiting=50), poisson(20, 120, seed=1))
    assert flood.figures.errors["refused"] > 500 and flood.longest_line <= 51
    assert flood == simulate(_scene(slots=(8, 1), max_wait=5.0, max_waiting=50), poisson(20, 120, seed=1))


def test_paying_users_wait_less_than_others() -> None:
    """More than the engines serve: the gate's own order of tiers shows."""
    tiers = {Tier.PAID: 0.2, Tier.FREE: 0.8}
    outcome = simulate(_scene(slots=(2, 2), tiers=tiers), poisson(4.5, 120, seed=2))
    paid, free = outcome.by_tier[Tier.PAID].ttft_ms, outcome.by_tier[Tier.FREE].ttft_ms
    assert paid is not None and free is not None
    assert paid.p95 * 5 < free.p95


def test_thousands_of_users_in_bursts() -> None:
    arrivals = bursty(poisson(6, 1000, seed=3), 25)
    assert len(arrivals) > 5000 and len({arrival.at for arrival in arrivals}) < 250
    outcome = simulate(_scene(), arrivals)
    assert outcome.figures.answers == len(arrivals) and sum(outcome.served) == len(arrivals)
    assert outcome.served[1] > 0, "a burst of 25 does not fit into the first engine"


def test_the_choice_by_the_profile_is_the_one_that_is_simulated() -> None:
    """The first engine falls off at three requests: the threshold fills it all the same, the profile does not."""
    cliff = {1: 20.0, 2: 40.0, 3: 15.0, 4: 16.0}
    points = {(a, 0): total for a, total in cliff.items()} | {(0, b): 12.0 * b for b in range(1, 5)}
    grid = Grid(points | {(a, b): cliff[a] * 0.8 + 9.0 * b for a in cliff for b in range(1, 5)})
    arrivals = bursty(poisson(1.5, 400, seed=5), 3)
    threshold = simulate(_scene(grid, slots=(4, 4), adaptive_at=4), arrivals).figures
    profile = simulate(_scene(grid, slots=(4, 4), adaptive_at=None), arrivals).figures
    assert threshold.ttft_ms is not None and profile.ttft_ms is not None
    assert profile.user_tok_s is not None and threshold.user_tok_s is not None
    assert profile.user_tok_s > 1.5 * threshold.user_tok_s and profile.ttft_ms.p95 < threshold.ttft_ms.p95
