"""`onebit bench simulate`: what a crowd would meet, from a profile, in seconds instead of hours."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from onebit.bench.row import Figures
    from onebit.bench.simulate import Outcome
    from onebit.tiers import Tier


def simulate(
    profile: Annotated[
        Path, typer.Argument(metavar="PROFILE", help="A profile that `onebit bench profile` stored (it prints where).")
    ],
    rate: Annotated[float, typer.Option("--rate", help="Requests a second, at random times.")] = 1.0,
    duration: Annotated[float, typer.Option("--duration", help="Seconds of arrivals.")] = 600.0,
    trace: Annotated[
        Path | None, typer.Option("--trace", help="Times and lengths from a file instead.", metavar="FILE")
    ] = None,
    burst: Annotated[int, typer.Option("--burst", help="So many requests at a time, at the same average rate.")] = 1,
    tiers: Annotated[
        str, typer.Option("--tiers", help="Shares of the requests: paid=0.1,free=0.9.", metavar="LIST")
    ] = "free=1",
    parallel: Annotated[
        str | None,
        typer.Option("--parallel", "-np", help="Slots of the two engines.", metavar="N,M", show_default="as measured"),
    ] = None,
    adaptive_at: Annotated[
        int, typer.Option("--adaptive-at", help="The fixed threshold to compare with; 0: none.")
    ] = 8,
    hold_gain: Annotated[
        float, typer.Option("--hold-gain", help="Share to be gained for a request to wait beside a free slot.")
    ] = 0.10,
    draft: Annotated[int, typer.Option("--draft", help="The grid of this draft length.")] = 0,
    tokens: Annotated[int, typer.Option("--tokens", "-n", help="Tokens of each answer.")] = 128,
    prompt_tokens: Annotated[int, typer.Option("--prompt-tokens", "-p", help="Tokens of each prompt.")] = 64,
    prompt_rate: Annotated[float, typer.Option("--prompt-rate", help="Prompt tokens a second.")] = 500.0,
    max_waiting: Annotated[int, typer.Option("--max-waiting", help="Requests in line before 429.")] = 1024,
    max_wait: Annotated[float, typer.Option("--max-wait", help="Seconds in line before 503.")] = 600.0,
    seed: Annotated[int, typer.Option("--seed", help="Of the random times.")] = 1,
    json_file: Annotated[
        Path | None, typer.Option("--json", help="Write the rows to this new file, too.", metavar="FILE")
    ] = None,
    live: Annotated[
        Path | None,
        typer.Option(
            "--live", help="Results of a live --adaptive run with the same arrivals: show the error.", metavar="FILE"
        ),
    ] = None,
) -> None:
    """Simulate a crowd on two engines: the router's own gate and choice, with a profile's service times.

    Nothing is started. The rows are those of a live open loop (`onebit bench --rate`): with the choice by the profile,
    then with the fixed threshold, and each tier for itself where there are several. A prompt is taken not to slow down
    those who decode, so crowds of long prompts come out too well.

    \b
    onebit bench simulate ~/.cache/onebit/profiles/0123456789abcdef.json --rate 2.5
    onebit bench simulate PROFILE --rate 4 --burst 20 --tiers paid=0.1,subscriber=0.2,free=0.7
    onebit bench simulate PROFILE --trace day.jsonl --live measured.jsonl
    """
    from onebit.bench.arrivals import poisson, read_trace
    from onebit.bench.simulate import Scene, bursty
    from onebit.bench.simulate import simulate as run
    from onebit.commands.bench_prepare import MOST_REQUESTS, check_lengths, within
    from onebit.commands.bench_profile import pair_of
    from onebit.errors import ConfigError
    from onebit.scheduler.profile_file import read

    check_lengths(tokens, prompt_tokens, 0, 1, 1)
    within("--rate", rate, 0.001, 10_000)
    within("--duration", duration, 1, 7 * 86_400)
    within("--burst", burst, 1, 10_000)
    within("--prompt-rate", prompt_rate, 0.1, 10_000_000)
    within("--adaptive-at", adaptive_at, 0, 1024)
    within("--hold-gain", hold_gain, 0, 10)
    within("--max-waiting", max_waiting, 0, 1_000_000)
    within("--max-wait", max_wait, 0, 86_400)
    if live is not None and not adaptive_at:
        raise ConfigError("--live needs --adaptive-at", hint="a live run splits its load at a number of requests")
    shares = _shares(tiers)
    measured = None if live is None else _open_loop(live, adaptive_at)
    if rate * duration > 1_000_000:
        raise ConfigError(f"--rate {rate:g} for {duration:g} s are over a million requests", hint="lower one of them")
    stored = read(profile)
    grid = stored.grid(draft)
    if grid is None:
        known = ", ".join(map(str, sorted(stored.grids)))
        raise ConfigError(f"--draft {draft}: this profile has no such grid", hint=f"it has: {known}")
    slots = (
        (grid.first_limit, grid.second_limit) if parallel is None else pair_of("--parallel", parallel, MOST_REQUESTS)
    )
    if not all(slots):
        raise ConfigError(f"{profile} has only one engine measured", hint="run onebit bench profile to its end")
    arrivals = read_trace(trace, duration) if trace is not None else poisson(rate, duration, seed)
    if burst > 1:
        arrivals = bursty(arrivals, burst)
    if not arrivals:
        raise ConfigError(f"--rate {rate:g} for {duration:g} s: not one request comes", hint="raise one of them")
    scene = Scene(
        *(grid, slots, None, tokens, prompt_tokens, prompt_rate, shares),
        hold_gain=hold_gain,
        max_waiting=max_waiting,
        max_wait=max_wait,
        seed=seed,
    )
    outcomes = {"by profile": run(scene, arrivals)}
    if adaptive_at:
        outcomes[f"at {adaptive_at}"] = run(replace(scene, adaptive_at=adaptive_at), arrivals)
    origin = trace.name if trace is not None else f"{rate:g}/s for {duration:g} s, seed {seed}, {burst} at a time"
    on = {
        "profile": profile.name,
        "first": stored.key.first,
        "second": stored.key.second,
        "slots": f"{slots[0]}+{slots[1]}",
    }
    _show(outcomes, on, {"tokens": tokens, "prompt_tokens": prompt_tokens, "arrivals": origin}, json_file)
    if measured is not None:
        _show_error(measured, f"at {adaptive_at}", outcomes[f"at {adaptive_at}"].figures)


def _open_loop(file: Path, adaptive_at: int) -> Figures:
    """The live run of both engines behind the router with this threshold. Raises BenchError."""
    from onebit.bench.results import read
    from onebit.errors import BenchError

    name = f"adaptive at {adaptive_at}"
    open_loops = [result for result in read(file) if not result.cell.requests]
    found = [result for result in open_loops if result.cell.setup == name]
    if len(found) != 1:
        there = ", ".join(sorted({result.cell.setup for result in open_loops})) or "none"
        raise BenchError(
            f"{file}: {len(found)} runs of {name!r} with an open loop, and one is wanted; there are: {there}",
            hint="onebit bench --adaptive --adaptive-at N --trace FILE --json NEW_FILE",
        )
    return found[0].figures


def _show_error(live: Figures, name: str, simulated: Figures) -> None:
    from onebit.bench.columns import digits_for
    from onebit.bench.compare import predictions
    from onebit.commands.bench_table import print_table

    rows = []
    for what, a, b in predictions(live, simulated):
        error = round(b / a - 1, 2) + 0.0  # never "-0%"
        rows.append([what, f"{a:,.{digits_for(a)}f}", f"{b:,.{digits_for(b)}f}", f"{error:+.0%}"])
    print_table([name, "live", "simulated", "error"], rows)


def _shares(text: str) -> Mapping[Tier, float]:
    from onebit.errors import ConfigError
    from onebit.tiers import TIERS

    found: dict[Tier, float] = {}
    for part in text.split(","):
        name, _, number = part.strip().partition("=")
        try:
            share = float(number)
        except ValueError:
            share = -1.0
        if name not in TIERS or not 0 < share <= 1e9:
            raise ConfigError(
                f"--tiers {text}: {part.strip()!r} is no tier with a share", hint="like paid=0.1,free=0.9"
            )
        found[TIERS[name]] = share
    return found


def _show(outcomes: Mapping[str, Outcome], on: dict[str, Any], settings: dict[str, Any], file: Path | None) -> None:
    from onebit.bench.results import Cell, Result, ResultsFile
    from onebit.commands import console
    from onebit.commands.bench_display import finish

    rows = {}
    for name, outcome in outcomes.items():
        rows[name] = outcome.figures
        if len(outcome.by_tier) > 1:
            rows |= {f"{name}, {tier.name.lower()}": figures for tier, figures in outcome.by_tier.items()}
    results = [Result(Cell(name, 0, 0, "open"), figures, settings, on) for name, figures in rows.items()]
    if file is not None:
        stored = ResultsFile(file, resume=False)
        for result in results:
            stored.add(result)
    finish(results, None)
    for name, outcome in outcomes.items():
        first, second = outcome.served
        line = f"{name}: {first:,} on the first engine, {second:,} on the second; longest line {outcome.longest_line:,}"
        console.out().print(line)
