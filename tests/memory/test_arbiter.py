"""What the arbiter's task for a model must not miss."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import anyio
import pytest

from onebit.engines.state import State
from onebit.engines.supervisor import Engine
from onebit.memory import arbiter
from onebit.memory.arbiter import Arbiter, Home

pytestmark = pytest.mark.anyio


async def test_an_engine_that_fails_while_memory_is_measured_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(arbiter, "_MEASURE_EVERY_S", 3600)
    engine = cast(Any, SimpleNamespace(state=State.READY, spec=SimpleNamespace(name="cpu"), cause="it crashed"))
    home = Home((cast(Engine, engine),))

    async def measure(_: Any) -> dict[str, int]:
        engine.state = State.FAILED
        home.tell()
        return {}

    told: list[str] = []

    class Book:
        def loaded(self, _: str) -> None:
            told.append("loaded")

        def failed(self, _: str, causes: str) -> None:
            told.append(causes)
            home.leave.set()

    looks = Arbiter(measure, lambda _: cast(Any, None), grace=0)
    looks._book = cast(Any, Book())
    with anyio.fail_after(20):
        await looks._until_leave("x", home)
    assert told == ["loaded", "cpu: it crashed"]
