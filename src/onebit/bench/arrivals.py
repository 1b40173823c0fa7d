"""When requests come in an open loop: at random with a rate, or as a recorded trace says."""

from __future__ import annotations

import csv
import io
import json
import math
import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from onebit.errors import BenchError

_MAX_TRACE_BYTES = 256 << 20
_MAX_ARRIVALS = 1_000_000
_MAX_TOKENS = 1 << 20

# The names of three public formats: our own, Azure's LLM inference traces (CSV), Mooncake's (JSON lines, in ms).
_AT = {"at": 1.0, "TIMESTAMP": 1.0, "timestamp": 0.001}
_PROMPT = ("prompt_tokens", "ContextTokens", "input_length")
_TOKENS = ("tokens", "GeneratedTokens", "output_length")


@dataclass(frozen=True, slots=True)
class Arrival:
    """A request that comes `at` seconds after the start. None: the run's usual length."""

    at: float
    prompt_tokens: int | None = None
    tokens: int | None = None


def poisson(rate: float, duration: float, seed: int) -> list[Arrival]:
    """Arrivals that do not know of each other, `rate` a second on average, for `duration` seconds."""
    source = random.Random(seed)  # noqa: S311 - not a secret
    arrivals: list[Arrival] = []
    at = source.expovariate(rate)
    while at < duration:
        arrivals.append(Arrival(at))
        at += source.expovariate(rate)
    return arrivals


def read_trace(path: Path, duration: float | None = None) -> list[Arrival]:
    """The arrivals of a trace, the first at 0 seconds, those after `duration` left out.

    CSV with a header, or JSON lines. Each has a time (`at` in seconds, Azure's `TIMESTAMP`, Mooncake's `timestamp`
    in ms), and may have the tokens of prompt and answer. Raises BenchError with file and line.
    """
    try:
        if path.stat().st_size > _MAX_TRACE_BYTES:
            raise BenchError(f"{path} is over 256 MiB", hint="cut a part out of it")
        text = path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise BenchError(f"cannot read the trace {path}: {error}") from None
    found: list[Arrival] = []
    for number, record in _records(path, text):
        if len(found) >= _MAX_ARRIVALS:
            raise BenchError(f"{path}:{number}: over a million requests", hint="cut a part out of it")
        found.append(_arrival(record, f"{path}:{number}"))
    if not found:
        raise BenchError(
            f"{path} holds no requests", hint='a line is like {"at": 1.5, "prompt_tokens": 64, "tokens": 32}'
        )
    first = min(arrival.at for arrival in found)
    moved = sorted((Arrival(a.at - first, a.prompt_tokens, a.tokens) for a in found), key=lambda a: a.at)
    return [a for a in moved if duration is None or a.at < duration]


def _records(path: Path, text: str) -> Iterator[tuple[int, Mapping[str, Any]]]:
    if text.lstrip().startswith("{"):
        for number, line in enumerate(text.splitlines(), 1):
            if not line.strip():
                continue
            try:
                record = json.loads(line)
            except (ValueError, RecursionError):
                raise BenchError(f"{path}:{number}: not JSON") from None
            if not isinstance(record, dict):
                raise BenchError(f"{path}:{number}: not a JSON object")
            yield number, record
    else:
        try:
            for number, row in enumerate(csv.DictReader(io.StringIO(text)), 2):
                yield number, row
        except csv.Error as error:
            raise BenchError(f"{path}: not CSV: {error}") from None


def _arrival(record: Mapping[str, Any], place: str) -> Arrival:
    name = next((name for name in _AT if record.get(name) not in (None, "")), None)
    if name is None:
        raise BenchError(f"{place}: no time in it", hint=f"it is called {', '.join(_AT)}")
    at = _time(record[name], _AT[name])
    if at is None:
        raise BenchError(f"{place}: {record[name]!r} is not a time")
    return Arrival(at, _tokens(record, _PROMPT, place), _tokens(record, _TOKENS, place))


def _time(value: Any, unit: float) -> float | None:
    try:
        seconds = float(value) * unit
    except (TypeError, ValueError):
        try:
            seconds = datetime.fromisoformat(str(value)[:26]).timestamp()  # Azure's has seven digits of a second
        except ValueError:
            return None
    return seconds if math.isfinite(seconds) else None


def _tokens(record: Mapping[str, Any], names: tuple[str, ...], place: str) -> int | None:
    value = next((record[name] for name in names if record.get(name) not in (None, "")), None)
    if value is None:
        return None
    try:
        tokens = int(value)
    except (TypeError, ValueError):
        tokens = -1
    if not 0 <= tokens <= _MAX_TOKENS:
        raise BenchError(f"{place}: {value!r} is not a number of tokens (0 to {_MAX_TOKENS:,})")
    return max(1, tokens)
