"""What the router adds to the time to the first token, and what it leaves of the engine's tokens per second.

Direct and through the router mean the very same engine process with the very same slots: the llama-server that
`onebit serve` started, asked at its own address (with its key, which a wrapper script notes) or through the
router. Phases alternate, in turned order, and each request of one phase has its twin, with the same prompt and the
same pause before it, in the others: what is shown are the differences of twins. A third phase asks directly again:
direct against direct is the noise that no router has made. The engines: a fast fake one, whose first token costs
nothing and whose further ones come every 10 ms, so that nothing but the relay can make an answer longer; the real
llama-server with a model of 5 MB, once with its decode loop on a core of its own, as it has on a card, and once where
loop, router and load share all cores (there the router mostly adds by slowing the engine); and the real one with the
demo model, whose batches decide when a first token comes. Goals at 16 streams: median 2 ms or less, p99 10 ms or less;
tok/s at 8 streams 0.98 or more of direct.
"""

from __future__ import annotations

import asyncio
import random
import shutil
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks import _common as common
from benchmarks._common import Spread, median_error, percentile
from tests.support.mtp import build_chain_model

from onebit import paths
from onebit.bench import answer as generator
from onebit.bench.answer import Answer, Ask
from onebit.bench.endpoint import Endpoint

Places = dict[str, Endpoint]  # "direct", "router", and "again": directly, another time
_NOTE = """case " $* " in *" --host "*)
  umask 077; {{ echo $$; printenv LLAMA_API_KEY; printf '%s\\n' "$@"; }} > {file}.new; mv {file}.new {file};;
esac
"""


async def ask(where: Endpoint, model: str, prompt: str, tokens: int) -> Answer:
    """One streamed answer of exactly `tokens` tokens; ends the run where it fails.

    With the generator of `onebit bench`: aiohttp's client took almost as much of the core that it shares with the
    router as the router itself.
    """
    answer = await generator.ask(where, Ask(model, tokens, api="chat"), prompt)
    if not answer.good:
        sys.exit(f"{where.name} did not answer: {answer.trouble}: {answer.why}")
    return answer


@contextmanager
def same_engine(
    folder: Path, engine: common.Command, model: Path, *flags: str, apart: bool = False
) -> Iterator[tuple[Places, str]]:
    """`onebit serve` with this engine: the router's address and the engine's own, and the model's name.

    `apart`: the engine's decode loop, its main thread, gets a core for itself, as a card would be; its HTTP threads,
    the router and this process share the others.
    """
    note = folder / "engine.txt"
    build = common.script_build(folder / "build", engine, _NOTE.format(file=note))
    with common.onebit(folder, build, model, *flags) as router:
        pid, key, *argv = note.read_text().splitlines()
        host = argv[argv.index("--host") + 1].split(",")[-1]
        if not host.endswith(".sock"):
            sys.exit("the engine has no Unix socket: its port is not known here")
        direct = Endpoint("engine", 0, socket=Path(host), key=key)
        with common.core_alone(int(pid), router.pid) if apart else nullcontext():
            yield {"direct": direct, "router": Endpoint.of_url(router.url), "again": direct}, router.model


async def phase(
    where: Endpoint, model: str, streams: int, asks: int, tokens: int, pause_s: float, seed: int
) -> list[Answer]:
    """`streams` users, each with `asks` requests in a row and a random pause of up to `pause_s` before each."""

    async def user(number: int) -> list[Answer]:
        pauses = random.Random(seed * 1000 + number)
        answers = []
        for _ in range(asks):
            await asyncio.sleep(pauses.uniform(0, pause_s))
            answers.append(await ask(where, model, f"Count on from {number}.", tokens))
        return answers

    return [answer for answers in await asyncio.gather(*map(user, range(streams))) for answer in answers]


def order(names: Sequence[str], number: int) -> list[str]:
    """Who goes first, second… in round `number`: each is everywhere in turn."""
    turned = [names[(number + i) % len(names)] for i in range(len(names))]
    return turned if number // len(names) % 2 == 0 else turned[::-1]


@dataclass(frozen=True, slots=True)
class Load:
    """One row: how many users ask how often, for how many tokens, in how many pairs of phases."""

    name: str
    streams: int
    asks: int
    rounds: int
    tokens: int
    pause_s: float


@dataclass(frozen=True, slots=True)
class Times:
    """Of one way, twins at the same index of all ways: to the first token, and to the answer's end, in ms."""

    first: list[float] = field(default_factory=list)
    whole: list[float] = field(default_factory=list)


async def added(places: Places, model: str, load: Load) -> Mapping[str, Times]:
    """Times by way."""
    times = {name: Times() for name in places}
    for number in range(-1, load.rounds):  # round -1 warms up: connections, prompt cache
        for name in order(list(places), number):
            answers = await phase(places[name], model, load.streams, load.asks, load.tokens, load.pause_s, seed=number)
            if number >= 0:
                times[name].first.extend((answer.token_times[0] - answer.sent) * 1000 for answer in answers)
                times[name].whole.extend((answer.ended - answer.sent) * 1000 for answer in answers)
    return times


