"""Ending a block from outside: once, at its own block only, and never what must run to its end."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from onebit.router.stoppable import Stoppable, to_its_end

pytestmark = pytest.mark.anyio


class Worker:
    """A task that sits in a stoppable block, and notes how it got out of it."""

    def __init__(self) -> None:
        self.block = Stoppable()
        self.inside = asyncio.Event()
        self.go = asyncio.Event()
        self.notes: list[str] = []
        self.task = asyncio.create_task(self._run())

    async def _run(self) -> None:
        try:
            with self.block:
                self.inside.set()
                await self.go.wait()
                self.notes.append("worked")
            self.notes.append("after the block")
            await asyncio.sleep(0)  # a cancellation left over would strike here
            self.notes.append("at the end")
        except asyncio.CancelledError:
            self.notes.append("cancelled")
            raise


async def test_a_stop_ends_the_block_and_no_more() -> None:
    worker = Worker()
    await worker.inside.wait()
    worker.block.stop()
    worker.block.stop()
    await worker.task
    assert worker.notes == ["after the block", "at the end"]
    assert worker.task.cancelling() == 0


async def test_a_stop_before_or_after_the_block_does_nothing() -> None:
    worker = Worker()
    worker.block.stop()
    await worker.inside.wait()
    worker.go.set()
    await worker.task
    worker.block.stop()
    assert worker.notes == ["worked", "after the block", "at the end"]
    assert not worker.block.stopped


@pytest.mark.parametrize("stop_first", [True, False])
async def test_a_cancellation_from_elsewhere_goes_on(stop_first: bool) -> None:
    worker = Worker()
    await worker.inside.wait()
    acts: list[Callable[[], object]] = [worker.block.stop, worker.task.cancel]
    for act in acts if stop_first else acts[::-1]:
        act()
    with pytest.raises(asyncio.CancelledError):
        await worker.task
    assert worker.notes == ["cancelled"]


async def test_a_stop_in_the_tick_in_which_the_work_got_done_still_ends_the_block() -> None:
    worker = Worker()
    await worker.inside.wait()
    worker.go.set()
    worker.block.stop()
    await worker.task
    assert worker.notes == ["after the block", "at the end"]


async def test_an_error_passes_through_a_stopped_block() -> None:
    block = Stoppable()

    async def fail() -> None:
        with block:
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                raise ValueError("while it was stopped") from None

    task = asyncio.create_task(fail())
    await asyncio.sleep(0)
    block.stop()
    with pytest.raises(ValueError, match="while it was stopped"):
        await task


async def test_work_goes_to_its_end_through_two_cancellations() -> None:
    go = asyncio.Event()
    done: list[bool] = []

    async def work() -> None:
        await go.wait()
        done.append(True)

    task = asyncio.create_task(to_its_end(work()))
    for _ in range(2):
        await asyncio.sleep(0)
        task.cancel()
    await asyncio.sleep(0)
    assert not task.done()
    go.set()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert done == [True]


async def test_the_error_of_work_is_raised() -> None:
    async def work() -> None:
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        await to_its_end(work())
