"""What the router adds to the time to the first token, and what it leaves of the engine's tokens per second.

Direct and through the router mean the very same engine process with the very same slots: the llama-server that
`onebit serve` started, asked at its own address (with its key, which a wrapper script notes) or through the
router. Phases alternate between the two, in turned order, and each request of one phase has its twin, with the
same prompt and the same pause before it, in the other: what is shown are the differences of twins. A second pair
of rows takes the fast fake engine, whose first token costs nothing: there the engine's own noise is gone and the
router's part is left. Goals at 16 streams: median 2 ms or less, p99 10 ms or less; tok/s at 8 streams 0.98 or
more of direct.
"""

from __future__ import annotations

import asyncio
import random
import re
import shutil
import sys
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import aiohttp
from benchmarks import _common as common
from benchmarks._common import Spread, percentile

from onebit import paths

Paths = dict[str, aiohttp.ClientSession]  # "direct" and "router"
_PREDICTED = re.compile(rb'"predicted_n":(\d+)')
_NOTE = """case " $* " in *" --host "*)
  umask 077; {{ printenv LLAMA_API_KEY; printf '%s\\n' "$@"; }} > {file}.new; mv {file}.new {file};;
esac
"""


@dataclass(frozen=True, slots=True)
class Answer:
    """One streamed answer. `first_s`, `last_s`: from before the request to its first and last byte of text."""

    first_s: float
    last_s: float
    tokens: int


async def ask(client: aiohttp.ClientSession, model: str, prompt: str, tokens: int) -> Answer:
    """Ask for exactly `tokens` tokens. Raises aiohttp.ClientError when it does not work.

    Asked directly over a kept-alive connection that has carried a stream, llama-server hung up on 10 in 100
    requests here. A client cannot tell beforehand, so it asks again, with a new clock: that favours direct.
    """
    body = {
        "model": model,
        "stream": True,
        "max_tokens": tokens,
        "ignore_eos": True,
        "temperature": 0,
        "messages": [{"role": "user", "content": prompt}],
    }
    tries = 5
    while True:
        began = time.perf_counter()
        try:
            async with client.post("/v1/chat/completions", json=body) as response:
                response.raise_for_status()
                tail = await response.content.readany()
                first = time.perf_counter()
                async for piece in response.content.iter_any():
                    tail = tail[-2000:] + piece
        except aiohttp.ClientConnectionError:
            tries -= 1
            if not tries:
                raise
            continue
        found = _PREDICTED.search(tail)
        return Answer(first - began, time.perf_counter() - began, int(found[1]) if found else 0)


@asynccontextmanager
async def same_engine(
    folder: Path, engine: common.Command, model: Path, *flags: str
) -> AsyncIterator[tuple[Paths, str]]:
    """`onebit serve` with this engine: sessions to the router and past it, and the model's name."""
    note = folder / "engine.txt"
    build = common.script_build(folder / "build", engine, _NOTE.format(file=note))
    with common.onebit(folder, build, model, *flags) as router:
        key, *argv = note.read_text().splitlines()
        host = argv[argv.index("--host") + 1].split(",")[-1]
        if host.endswith(".sock"):
            base, connector = "http://engine", aiohttp.UnixConnector(host, limit=0)
        else:
            sys.exit("the engine has no Unix socket: its port is not known here")
        async with (
            aiohttp.ClientSession(base, connector=connector, headers={"Authorization": f"Bearer {key}"}) as direct,
            aiohttp.ClientSession(router.url, connector=aiohttp.TCPConnector(limit=0)) as through,
        ):
            yield {"direct": direct, "router": through}, router.model


async def phase(
    client: aiohttp.ClientSession, model: str, streams: int, asks: int, tokens: int, pause_s: float, seed: int
) -> list[Answer]:
    """`streams` users, each with `asks` requests in a row and a random pause of up to `pause_s` before each."""

    async def user(number: int) -> list[Answer]:
        pauses = random.Random(seed * 1000 + number)
        answers = []
        for _ in range(asks):
            await asyncio.sleep(pauses.uniform(0, pause_s))
            answers.append(await ask(client, model, f"Count on from {number}.", tokens))
        return answers

    return [answer for answers in await asyncio.gather(*map(user, range(streams))) for answer in answers]


def order(number: int) -> tuple[str, str]:
    """Who goes first in round `number`."""
    return ("direct", "router") if number % 2 == 0 else ("router", "direct")


@dataclass(frozen=True, slots=True)
class Load:
    """One row: how many users ask how often, for how many tokens, in how many pairs of phases."""

    name: str
    streams: int
    asks: int
    rounds: int
    tokens: int
    pause_s: float


async def added(places: Paths, model: str, load: Load) -> Mapping[str, list[float]]:
    """First-token times in ms, direct and through the router, twins at the same index."""
    times: dict[str, list[float]] = {name: [] for name in places}
    for number in range(-1, load.rounds):  # round -1 warms up: connections, prompt cache
        for name in order(number):
            answers = await phase(places[name], model, load.streams, load.asks, load.tokens, load.pause_s, seed=number)
            if number >= 0:
                times[name] += [answer.first_s * 1000 for answer in answers]
    return times


def added_row(engine: str, load: Load, times: Mapping[str, list[float]]) -> list[str]:
    """The table's row of one load."""
    differences = [r - d for d, r in zip(times["direct"], times["router"], strict=True)]
    p99s = [percentile(times[name], 0.99) for name in ("direct", "router")]
    return [
        engine,
        load.name,
        str(len(differences)),
        f"{Spread.of(times['direct']).median:.2f}",
        f"{Spread.of(times['router']).median:.2f}",
        f"**{Spread.of(differences).median:.2f}**",
        f"{percentile(differences, 0.99):.2f}",
        f"**{p99s[1] - p99s[0]:.2f}** ({p99s[0]:.2f} to {p99s[1]:.2f})",
    ]