def added_row(engine: str, load: Load, times: Mapping[str, Times]) -> list[str]:
    """The table's row of one load."""

    def less_direct(name: str) -> list[float]:
        return [t - d for d, t in zip(times["direct"].first, times[name].first, strict=True)]

    def to_direct(name: str) -> str:
        ratios = [t / d for d, t in zip(times["direct"].whole, times[name].whole, strict=True)]
        return f"{Spread.of(ratios).median:.3f} ± {median_error(ratios):.3f}"

    def p99_less_direct(name: str) -> float:
        return percentile(times[name].first, 0.99) - percentile(times["direct"].first, 0.99)

    added, noise = less_direct("router"), less_direct("again")
    return [
        engine,
        load.name,
        str(len(added)),
        f"{Spread.of(times['direct'].first).median:.2f}",
        f"**{Spread.of(added).median:.2f}** ± {median_error(added):.2f}",
        f"{Spread.of(noise).median:.2f} ± {median_error(noise):.2f}",
        f"{percentile(added, 0.99):.2f}",
        f"**{p99_less_direct('router'):.2f}**",
        f"{p99_less_direct('again'):.2f}",
        to_direct("router"),
        to_direct("again"),
    ]


async def rate(where: Endpoint, model: str, streams: int, tokens: int) -> float:
    """Total tokens per second of `streams` answers that begin together."""
    began = time.perf_counter()
    answers = await phase(where, model, streams, 1, tokens, 0, seed=0)
    return sum(answer.tokens for answer in answers) / (time.perf_counter() - began)


async def rates(places: Places, model: str, rounds: int, tokens: int) -> dict[str, list[float]]:
    """Total tok/s at 1 and at 8 streams, both ways, round by round."""
    names = ("direct", "router")
    found: dict[str, list[float]] = {f"{name} {n}": [] for n in (1, 8) for name in names}
    for number in range(-1, rounds):
        for streams in (1, 8):
            for name in order(names, number):
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
        where = Endpoint("engine", 0, socket=socket)
        await phase(where, "bench", 8, 5, 64, 0, seed=0)
        began = time.perf_counter()
        answers = await phase(where, "bench", 8, 30, 64, 0, seed=0)
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
    parser.add_argument("--only", choices=("fast", "small", "demo"), help="only this engine")
    options = parser.parse_args()
    few = options.quick
    fake_loads = [
        Load("1", 1, 20, 2 if few else 6, 64, 0.01),
        Load("16, at any time", 16, 3, 2 if few else 12, 64, 0.3),
        Load("16, all in the same instant", 16, 1, 2 if few else 20, 64, 0),
    ]
    small_loads = [
        Load("1", 1, 20, 3 if few else 6, 32, 0.01),
        Load("16, at any time", 16, 3, 3 if few else 15, 64, 0.8),
    ]
    demo_loads = [
        Load("1", 1, 5, 3 if few else 9, 8, 0.02),
        Load("16, at any time", 16, 2, 3 if few else 6, 16, 1.0),
    ]
    rows, figures = [], {}

    async def measure(name: str, places: Places, model: str, loads: Sequence[Load]) -> None:
        for load in loads:
            times = await added(places, model, load)
            figures[f"{name}, {load.name}"] = {way: asdict(its) for way, its in times.items()}
            rows.append(added_row(name, load, times))

    with common.scratch() as folder:
        top = await ceiling(folder)
        paced = common.fast_engine("--step-ms", "10")  # 100 tok/s for each stream
        if options.only in (None, "fast"):
            with same_engine(folder, paced, common.tiny_gguf(folder)) as (places, model):
                await measure("fast fake", places, model, fake_loads)
    speed: dict[str, list[float]] = {}
    if options.only in (None, "small"):
        server, file = find(options)
        with common.scratch() as folder:
            small = build_chain_model(folder / "small.gguf", tokenizer=file, nextn=0).path
            for name, apart in (("llama-server, 5 MB, a core apart", True), ("llama-server, 5 MB", False)):
                with same_engine(folder, [server.resolve()], small, "-c", "1024", apart=apart) as (places, model):
                    await measure(name, places, model, small_loads)
    if options.only in (None, "demo"):
        server, file = find(options)
        with (
            common.scratch() as folder,
            same_engine(folder, [server.resolve()], file.resolve(), "-c", "1024") as (places, model),
        ):
            await measure("llama-server, demo", places, model, demo_loads)
            speed = await rates(places, model, 1 if few else 5, 32 if few else 96)
    head = ["engine", "streams", "pairs", "direct, median ms", "added: median of pairs", "noise: direct again"]
    head += ["p99 of pairs", "added to the p99 of all", "noise: direct again"]
    head += ["whole answers, router / direct", "direct again / direct"]
    tables = [common.table(head, rows)]
    if speed:
        head = ["streams", "direct tok/s", "router tok/s", "router / direct", "batching: router / router at 1"]
        tables.append(common.table(head, rate_rows(speed)))
    tables.append(
        "Direct is the same engine process at its own Unix socket; the router is asked over TCP, and that hop "
        "counts as the router's. A pair is the same user's same request, after the same pause, in two phases of one "
        "round; ± is half of the median's 95 % interval. Single pairs of an engine at its limit differ mostly by what "
        "else was in the batch: there the p99 of all is the one to read, beside the noise. "
        f"This load generator alone reads {top:,.0f} chunks/s."
    )
    figures_out = {"times_ms": figures, "tokens_per_second": speed, "ceiling_chunks_per_second": top}
    common.report(options, "First token and throughput", tables, figures_out)


if __name__ == "__main__":
    common.run(main())
