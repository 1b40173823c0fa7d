"""64 requests over 8 adapters on one engine: gathered by adapter, or first come first served.

All come at once, in an order shuffled anew each round. One real engine (8 slots, one thread) after the other serves
them: behind onebit, which gathers those of one adapter; behind the same onebit with the gathering switched off; and
llama-server by itself, whose own line is first come first served. The model has random weights in F32, and the
adapters are of rank 1: what they say is noise, what they cost is real.
"""

from __future__ import annotations

import asyncio
import json
import random
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import aiohttp
from benchmarks import _common as common
from tests.support.adapters import write_adapter
from tests.support.mtp import build_chain_model

from onebit.engines.builds import find_build
from onebit.engines.device import Device, DeviceKind
from onebit.models.pull import resolve
from onebit.models.report import silent

ADAPTERS, REQUESTS, SLOTS = 8, 64, 8
GATHERED, IN_ORDER, ALONE = "onebit, gathered", "onebit, in order of arrival", "llama-server alone"
_NO_GATHERING = (
    "from onebit.scheduler.slots import SlotLedger as S; S.limit = property(lambda _: 0, lambda *_: None);"
    " from onebit.cli import main; main()"
)


@dataclass(frozen=True, slots=True)
class Run:
    """One round of one server. Waits: seconds from the request to its first token."""

    tokens_per_s: float
    worst_wait: float
    median_wait: float


@asynccontextmanager
async def served(name: str, folder: Path) -> AsyncIterator[str]:
    """A server with everything loaded; gives its address."""
    port, log = common.free_port(), folder / "server.log"
    if name == ALONE:
        loras = [word for i in range(ADAPTERS) for word in ("--lora-scaled", str(folder / f"a{i}.gguf") + ":0")]
        argv: common.Command = [
            *(find_build(Device(DeviceKind.CPU)).path, "-m", folder / "noise.gguf", "--port", str(port)),
            *("-np", str(SLOTS), "-c", str(SLOTS * 512), "--no-kv-unified", "-t", "1", "-b", "128", "-ub", "128"),
            *("--cache-ram", "0", *loras),
        ]
    else:
        python = [sys.executable, "-c", _NO_GATHERING] if name == IN_ORDER else [common.ONEBIT]
        argv = [*python, "serve", "--config", folder / "onebit.yaml", "--port", str(port)]
    url = f"http://127.0.0.1:{port}"
    with common.running(argv, log):
        await asyncio.to_thread(common.wait_ready, f"{url}/health", log)
        yield url


async def one_round(name: str, folder: Path, order: list[int], tokens: int) -> Run:
    """All requests at once."""
    waits: list[float] = []
    made = 0

    async def ask(client: aiohttp.ClientSession, adapter: int, number: int) -> None:
        nonlocal made
        lora: Any = [{"id": adapter, "scale": 1.0}] if name == ALONE else f"a{adapter}"
        body = {"model": "noise", "prompt": [100 + number, 7, 8, 9], "max_tokens": tokens, "stream": True}
        body |= {"temperature": 0, "ignore_eos": True, "lora": lora}
        began, first = perf_counter(), None
        async with client.post("/v1/completions", json=body) as response:
            assert response.status == 200, await response.text()
            async for line in response.content:
                if not line.startswith(b"data: {"):
                    continue
                event = json.loads(line[6:])
                if any("text" in choice for choice in event["choices"]) and first is None:
                    first = perf_counter()
                if "timings" in event:
                    made += event["timings"]["predicted_n"]
        assert first is not None
        waits.append(first - began)

    timeout, connector = aiohttp.ClientTimeout(total=None), aiohttp.TCPConnector(limit=0, force_close=True)
    async with (
        served(name, folder) as url,
        aiohttp.ClientSession(url, timeout=timeout, connector=connector) as client,
    ):
        for adapter in range(ADAPTERS):  # nobody measures a first touch of the pages
            await ask(client, adapter, 90)
        waits.clear()
        made, began = 0, perf_counter()
        async with asyncio.TaskGroup() as group:
            for number, adapter in enumerate(order):
                group.create_task(ask(client, adapter, number))
        seconds = perf_counter() - began
    assert made == tokens * len(order), f"{name} made {made} tokens"
    return Run(made / seconds, max(waits), common.percentile(waits, 0.5))


def prepare(folder: Path) -> None:
    """The model, its adapters and the config."""
    model = folder / "noise.gguf"
    build_chain_model(
        model, tokenizer=resolve("demo", silent), nextn=0, quant="f32", random_weights=True, d=512, ff=1024, layers=6
    )
    listed = []
    for i in range(ADAPTERS):
        write_adapter(model, folder / f"a{i}.gguf", seed=i)
        listed.append(f"      a{i}: {{path: a{i}.gguf}}\n")
    (folder / "onebit.yaml").write_text(
        "models:\n  noise:\n    path: noise.gguf\n    ctx_size: 512\n    preload: true\n"
        f"    engines: [{{device: cpu, parallel: {SLOTS}, threads: 1}}]\n    adapters:\n" + "".join(listed)
    )


async def main() -> None:
    """Measure and print."""
    options = common.arguments(__doc__).parse_args()
    rounds, tokens = (1, 8) if options.quick else (3, 16)
    names = (GATHERED, IN_ORDER, ALONE)
    runs: dict[str, list[Run]] = {name: [] for name in names}
    with common.scratch() as folder:
        prepare(folder)
        for number in range(rounds):
            chance = random.Random(number)
            order = [i % ADAPTERS for i in range(REQUESTS)]
            chance.shuffle(order)
            for name in chance.sample(names, len(names)):
                runs[name].append(await one_round(name, folder, order, tokens))
    rows = []
    for name in names:
        faster = [one.tokens_per_s / base.tokens_per_s for one, base in zip(runs[name], runs[ALONE], strict=True)]
        rows.append(
            [
                name,
                common.Spread.of([run.tokens_per_s for run in runs[name]]).text(0, " tok/s"),
                common.Spread.of(faster).text(2, " ×"),
                common.Spread.of([run.median_wait for run in runs[name]]).text(1, " s"),
                common.Spread.of([run.worst_wait for run in runs[name]]).text(1, " s"),
            ]
        )
    head = [f"{REQUESTS} requests, {ADAPTERS} adapters, {SLOTS} slots, {tokens} tokens each"]
    head += ["total", "against llama-server alone", "median wait", "worst wait"]
    figures = {name: [{field: getattr(run, field) for field in Run.__slots__} for run in runs[name]] for name in names}
    common.report(options, "An army of adapters", [common.table(head, rows)], {"runs": figures})


if __name__ == "__main__":
    common.run(main())
