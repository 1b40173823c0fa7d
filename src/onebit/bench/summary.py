"""Several runs of one cell as one row: medians, intervals, and what must be said about it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from onebit.bench.ceiling import MARGIN
from onebit.bench.machine import BUSY_CORES
from onebit.bench.results import Result
from onebit.bench.stats import Estimate, Percentiles, estimate


@dataclass(frozen=True, slots=True)
class Summary:
    """A row of a table. None: not measured."""

    setup: str
    requests: int
    runs: int
    total: Estimate | None
    user: float | None
    prompt: float | None
    ttft: Percentiles | None
    gap: Percentiles | None
    acceptance: float | None
    agreement: float | None
    per_cpu_second: float | None  # tokens (prompts computed too) by the CPU seconds of the processes under test
    to_one: float | None  # total, by the same setup's at one request in the same round
    errors: int
    queued: bool


def summaries(results: Iterable[Result]) -> list[Summary]:
    """One for each setup and load, setups in the order in which they come, loads ascending."""
    groups: dict[tuple[str, int], list[Result]] = {}
    order: dict[str, int] = {}
    for result in results:
        order.setdefault(result.cell.setup, len(order))
        groups.setdefault((result.cell.setup, result.cell.requests), []).append(result)
    keys = sorted(groups, key=lambda key: (order[key[0]], key[1]))
    return [_summary(setup, requests, groups[setup, requests], groups.get((setup, 1), ())) for setup, requests in keys]


def _summary(setup: str, requests: int, results: Sequence[Result], ones: Sequence[Result]) -> Summary:
    runs = [result.figures for result in results]
    return Summary(
        setup,
        requests,
        len(runs),
        estimate([run.total_tok_s for run in runs if run.total_tok_s is not None]),
        _middle([run.user_tok_s for run in runs]),
        _middle([run.prompt_tok_s for run in runs]),
        _percentiles([run.ttft_ms for run in runs]),
        _percentiles([run.gap_ms for run in runs]),
        _middle([run.acceptance for run in runs]),
        _middle([run.agreement for run in runs]),
        _middle([_per_cpu_second(result) for result in results]),
        _to_one(results, ones) if requests > 1 else None,
        sum(sum(run.errors.values()) for run in runs),
        any(run.queued for run in runs),
    )


def _per_cpu_second(result: Result) -> float | None:
    spent = float(result.conditions.get("engine_cpu_s", 0.0))
    figures = result.figures
    made = figures.tokens + figures.prompt_tokens - figures.cached_tokens
    return made / spent if spent > 0 and made else None


def _to_one(results: Sequence[Result], ones: Sequence[Result]) -> float | None:
    """Round by round, as far as both were measured in it."""
    alone = {result.cell.repeat: result.figures.total_tok_s for result in ones}
    pairs = [(result.figures.total_tok_s, alone.get(result.cell.repeat)) for result in results]
    return _middle([ours / one for ours, one in pairs if ours is not None and one])


def _middle(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return median(known) if known else None


def _percentiles(values: Sequence[Percentiles | None]) -> Percentiles | None:
    """Each percentile's median over the runs."""
    known = [value for value in values if value is not None]
    if not known:
        return None
    return Percentiles(median(v.p50 for v in known), median(v.p95 for v in known), median(v.p99 for v in known))


def notes(results: Sequence[Result], ceiling: float | None) -> list[str]:
    """What a reader of the figures must know: errors, a busy machine, counts that differ, a generator near its end."""
    found = []
    for result in results:
        figures, cell = result.figures, result.cell
        if figures.errors:
            kinds = ", ".join(f"{count} {kind}" for kind, count in figures.errors.items())
            found.append(f"{_where(result)}: {kinds}: {figures.first_error}")
        if figures.queued:
            found.append(
                f"{cell.setup}: {cell.requests} requests never all ran at once (fewer slots?): whole span taken"
            )
        if not figures.counts_agree:
            found.append(f"{cell.setup}: the server's usage and its timings count different tokens")
    found += _busy(results)
    fast = [r for r in results if ceiling and _chunk_rate(r) > ceiling / MARGIN]
    found += [f"{_where(r)}: {_chunk_rate(r):,.0f} chunks/s, over a tenth of what the generator can read" for r in fast]
    return list(dict.fromkeys(found))


def _where(result: Result) -> str:
    return f"{result.cell.setup}, {result.cell.requests} requests" if result.cell.requests else result.cell.setup


def _busy(results: Sequence[Result]) -> list[str]:
    others = [float(r.conditions.get("other_cores", 0.0)) for r in results]
    busy = [cores for cores in others if cores > BUSY_CORES]
    if not busy:
        return []
    return [
        f"the machine was busy in {len(busy)} of {len(others)} runs: other programs used up to {max(busy):.1f} cores"
    ]


def _chunk_rate(result: Result) -> float:
    figures = result.figures
    return figures.chunks / figures.window_s if figures.window_s > 0 else 0.0


def provenance(results: Sequence[Result]) -> list[str]:
    """Lines that say what the figures were measured on: what all share, then what each setup has of its own."""
    if not results:
        return []
    by_setup: dict[str, Mapping[str, Any]] = {}
    for result in results:
        by_setup.setdefault(result.cell.setup, result.measured_on)
    first = next(iter(by_setup.values()))
    shared = {k: v for k, v in first.items() if all(on.get(k) == v for on in by_setup.values())}
    lines = [", ".join(f"{name} {value}" for name, value in shared.items() if value is not None)]
    for setup, on in by_setup.items():
        own = [f"{name} {value}" for name, value in on.items() if name not in shared and value is not None]
        if own:
            lines.append(f"{setup}: {', '.join(own)}")
    settings = ", ".join(f"{name} {value}" for name, value in results[0].settings.items())
    lines.append(f"load: {settings}")
    if began := [str(result.conditions["began"]) for result in results if "began" in result.conditions]:
        loads = [float(result.conditions.get("load_average", 0.0)) for result in results]
        lines.append(f"begun {min(began)}, load average {min(loads):.1f} to {max(loads):.1f}")
    return lines
