"""Users who ask on and on, for as long as it takes to read the speed of several engines at once."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from time import perf_counter

from onebit.bench.answer import Answer, Ask, ask
from onebit.bench.target import Running
from onebit.errors import BenchError

_LEAST_CHUNKS = 16  # of each engine in use: fewer, and one more or less would be over 6 %
_LONGEST = 5  # times the wanted seconds, for engines that do not even make those
_POLL_S = 0.02


@dataclass(slots=True)
class _User:
    """One user: the answers so far, the last of them growing."""

    answers: list[Answer] = field(default_factory=list)

    @property
    def begun(self) -> bool:
        return bool(self.answers and self.answers[0].token_times)

    def chunks_after(self, start: float) -> int:
        return sum(time > start for answer in self.answers for time in answer.token_times)


async def total_rate(
    engines: Sequence[Running], users: Sequence[int], what: Ask, prompt: Callable[[], str], seconds: float
) -> float:
    """Tokens a second of all engines together, `users[i]` asking `engines[i]` without a pause.

    The clock starts when all have had a token and runs for `seconds`, longer where an engine is slow. What is running
    at its end is cut off. Raises BenchError when a request fails.
    """
    groups = [[_User() for _ in range(count)] for count in users]
    asks = [Ask(engine.model, what.tokens, what.api, what.ignore_eos, what.silence) for engine in engines]

    async def go_on(user: _User, engine: Running, mine: Ask) -> None:
        while True:
            answer = Answer(sent=perf_counter())
            user.answers.append(answer)
            await ask(engine.endpoint, mine, prompt(), into=answer)
            if not answer.good:
                raise BenchError(f"{answer.trouble}: {answer.why}")

    tasks = [
        asyncio.create_task(go_on(user, engine, mine))
        for group, engine, mine in zip(groups, engines, asks, strict=True)
        for user in group
    ]
    try:
        everyone = [user for group in groups for user in group]
        await _until(tasks, lambda: all(user.begun for user in everyone))
        start = perf_counter()

        def enough() -> bool:
            lasted = perf_counter() - start
            slowest = min(sum(user.chunks_after(start) for user in group) for group in groups if group)
            # Nothing at all is no rate: two contended OpenMP engines were silent for over a second.
            return lasted >= seconds and (slowest >= _LEAST_CHUNKS or (slowest > 0 and lasted >= _LONGEST * seconds))

        await _until(tasks, enough)
        length = perf_counter() - start
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    return sum(_tokens(group, start) for group in groups) / length


async def _until(tasks: Sequence[asyncio.Task[None]], true: Callable[[], bool]) -> None:
    """Wait for a condition, or raise what the first user to fail raised."""
    while not true():
        done, _ = await asyncio.wait(tasks, timeout=_POLL_S, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            task.result()


def _tokens(group: Sequence[_User], start: float) -> float:
    """Tokens after `start`: chunks, by the tokens a chunk had in the answers that the server has counted."""
    whole = [answer for user in group for answer in user.answers if answer.usage and answer.token_times]
    chunks = sum(len(answer.token_times) for answer in whole)
    per_chunk = sum(answer.tokens for answer in whole) / chunks if chunks else 1.0
    return per_chunk * sum(user.chunks_after(start) for user in group)
