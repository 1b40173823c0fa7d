"""One row of results: what a run of answers comes to. Pure arithmetic over time stamps."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from statistics import median
from typing import Any

from onebit.bench.answer import Answer, Trouble
from onebit.bench.stats import Percentiles, percentiles_ms

_LEAST_TOKENS = 3  # in the window, per answer: below, the rate of one says nothing


@dataclass(frozen=True, slots=True)
class Figures:
    """What was measured in one run. Rates are tokens a second, None: could not be measured."""

    total_tok_s: float | None = None
    user_tok_s: float | None = None  # the median over the answers, from their first token to their last
    prompt_tok_s: float | None = None  # prompts of all, from the first sent to the last one's first token
    ttft_ms: Percentiles | None = None
    gap_ms: Percentiles | None = None  # between two tokens of one answer
    acceptance: float | None = None  # share of drafted tokens that were right; None: nothing was drafted
    engine_tok_s: float | None = None  # the median of what the engine's own timings say of each answer
    agreement: float | None = None  # median over the answers: our rate / the engine's own, over the same tokens
    window_s: float = 0.0
    answers: int = 0
    tokens: int = 0  # of all good answers, by the server's count
    prompt_tokens: int = 0
    cached_tokens: int = 0
    chunks: int = 0
    queued: bool = False  # never did all requests run at once
    counts_agree: bool = True  # `usage` and `timings`, and chunks, for all answers
    errors: Mapping[str, int] = field(default_factory=dict)
    first_error: str = ""


def closed(users: Sequence[Sequence[Answer]]) -> Figures:
    """Of a closed loop. Only the time counts in which all users were served: from when the last of them got its
    first token to when the first of them had nothing more to ask.

    Where that never was (the server has fewer slots than there are users), the whole span counts, and the row says so.
    """
    answers = [answer for user in users for answer in user]
    good = [answer for answer in answers if answer.good]
    served = [[a for a in user if a.good] for user in users]
    if not all(served):
        return _figures(answers, _span(good), queued=False)
    start = max(user[0].token_times[0] for user in served)
    end = min(user[-1].token_times[-1] for user in served)
    if end <= start:
        return _figures(answers, _span(good), queued=len(users) > 1)
    return _figures(answers, (start, end), queued=False)


def opened(answers: Sequence[Answer]) -> Figures:
    """Of an open loop: the whole span counts."""
    return _figures(answers, _span([a for a in answers if a.good]), queued=False)


def _span(answers: Sequence[Answer]) -> tuple[float, float]:
    if not answers:
        return (0.0, 0.0)
    return min(a.token_times[0] for a in answers), max(a.token_times[-1] for a in answers)


def _figures(answers: Sequence[Answer], window: tuple[float, float], *, queued: bool) -> Figures:
    good = [a for a in answers if a.good]
    bad = [a for a in answers if not a.good]
    errors = Counter(str(a.trouble or Trouble.EMPTY) for a in bad)
    first_error = bad[0].why if bad else ""
    if not good:
        return Figures(errors=errors, first_error=first_error)
    start, end = window
    length = end - start
    # A chunk may hold more than one token, or a token need two chunks: each counts for its share of the answer.
    tokens = sum(_in_window(a, start, end) * a.tokens / len(a.token_times) for a in good)
    drafted = sum(_number(a.timings, "draft_n") for a in good)
    accepted = sum(_number(a.timings, "draft_n_accepted") for a in good)
    both = [(rate(a), engine_rate(a)) for a in good]
    pairs = [(ours, theirs) for ours, theirs in both if ours and theirs]
    prompt_span = max(a.token_times[0] for a in good) - min(a.sent for a in good)
    computed = sum(a.prompt_tokens - a.cached_tokens for a in good)
    return Figures(
        total_tok_s=tokens / length if length > 0 else None,
        user_tok_s=_median([ours for ours, _ in both if ours]),
        prompt_tok_s=computed / prompt_span if prompt_span > 0 and computed > 0 else None,
        ttft_ms=percentiles_ms([a.token_times[0] - a.sent for a in good]),
        gap_ms=percentiles_ms([gap for a in good for gap in _gaps(a, start, end)]),
        acceptance=accepted / drafted if drafted else None,
        engine_tok_s=_median([theirs for _, theirs in pairs]),
        agreement=_median([ours / theirs for ours, theirs in pairs]),
        window_s=length,
        answers=len(good),
        tokens=sum(a.tokens for a in good),
        prompt_tokens=sum(a.prompt_tokens for a in good),
        cached_tokens=sum(a.cached_tokens for a in good),
        chunks=sum(len(a.token_times) for a in good),
        queued=queued,
        counts_agree=all(a.counts_agree for a in good),
        errors=errors,
        first_error=first_error,
    )


def rate(answer: Answer) -> float | None:
    """Tokens a second of one answer, as its client saw them: all but the first, from the first to the last."""
    times = answer.token_times
    if len(times) < _LEAST_TOKENS or times[-1] <= times[0]:
        return None
    # The first chunk's tokens came at no known speed: they are its share of the answer.
    return answer.tokens * (1 - 1 / len(times)) / (times[-1] - times[0])


def engine_rate(answer: Answer) -> float | None:
    """The same by llama-server's `timings`: its time runs from the end of the prompt, whose last step already gives
    the first token. None where the server sends none."""
    count, ms = _number(answer.timings, "predicted_n"), _number(answer.timings, "predicted_ms")
    return (count - 1) * 1000 / ms if count >= _LEAST_TOKENS and ms > 0 else None


def _in_window(answer: Answer, start: float, end: float) -> int:
    return sum(start < time <= end for time in answer.token_times)


def _gaps(answer: Answer, start: float, end: float) -> list[float]:
    times = answer.token_times
    return [b - a for a, b in pairwise(times) if start <= a and b <= end]


def _median(values: Sequence[float]) -> float | None:
    return median(values) if values else None


def _number(facts: Mapping[str, Any], name: str) -> float:
    value = facts.get(name)
    return float(value) if isinstance(value, int | float) and 0 <= value < 1e15 else 0.0