async def rate(client: aiohttp.ClientSession, model: str, streams: int, tokens: int) -> float:
    """Total tokens per second of `streams` answers that begin together."""
    began = time.perf_counter()
    answers = await phase(client, model, streams, 1, tokens, 0, seed=0)
    return sum(answer.tokens for answer in answers) / (time.perf_counter() - began)


async def rates(places: Paths, model: str, rounds: int, tokens: int) -> dict[str, list[float]]:
    """Total tok/s at 1 and at 8 streams, both ways, round by round."""
    found: dict[str, list[float]] = {f"{name} {n}": [] for n in (1, 8) for name in places}
    for number in range(-1, rounds):
        for streams in (1, 8):
            for name in order(number):
                value = await rate(places[name], model, streams, tokens)
                if number >= 0:
                    found[f"{name} {streams}"].append(value)
    return found


def rate_rows(found: Mapping[str, list[float]]) -> list[list[str]]:
    """The table's rows."""

    def ratio(of: str, to: str) -> str:
        return Spread.of([a / b for a, b in zip(found[of], found[to], strict=True)]).text(3)

    return [
        [
            str(streams),
            Spread.of(found[f"direct {streams}"]).text(1),
            Spread.of(found[f"router {streams}"]).text(1),
            ratio(f"router {streams}", f"direct {streams}"),
            ratio(f"router {streams}", "router 1"),
        ]
        for streams in (1, 8)
    ]


async def ceiling(folder: Path) -> float:
    """Chunks per second that this load generator reads from the fast engine itself, over a Unix socket."""
    socket = folder / "ceiling.sock"
    with common.running(common.fast_engine("--host", str(socket)), folder / "ceiling.log"):
        while not socket.exists():  # noqa: ASYNC110  (another process makes it)
            await asyncio.sleep(0.02)
        async with aiohttp.ClientSession("http://engine", connector=aiohttp.UnixConnector(str(socket))) as client:
            await phase(client, "bench", 8, 5, 64, 0, seed=0)
            began = time.perf_counter()
            answers = await phase(client, "bench", 8, 30, 64, 0, seed=0)
            return sum(answer.tokens for answer in answers) / (time.perf_counter() - began)


def find(options: Any) -> tuple[Path, Path]:
    """The real llama-server and a model: as told, else what onebit built (for the CPU, if there is one) and pulled.

    Ends with a message when there is none.
    """
    found = paths.builds_dir().glob("**/llama-server")
    builds = sorted(found, key=lambda file: (file.parent.name == "cpu", file.stat().st_mtime))
    on_path = shutil.which("llama-server")
    server = options.llama_server or (builds[-1] if builds else None) or (Path(on_path) if on_path else None)
    model = options.model or next(iter(sorted(paths.models_dir().glob("**/*.gguf"))), None)
    if server is None or model is None:
        sys.exit("no llama-server or no model found: `onebit engines build cpu`, `onebit models pull demo`, or flags")
    return server, model


async def main() -> None:
    """Measure the fast fake engine, then the real one, then the rates."""
    parser = common.arguments(__doc__)
    parser.add_argument("--llama-server", type=Path)
    parser.add_argument("-m", "--model", type=Path)
    parser.add_argument("--fake-only", action="store_true", help="only the fast fake engine")
    options = parser.parse_args()
    few = options.quick
    fake_loads = [
        Load("1", 1, 20, 2 if few else 6, 64, 0.01),
        Load("16, at any time", 16, 3, 2 if few else 12, 64, 0.3),
        Load("16, all in the same instant", 16, 1, 2 if few else 20, 64, 0),
    ]
    real_loads = [
        Load("1", 1, 5, 2 if few else 12, 8, 0.02),
        Load("16, at any time", 16, 2, 1 if few else 8, 16, 1.0),
    ]
    rows, figures = [], {}
    with common.scratch() as folder:
        top = await ceiling(folder)
        paced = common.fast_engine("--step-ms", "10")  # 100 tok/s for each stream
        async with same_engine(folder, paced, common.tiny_gguf(folder)) as (places, model):
            for load in fake_loads:
                times = figures[f"fast {load.name}"] = await added(places, model, load)
                rows.append(added_row("fast fake", load, times))
    speed: dict[str, list[float]] = {}
    if not options.fake_only:
        server, file = find(options)
        with common.scratch() as folder:
            async with same_engine(folder, [server.resolve()], file.resolve(), "-c", "1024") as (places, model):
                for load in real_loads:
                    times = figures[f"real {load.name}"] = await added(places, model, load)
                    rows.append(added_row("llama-server", load, times))
                speed = await rates(places, model, 1 if few else 5, 32 if few else 96)
    head = ["engine", "streams", "pairs", "direct, median ms", "router, median ms"]
    head += ["added: median of pairs", "p99 of pairs", "p99 of all, router less direct"]
    tables = [common.table(head, rows)]
    if speed:
        head = ["streams", "direct tok/s", "router tok/s", "router / direct", "batching: router / router at 1"]
        tables.append(common.table(head, rate_rows(speed)))
    tables.append(
        "Direct is the same engine process at its own Unix socket; the router is asked over TCP, and that hop "
        "counts as the router's. A pair is the same user's same request, after the same pause, in two "
        "neighbouring phases. With a real engine single pairs differ mostly by what else was in the batch, so "
        f"there the last column is the p99 to read. This load generator alone reads {top:,.0f} chunks/s."
    )
    figures_out = {"first_token_ms": figures, "tokens_per_second": speed, "ceiling_chunks_per_second": top}
    common.report(options, "First token and throughput", tables, figures_out)


if __name__ == "__main__":
    common.run(main())
