"""Two results files, or the setups of one, pair by pair: ratios with intervals. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from onebit.bench.results import Result
from onebit.bench.row import Figures
from onebit.bench.stats import Estimate, Percentiles, estimate, ratio
from onebit.errors import BenchError

_FACTS = ("cpu", "model_fingerprint", "device", "build", "flags")


@dataclass(frozen=True, slots=True)
class Pairing:
    """The same load on two sides. `ratio` is other / base, of total tok/s."""

    requests: int
    base: str
    other: str
    base_total: Estimate
    other_total: Estimate
    ratio: Estimate

    @property
    def verdict(self) -> str:
        """What the interval says, where it says anything: with one run each it does not."""
        if self.ratio.count < 2:
            return "one run"
        if self.ratio.low > 1:
            return "faster"
        return "slower" if self.ratio.high < 1 else "no difference seen"


def between(base: Sequence[Result], other: Sequence[Result]) -> list[Pairing]:
    """The setups of two files by their names; where each file has only one, those two.

    Raises BenchError when no load was measured on both sides.
    """
    names = _setups(base), _setups(other)
    one_each = all(len(found) == 1 for found in names)
    pairs = [(names[0][0], names[1][0])] if one_each else [(name, name) for name in names[0] if name in names[1]]
    found = [pairing for a, b in pairs for pairing in _pairings(base, a, other, b)]
    if not found:
        raise BenchError(
            f"nothing was measured in both files: {', '.join(names[0])} in one, {', '.join(names[1])} in the other",
            hint="they need a setup (or one setup each) and a number of requests in common",
        )
    return found


def within(results: Sequence[Result], base: str | None = None) -> list[Pairing]:
    """The setups of one file against one of them, the first by default. They were interleaved, so their runs are
    pairs: the ratios are taken run by run. Raises BenchError."""
    names = _setups(results)
    base = base or names[0]
    if base not in names:
        raise BenchError(f"there is no setup {base!r}", hint=f"there are {', '.join(names)}")
    found = [p for name in names if name != base for p in _pairings(results, base, results, name, paired=True)]
    if not found:
        raise BenchError("there is only one setup in this file", hint="name a second file to compare with")
    return found


def differences(base: Sequence[Result], other: Sequence[Result]) -> list[str]:
    """What else differs between two files than what is compared."""
    found = []
    for name in _FACTS:
        sides = [{str(r.measured_on.get(name)) for r in results if name in r.measured_on} for results in (base, other)]
        if sides[0] and sides[1] and sides[0] != sides[1]:
            found.append(f"{name}: {', '.join(sorted(sides[0]))} against {', '.join(sorted(sides[1]))}")
    for name in base[0].settings.keys() | other[0].settings.keys():
        one, two = base[0].settings.get(name), other[0].settings.get(name)
        if one != two:
            found.append(f"{name}: {one} against {two}")
    return sorted(found)


def predictions(live: Figures, simulated: Figures) -> list[tuple[str, float, float]]:
    """(what, as it was live, as it was simulated), of all that both know: rates in tok/s, times in ms."""
    found = []
    for what, measure in _OPEN_LOOP.items():
        a, b = measure(live), measure(simulated)
        if a and b is not None:
            found.append((what, a, b))
    return found


def _times(of: Percentiles | None, name: str) -> float | None:
    value: float | None = getattr(of, name, None)
    return value


_OPEN_LOOP: Mapping[str, Callable[[Figures], float | None]] = {
    "total tok/s": lambda figures: figures.total_tok_s,
    "tok/s per user": lambda figures: figures.user_tok_s,
    "first token, ms p50": lambda figures: _times(figures.ttft_ms, "p50"),
    "first token, ms p95": lambda figures: _times(figures.ttft_ms, "p95"),
    "between tokens, ms p50": lambda figures: _times(figures.gap_ms, "p50"),
    "between tokens, ms p95": lambda figures: _times(figures.gap_ms, "p95"),
}


def _setups(results: Sequence[Result]) -> list[str]:
    return list(dict.fromkeys(result.cell.setup for result in results))


def _pairings(
    base: Sequence[Result], name: str, other: Sequence[Result], other_name: str, *, paired: bool = False
) -> list[Pairing]:
    ours, theirs = _totals(base, name), _totals(other, other_name)
    found = []
    for requests in sorted(ours.keys() & theirs.keys()):
        a, b = ours[requests], theirs[requests]
        both = sorted(a.keys() & b.keys())
        if paired and both and all(a[repeat] > 0 for repeat in both):
            against = estimate([b[repeat] / a[repeat] for repeat in both])
        else:
            against = ratio(list(b.values()), list(a.values()))
        total_a, total_b = estimate(list(a.values())), estimate(list(b.values()))
        if against is not None and total_a is not None and total_b is not None:
            found.append(Pairing(requests, name, other_name, total_a, total_b, against))
    return found


def _totals(results: Sequence[Result], setup: str) -> dict[int, dict[int, float]]:
    """requests → repeat → total tok/s."""
    found: dict[int, dict[int, float]] = {}
    for result in results:
        total = result.figures.total_tok_s
        if result.cell.setup == setup and total is not None:
            found.setdefault(result.cell.requests, {})[result.cell.repeat] = total
    return found
