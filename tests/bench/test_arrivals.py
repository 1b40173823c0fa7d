"""Arrival times: at random with a rate, or from traces of three formats."""

from __future__ import annotations

import re
import statistics
from itertools import pairwise
from pathlib import Path

import pytest

from onebit.bench.arrivals import Arrival, poisson, read_trace
from onebit.errors import BenchError


def test_poisson_has_its_rate_and_its_spread() -> None:
    """20,000 expected in 2,000 s: ±142 is one standard deviation; gaps vary as much as they are long."""
    arrivals = poisson(10, 2000, seed=3)
    assert abs(len(arrivals) - 20_000) < 5 * 142
    gaps = [b.at - a.at for a, b in pairwise(arrivals)]
    assert statistics.stdev(gaps) / statistics.mean(gaps) == pytest.approx(1, abs=0.05)
    assert arrivals == poisson(10, 2000, seed=3) != poisson(10, 2000, seed=4)
    assert arrivals[0].at > 0 and arrivals[-1].at < 2000


def test_our_own_format_and_mooncakes(tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl"
    path.write_text('{"at": 5, "prompt_tokens": 7, "tokens": 3}\n\n{"at": 4.5}\n')
    assert read_trace(path) == [Arrival(0.0), Arrival(0.5, 7, 3)]
    path.write_text('{"timestamp": 27482, "input_length": 6955, "output_length": 52, "hash_ids": [46]}\n')
    assert read_trace(path) == [Arrival(0.0, 6955, 52)]


def test_azures_format_and_a_cut(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    head = "TIMESTAMP,ContextTokens,GeneratedTokens\n"
    path.write_text(head + "2023-11-16 18:17:03.9799600,4808,10\n2023-11-16 18:17:04.9799600,3180,8\n")
    assert read_trace(path) == [Arrival(0.0, 4808, 10), Arrival(1.0, 3180, 8)]
    assert read_trace(path, duration=0.5) == [Arrival(0.0, 4808, 10)]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "holds no requests"),
        ("at\n", "holds no requests"),
        ("when\n3\n", "t:2: no time in it"),
        ("at\nsoon\n", "'soon' is not a time"),
        ('{"at": 1}\n{oh\n', "t:2: not JSON"),
        ('{"at": 1}\n[]\n', "t:2: not a JSON object"),
        ('{"at": 1e999}\n', "not a time"),
        ('{"at": 1, "tokens": -4}\n', "not a number of tokens"),
        ('{"at": 1, "prompt_tokens": "many"}\n', "not a number of tokens"),
        ('{"at": 1, "tokens": 99999999}\n', "not a number of tokens"),
    ],
)
def test_traces_that_are_none(tmp_path: Path, text: str, words: str) -> None:
    path = tmp_path / "t"
    path.write_text(text)
    with pytest.raises(BenchError, match=re.escape(words)):
        read_trace(path)


def test_a_trace_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(BenchError, match="cannot read the trace"):
        read_trace(tmp_path / "none")
    (tmp_path / "bytes").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(BenchError, match="cannot read the trace"):
        read_trace(tmp_path / "bytes")
