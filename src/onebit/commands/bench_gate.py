"""`onebit bench gate`: what an admission costs, beside other gates, and how that grows."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from onebit.bench.gate import Run

_WIDE = 120  # columns, from which there is room for intervals
_SIZES = (100, 1_000, 10_000, 50_000)


def gate(
    waiters: Annotated[int, typer.Option("--waiters", "-n", min=10, max=100_000, help="Requests that wait.")] = 2_000,
    rounds: Annotated[int, typer.Option("--rounds", min=1, max=1_000, help="Interleaved rounds.")] = 9,
    fast_loop: Annotated[
        bool, typer.Option("--uvloop", help="On uvloop, as the server, not on asyncio's own loop.")
    ] = False,
    md: Annotated[bool, typer.Option("--md", help="Print Markdown, for pasting.")] = False,
) -> None:
    """Measure the admission gate: admissions a second, beside a bare line, anyio's and a broadcast gate.

    \b
    onebit bench gate
    onebit bench gate --waiters 10000 --md

    All waiters are there from the beginning; each takes one of 8 slots, lets the loop turn once, and gives it back.
    Time is CPU time of the one thread, so that other programs count less. The contenders take turns in each round.
    """
    import asyncio

    import uvloop

    from onebit.bench import gate as bench
    from onebit.bench.machine import machine
    from onebit.commands import console
    from onebit.commands.bench_table import print_table

    with console.err().status("measuring the gate…"):
        with asyncio.Runner(loop_factory=uvloop.new_event_loop if fast_loop else None) as runner:
            found = runner.run(bench.measure(waiters, rounds, list(bench.CONTENDERS)))
            growth = {
                size: runner.run(bench.measure(size, max(1, rounds // 3), ["onebit", bench.FIFO])) for size in _SIZES
            }
        choice = bench.victim_choice_ms(200)
    wide = md or console.out().width >= _WIDE
    head = ["gate", "admissions/s", "to bare FIFO", "to broadcast", "p99 / ideal"]
    print_table(head, [_row(name, found, wide) for name in found], md=md)
    head = ["waiters", "onebit, µs each", "bare FIFO, µs each", "ratio of rates"]
    print_table(head, [_grown(size, runs, wide) for size, runs in growth.items()], md=md)
    facts = machine()
    typer.echo(f"Choosing whom to evict, of 200 models in memory: {choice:.2f} ms.")
    typer.echo(
        ", ".join(facts[name] for name in ("cpu", "system") if name in facts) + f", {waiters:,} waiters, 8 slots"
    )


def _row(name: str, found: dict[str, list[Run]], wide: bool) -> list[str]:
    from onebit.bench import gate as bench

    runs = found[name]
    return [
        name,
        _text([run.rate for run in runs], 0, wide),
        _text(_ratios(runs, found[bench.FIFO]), 2, wide),
        _text(_ratios(runs, found[bench.BROADCAST]), 1, wide),
        _text([run.p99_over_ideal for run in runs], 2, wide),
    ]


def _grown(size: int, runs: dict[str, list[Run]], wide: bool) -> list[str]:
    from onebit.bench import gate as bench

    ours, bare = runs["onebit"], runs[bench.FIFO]
    each = [_text([1e6 / run.rate for run in some], 1, wide) for some in (ours, bare)]
    return [f"{size:,}", *each, _text(_ratios(ours, bare), 2, wide)]


def _ratios(of: list[Run], to: list[Run]) -> list[float]:
    """Round by round: the two were measured in one round."""
    return [a.rate / b.rate for a, b in zip(of, to, strict=True)]


def _text(values: list[float], digits: int, wide: bool) -> str:
    """The median, with its 95 % interval where there is room."""
    from onebit.bench.stats import estimate

    found = estimate(values)
    if found is None:
        return ""
    return found.text(digits) if wide else f"{found.median:,.{digits}f}"
