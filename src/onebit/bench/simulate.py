"""A discrete-event simulation: the router's own gate and choice, with a profile's service times, in simulated time."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from onebit.bench.answer import Answer, Trouble
from onebit.bench.arrivals import Arrival
from onebit.bench.card_model import CardModel
from onebit.bench.row import Figures, opened
from onebit.bench.virtual_time import run_virtual
from onebit.errors import OnebitError
from onebit.memory.residency import Residency
from onebit.scheduler.audit import check
from onebit.scheduler.choose import EngineView
from onebit.scheduler.gate import Gate, Limits
from onebit.scheduler.lease import Ask
from onebit.scheduler.model import Model, ModelSpec
from onebit.scheduler.profile import Grid
from onebit.scheduler.split import HOLD_GAIN
from onebit.tiers import Tier

_MODEL = "simulated"


@dataclass(frozen=True, slots=True)
class Scene:
    """What is simulated. Two engines as `onebit serve --adaptive` has them."""

    grid: Grid
    slots: tuple[int, int]
    adaptive_at: int | None  # the fixed threshold; None: the choice goes by the profile
    tokens: int
    prompt_tokens: int
    prompt_tok_s: float  # of one prompt; prompts are taken not to slow down those who decode
    tiers: Mapping[Tier, float] = field(default_factory=lambda: {Tier.FREE: 1.0})  # shares of the requests
    hold_gain: float = HOLD_GAIN
    max_waiting: int = 1024
    max_wait: float = 600.0
    seed: int = 1


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came of it. `by_tier`: only of those tiers that had requests; `served`: requests by engine."""

    figures: Figures
    by_tier: Mapping[Tier, Figures]
    served: tuple[int, int]
    longest_line: int


def simulate(scene: Scene, arrivals: Sequence[Arrival]) -> Outcome:
    """Let all arrivals go through the gate and the engines. The same scene and arrivals give the same outcome."""
    return run_virtual(_Simulation(scene).run(arrivals))


class _Simulation:
    def __init__(self, scene: Scene) -> None:
        self._scene = scene
        first, second = scene.slots
        views = (
            EngineView("first", first, rank=0, row_limit=scene.adaptive_at),
            EngineView("second", second, rank=1),
        )
        grid = scene.grid if scene.adaptive_at is None else None
        self._model = Model(ModelSpec(_MODEL, views, {}, grid=grid, hold_gain=scene.hold_gain))
        self._model.residency = Residency.RESIDENT
        self._served: Counter[str] = Counter()
        self._longest = 0
        self._card = CardModel(scene.grid)

    async def run(self, arrivals: Sequence[Arrival]) -> Outcome:
        scene, loop = self._scene, asyncio.get_running_loop()
        self._gate = Gate([self._model], Limits(scene.max_waiting, scene.max_wait), clock=loop.time)
        source = random.Random(scene.seed)  # noqa: S311 - not a secret
        tiers = source.choices(list(scene.tiers), weights=list(scene.tiers.values()), k=len(arrivals))
        async with asyncio.TaskGroup() as group:
            tasks = []
            for arrival, tier in zip(arrivals, tiers, strict=True):
                await asyncio.sleep(max(0.0, arrival.at - loop.time()))
                tasks.append(group.create_task(self._request(arrival, tier)))
        check(self._gate)
        answers = [task.result() for task in tasks]
        by_tier = {
            tier: opened([answer for answer, its in zip(answers, tiers, strict=True) if its is tier])
            for tier in sorted(set(tiers), reverse=True)
        }
        return Outcome(opened(answers), by_tier, (self._served["first"], self._served["second"]), self._longest)

    async def _request(self, arrival: Arrival, tier: Tier) -> Answer:
        scene, loop = self._scene, asyncio.get_running_loop()
        prompt = arrival.prompt_tokens or scene.prompt_tokens
        tokens = arrival.tokens or scene.tokens
        answer = Answer(sent=arrival.at, usage={"completion_tokens": tokens, "prompt_tokens": prompt})
        self._longest = max(self._longest, self._gate.waiting)
        try:
            async with self._gate.admit(Ask(_MODEL, tier=tier)) as lease:
                self._served[lease.engine] += 1
                await asyncio.sleep(prompt / scene.prompt_tok_s)
                first = loop.time()
                await self._card.make(0 if lease.engine == "first" else 1, tokens)
                length = (loop.time() - first) / tokens
        except OnebitError as error:
            answer.trouble, answer.why = Trouble.REFUSED, error.message
            return answer
        answer.token_times = [first + length * (i + 1) for i in range(tokens)]
        answer.ended = loop.time()
        return answer


def bursty(arrivals: Sequence[Arrival], size: int) -> list[Arrival]:
    """The same number at the same average rate, but `size` at a time."""
    return [replace(arrival, at=arrivals[i - i % size].at) for i, arrival in enumerate(arrivals)]
