"""`onebit bench compare`: ratios between two results files, or between the setups of one."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def compare(
    base: Annotated[Path, typer.Argument(metavar="FILE", help="Results that `onebit bench --json` wrote.")],
    other: Annotated[
        Path | None, typer.Argument(metavar="[OTHER]", help="Others; without it, the setups of the one file.")
    ] = None,
    against: Annotated[
        str | None, typer.Option("--against", help="In one file: the setup to compare with.", show_default="the first")
    ] = None,
    md: Annotated[bool, typer.Option("--md", help="Print Markdown, for pasting.")] = False,
) -> None:
    """Compare two runs, pair by pair: ratios of total tok/s with 95 % intervals.

    \b
    onebit bench compare before.jsonl after.jsonl
    onebit bench compare run.jsonl --against vulkan

    Setups of one file were measured in turn, so each round is a pair of its own: such ratios are sharper.
    """
    from onebit.bench.columns import digits_for
    from onebit.bench.compare import between, differences, within
    from onebit.bench.results import read
    from onebit.commands import console
    from onebit.commands.bench_table import print_table
    from onebit.errors import ConfigError

    first = list(read(base))
    if other is None:
        pairings, changed = within(first, against), []
    elif against is not None:
        raise ConfigError("--against is for the setups of one file", hint="leave it or the second file out")
    else:
        second = list(read(other))
        pairings, changed = between(first, second), differences(first, second)
    head = ["requests", "base", "tok/s", "other", "tok/s", "other / base (95 %)", ""]
    rows = [
        [
            f"{p.requests}" if p.requests else "open",
            p.base,
            p.base_total.text(digits_for(p.base_total.median)),
            p.other,
            p.other_total.text(digits_for(p.other_total.median)),
            p.ratio.text(3),
            p.verdict,
        ]
        for p in pairings
    ]
    verdicts = {"faster": "green", "slower": "red"}
    print_table(head, rows, md=md, left=(1, 3, 6), colours=verdicts)
    for line in changed:
        console.err().print(f"note: they differ in {line}", markup=False)
