"""`onebit bench profile`: the grid that the adaptive choice reads."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from onebit.bench.profiling import Pair
    from onebit.bench.setups import Planner
    from onebit.errors import OnebitError
    from onebit.scheduler.profile import Grid

_TIMES = {"s": 1.0, "m": 60.0, "h": 3600.0}


def profile(
    context: typer.Context,
    model: Annotated[
        str, typer.Option("--model", "-m", help="GGUF file, `demo`, hf:owner/repo:quant or URL.")
    ] = "demo",
    device: Annotated[
        str, typer.Option("--device", "-dev", help="The two engines' devices: FIRST,SECOND.", metavar="A,B")
    ] = "vulkan,rocm",
    parallel: Annotated[
        str, typer.Option("--parallel", "-np", help="How many requests to go up to on each.", metavar="N,M")
    ] = "16,16",
    mtp: Annotated[
        str | None, typer.Option("--mtp", help="Draft lengths of the first engine, 0: none.", metavar="LIST")
    ] = None,
    mtp_model: Annotated[
        Path | None, typer.Option("--mtp-model", help="A head-only GGUF to draft with.", metavar="FILE")
    ] = None,
    budget: Annotated[str, typer.Option("--budget", help="Stop after this time; go on another day.")] = "10m",
    seconds: Annotated[float, typer.Option("--seconds", help="Seconds of each point.")] = 4.0,
    tokens: Annotated[int, typer.Option("--tokens", "-n", help="Tokens of each answer.")] = 128,
    prompt_tokens: Annotated[int, typer.Option("--prompt-tokens", "-p", help="Tokens of each prompt, about.")] = 32,
    check: Annotated[
        str | None,
        typer.Option(
            "--check", help="Then measure the choice at these loads against each engine alone.", metavar="LIST"
        ),
    ] = None,
    rounds: Annotated[int, typer.Option("--rounds", help="Interleaved rounds of --check.")] = 3,
    threads: Annotated[
        str | None, typer.Option("--threads", "-t", help="CPU threads of the engines.", metavar="N[,M]")
    ] = None,
    n_gpu_layers: Annotated[
        int | None, typer.Option("--n-gpu-layers", "-ngl", help="Layers on the GPU.", show_default="all")
    ] = None,
    batch_size: Annotated[int | None, typer.Option("--batch-size", "-b", help="Prompt tokens in one go.")] = None,
    llama_server: Annotated[
        Path | None, typer.Option("--llama-server", help="The llama-server executable to use.", metavar="FILE")
    ] = None,
    start_timeout: Annotated[
        str | None, typer.Option("--start-timeout", help="Time to load the model.", metavar="TIME")
    ] = None,
    fresh: Annotated[bool, typer.Option("--fresh", help="Forget what was measured before.")] = False,
) -> None:
    """Measure two engines that share a card: total tok/s for a requests on one and b on the other.

    A coarse grid, refined where it bends: a dip that only shows at 9 rows is found. Every point is stored at once, so
    an interrupted run goes on with what it has. `onebit serve --adaptive` with the same model, builds, devices and
    flags then splits its load as the grid says.

    \b
    onebit bench profile -m qwen.gguf --device vulkan,rocm
    onebit bench profile -m qwen.gguf --device vulkan,rocm --mtp 0,2 --budget 30m
    onebit bench profile --device cpu,cpu --parallel 8,8 --check 1,2,4,8
    """
    from onebit.bench.setups import Wish
    from onebit.commands import bench_prepare as prepare
    from onebit.engines.run_folder import run_folder
    from onebit.errors import ConfigError

    devices = prepare.devices_of(device)
    if len(devices) != 2:
        raise ConfigError(f"--device {device}: a profile is of two engines", hint="like --device vulkan,rocm")
    slots = pair_of("--parallel", parallel, prepare.MOST_REQUESTS)
    prepare.check_lengths(tokens, prompt_tokens, 0, rounds, 1)
    prepare.within("--seconds", seconds, 0.1, 600)
    settings = prepare.engine_settings(
        mtp_model=mtp_model,
        n_gpu_layers=n_gpu_layers,
        batch_size=batch_size,
        llama_server=llama_server,
        start_timeout=start_timeout,
        engine_args=context.obj or None,
    )
    seconds_in_all = _seconds(budget)
    loads = () if check is None else prepare.numbers("--check", check, 1, sum(slots))
    lengths = (0,) if mtp is None else prepare.numbers("--mtp", mtp, 0, 64)
    with run_folder() as folder:
        wish = Wish(settings, devices, (max(slots),), prompt_tokens + tokens, run_dir=folder)
        planner, measured_on = prepare.prepare(model, llama_server, wish)
        pairs = [_pair(planner, slots, length, folder, threads) for length in lengths]
        run = _Run(pairs, measured_on, tokens, prompt_tokens, seconds, loads, rounds)
        code = run.go(seconds_in_all, fresh)
    raise typer.Exit(code)


def pair_of(flag: str, text: str, most: int) -> tuple[int, int]:
    """`8,16` as two numbers, `8` as that number twice. Raises ConfigError."""
    from onebit.errors import ConfigError

    words = [word.strip() for word in text.split(",")]
    if not 1 <= len(words) <= 2 or not all(w.isascii() and w.isdigit() and 1 <= int(w) <= most for w in words):
        raise ConfigError(f"{flag} {text}: one number for both engines, or two, from 1 to {most:,}")
    return int(words[0]), int(words[-1])


def _seconds(text: str) -> float:
    from onebit.errors import ConfigError

    unit = _TIMES.get(text[-1:], 0.0)
    try:
        seconds = float(text[:-1]) * unit if unit else float(text)
    except ValueError:
        seconds = -1.0
    if not 0 <= seconds <= 7 * 86_400:
        raise ConfigError(f"--budget {text}: a time is like 90s, 10m or 1h")
    return seconds


def _pair(planner: Planner, slots: tuple[int, int], draft: int, folder: Path, threads: str | None) -> Pair:
    """The engines as `onebit serve --adaptive` would plan them."""
    from onebit.bench.profiling import Pair

    wanted: dict[str, Any] = {
        "device": ",".join(planner.wish.devices),
        "adaptive": True,
        "parallel": f"{slots[0]},{slots[1]}",
        "adaptive_at": min(1024, slots[0] * (draft + 1)),
        "mtp": draft > 0,
        "draft_max": draft or None,
    }
    if not draft:
        wanted["mtp_model"] = None
    first, second = planner.plan(**wanted).engines
    pair = Pair(first, second, folder, planner.config(**wanted).start_timeout)
    return pair if threads is None else pair.with_threads(pair_of("--threads", threads, 1024))


class _Run:
    """One call of the command."""

    def __init__(
        self,
        pairs: Sequence[Pair],
        measured_on: dict[str, Any],
        tokens: int,
        prompt_tokens: int,
        seconds: float,
        loads: Sequence[int],
        rounds: int,
    ) -> None:
        from onebit.commands.bench_profile_display import PointsProgress

        self._pairs = pairs
        self._measured_on = measured_on
        self._lengths = (tokens, prompt_tokens)
        self._seconds = seconds
        self._loads = loads
        self._rounds = rounds
        self._show = PointsProgress()

    def go(self, budget: float, fresh: bool) -> int:
        """Measure all pairs, store, show. Returns the exit code."""
        import anyio

        from onebit.bench.profiling import Profiling
        from onebit.bench.stopping import stoppable
        from onebit.commands import console
        from onebit.commands.bench_profile_display import show_check, show_grid
        from onebit.commands.bench_run import INTERRUPTED
        from onebit.errors import ProfileError
        from onebit.scheduler.profile import Grid, Profile
        from onebit.scheduler.profile_file import find, key_of, path_of, write

        key = key_of(self._measured_on["model_fingerprint"], self._pairs[0].first, self._pairs[0].second)
        grids: dict[int, Grid] = {}
        try:
            known = None if fresh else find(key)
            if known is not None and known.lengths != self._lengths:
                before = "other" if known.lengths is None else "{} and {}".format(*known.lengths)
                console.err().print(f"note: the profile there is of {before} tokens; it is measured anew", markup=False)
            elif known is not None:
                grids = dict(known.grids)
        except ProfileError as error:
            console.err().print(f"note: {error.message}; it is measured anew", markup=False)
        last: list[Profiling] = []
        complete: dict[int, bool] = {}
        failure: list[OnebitError] = []

        def profiling(pair: Pair) -> Profiling:
            def keep(points: dict[tuple[int, int], float]) -> None:
                grids[pair.draft] = Grid(points)
                write(Profile(key, grids, self._lengths), self._measured_on)

            points = dict(grids[pair.draft].points) if pair.draft in grids else {}
            return Profiling(pair, *self._lengths, self._seconds, self._show, points, keep)

        async def work() -> bool:
            from onebit.errors import OnebitError

            with stoppable() as scope, self._show.shown():
                try:
                    for i, pair in enumerate(self._pairs):
                        one = profiling(pair)
                        complete[pair.draft] = await one.run(budget / len(self._pairs))
                        if self._loads and i + 1 == len(self._pairs):
                            last.append(one)
                            await one.check(self._loads, self._rounds)
                except OnebitError as error:
                    failure.append(error)
            return scope.cancelled_caught

        interrupted = anyio.run(work, backend_options={"use_uvloop": True})
        for draft, grid in sorted(grids.items()):
            show_grid(grid, draft, self._pairs[0])
            if not complete.get(draft, True):
                console.err().print("note: the time was up before all was known; run it again to go on", markup=False)
        for one in last:
            show_check(one.checked())
        if grids and not failure:
            console.err().print(f"stored: {path_of(key)}", markup=False, soft_wrap=True)
        if failure:
            raise failure[0]
        return INTERRUPTED if interrupted else 0
