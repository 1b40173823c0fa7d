"""Two different real devices behind --adaptive: the CPU, and Vulkan on whatever card there is (Mesa's llvmpipe)."""

from __future__ import annotations

from pathlib import Path

import anyio
import pytest

from onebit.engines.device import Build
from tests.end_to_end.test_load import asked
from tests.support.serving import events, serving, standstill

pytestmark = [pytest.mark.anyio, pytest.mark.vulkan, pytest.mark.timeout(600)]


@pytest.mark.parametrize("order", ["cpu,vulkan", "vulkan,cpu"])
async def test_the_burst_is_split_exactly_and_both_answer(
    vulkan_build: Build, cpu_build: Build, demo: Path, order: str
) -> None:
    """Short prompts and answers: llvmpipe decodes the demo at about 2 tok/s."""
    first, second = order.split(",")
    arguments = ("--alias", "demo", "--adaptive", "--adaptive-at", "2", "--device", order, "--parallel", "2,3")
    async with serving("-m", demo, *arguments, "-c", "256", patience=300) as server:
        engines = await server.until(lambda es: all(e["state"] == "ready" for e in es))
        assert [(e["name"], e["slots"]) for e in engines] == [(first, 2), (second, 3)]
        assert "runs on llvmpipe" in server.text or "llvmpipe" not in str(vulkan_build.devices)
        ends: list[str] = []

        async def ask(n: int) -> None:
            body = {"model": "demo", "prompt": f"{n}", "max_tokens": 2, "ignore_eos": True, "stream": True}
            async with server.session.post(server.url + "/v1/completions", json=body) as response:
                ends.append([data async for data in events(response)][-1])

        async with anyio.create_task_group() as group:
            with standstill(server):  # the CPU answers in 30 ms
                for n in range(6):
                    group.start_soon(ask, n)
                engines = await server.until(lambda es: es[0]["waiting"] == 1)
                assert [e["slots_in_use"] for e in engines] == [2, 3]
        assert ends == ["[DONE]"] * 6
        async with server.session.get(server.url + "/metrics") as response:
            text = await response.text()
        claims = {
            name: float(line.rsplit(" ", 1)[1])
            for name in (first, second)
            for line in text.splitlines()
            if line.startswith("onebit_engine_claims_total") and f'engine="{name}"' in line
        }
        assert sum(claims.values()) == 6 and claims[first] >= 2 and claims[second] >= 3


async def test_one_build_serves_both(vulkan_build: Build, demo: Path) -> None:
    """The Vulkan build with --device none is a CPU engine."""
    arguments = ("--alias", "demo", "--device", "cpu", "--llama-server", vulkan_build.path, "-c", "256")
    async with serving("-m", demo, *arguments) as server:
        assert (await asked(server, 1))[-1] == "[DONE]"
