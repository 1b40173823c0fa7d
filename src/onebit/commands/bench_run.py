"""Run a sweep and show it: what `onebit bench` and `onebit tune` have in common."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from onebit.bench.results import Result, ResultsFile
    from onebit.bench.sweep import Load, Sweep
    from onebit.bench.target import Setup
    from onebit.errors import OnebitError

INTERRUPTED = 130


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a sweep ended. `failed`: a device, a setup or the rest was left out; `ceiling`: the generator's, chunks/s."""

    results: list[Result]
    ceiling: float | None
    interrupted: bool
    failed: bool

    @property
    def exit_code(self) -> int:
        """Of the program."""
        return INTERRUPTED if self.interrupted else int(self.failed)


def run_sweep(
    setups: list[Setup],
    load: Load,
    measured_on: dict[str, Any],
    file: ResultsFile | None,
    folder: Path,
    skipped: list[OnebitError],
) -> Outcome:
    """Measure all setups and show it. Raises OnebitError when not one row was measured."""
    import anyio

    from onebit.bench import results as stored
    from onebit.bench.ceiling import measure
    from onebit.bench.stopping import stoppable
    from onebit.bench.sweep import Sweep
    from onebit.commands.bench_display import Progress
    from onebit.errors import OnebitError

    facts = {setup.name: {**measured_on, **setup.facts} for setup in setups}
    done = stored.done(file.known, load.settings(), facts) if file is not None else {}
    show = Progress(list(done.values()))
    for error in skipped:
        show.failed("a device", error)
    sweep = Sweep(setups, load, measured_on, show, done, keep=file.add if file is not None else lambda _: None)
    show.clock = sweep.clock
    ceiling: float | None = None
    failure: OnebitError | None = None

    async def work() -> bool:
        nonlocal ceiling
        with stoppable() as scope, show.shown():
            show.doing("how fast is the load generator itself")
            try:
                ceiling = await measure(folder)
            except OnebitError as error:
                show.failed("the generator's own ceiling", error)
            await _ticking(sweep, show)
        return scope.cancelled_caught

    try:
        interrupted = anyio.run(work, backend_options={"use_uvloop": True})
    except OnebitError as error:
        if not sweep.done:
            raise
        interrupted, failure = False, error
    if failure is not None:
        show.failed("the rest", failure)
    return Outcome(list(sweep.done.values()), ceiling, interrupted, bool(sweep.dropped or skipped or failure))


async def _ticking(sweep: Sweep, show: Any) -> None:
    """The sweep, and a sign of life every second."""
    import asyncio

    async def tick() -> None:
        while True:
            await asyncio.sleep(1)
            show.tick()

    ticker = asyncio.ensure_future(tick())
    try:
        await sweep.run()
    finally:
        ticker.cancel()
