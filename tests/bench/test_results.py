"""Results files: appended, gone on with, torn, of another version, on a full disk; comparing them."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from onebit.bench import compare
from onebit.bench.results import Cell, Result, ResultsFile, done, read
from onebit.bench.row import Figures
from onebit.bench.stats import Percentiles
from onebit.bench.summary import summaries
from onebit.errors import BenchError

SETTINGS = {"tokens": 8}


def result(setup: str, requests: int, repeat: int, total: float | None) -> Result:
    """A row."""
    figures = Figures(total_tok_s=total, ttft_ms=Percentiles(1, 2, 3), answers=requests, errors={"silent": 1})
    return Result(Cell(setup, requests, repeat), figures, SETTINGS, {"device": setup}, {"began": "2026-11-29"})


def test_what_is_written_is_read_again(tmp_path: Path) -> None:
    file = ResultsFile(tmp_path / "new" / "run.jsonl", resume=False)
    rows = [result("cpu", 1, 0, 10.5), result("cpu", 2, 0, None)]
    for row in rows:
        file.add(row)
    assert list(read(file.path)) == rows
    with pytest.raises(BenchError, match="holds results already"):
        ResultsFile(file.path, resume=False)
    again = ResultsFile(file.path, resume=True)
    facts = {"cpu": {"device": "cpu", "load": "whatever"}, "new": {"device": "rocm"}}
    assert list(done(again.known, SETTINGS, facts)) == [rows[0].cell], "the one without a figure is measured again"
    with pytest.raises(BenchError, match="tokens 8, this run has 16"):
        done(again.known, {"tokens": 16}, facts)
    with pytest.raises(BenchError, match="rows of cpu were measured with device 'cpu', this run has 'cuda'"):
        done(again.known, SETTINGS, {"cpu": {"device": "cuda"}})


def test_a_torn_last_line_is_cut_off(tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    whole = result("cpu", 1, 0, 10.0).line() + "\n"
    path.write_text(whole + result("cpu", 2, 0, 20.0).line()[:50])
    with pytest.raises(BenchError, match=r"run.jsonl:2: not a row"):
        list(read(path))
    file = ResultsFile(path, resume=True)
    assert len(file.known) == 1 and path.read_text() == whole
    file.add(result("cpu", 2, 0, 21.0))
    assert [row.figures.total_tok_s for row in read(path)] == [10.0, 21.0]


@pytest.mark.parametrize(
    "line",
    ["", "{}", "[]", "null", "nonsense", "[" * 50_000, '{"version": 1}', '{"version": 1, "setup": 1, "figures": 3}'],
)
def test_a_file_that_is_none(tmp_path: Path, line: str) -> None:
    path = tmp_path / "x.json"
    path.write_text(line + "\n")
    with pytest.raises(BenchError) as error:
        list(read(path))
    assert error.value.hint == "`onebit bench --json FILE` writes them"


def test_a_file_of_another_version(tmp_path: Path) -> None:
    path = tmp_path / "x.json"
    path.write_text(json.dumps(json.loads(result("cpu", 1, 0, 1.0).line()) | {"version": 9}) + "\n")
    with pytest.raises(BenchError, match=r"x.json:1: results of format version 9; this onebit reads 1"):
        list(read(path))


def test_a_full_disk(tmp_path: Path) -> None:
    full = Path("/dev/full")
    if not full.exists():
        pytest.skip("no /dev/full here")
    file = ResultsFile(tmp_path / "run.jsonl", resume=False)
    file.path = full
    with pytest.raises(BenchError, match="No space left on device") as error:
        file.add(result("cpu", 1, 0, 1.0))
    assert error.value.hint and "--resume" in error.value.hint


def test_two_files_by_setup_or_one_each() -> None:
    before = [result("cpu", 1, i, total) for i, total in enumerate((10.0, 11.0, 10.5))]
    after = [result("new", 1, i, total) for i, total in enumerate((20.0, 22.0, 21.0))]
    (pairing,) = compare.between(before, after)
    assert pairing.ratio.median == 2.0 and pairing.verdict == "faster"
    assert compare.differences(before, after) == ["device: cpu against new"]
    with pytest.raises(BenchError, match="nothing was measured in both"):
        compare.between([*before, result("third", 1, 0, 1.0)], after)


def test_setups_of_one_file_are_compared_round_by_round() -> None:
    """The machine became twice as slow, both alike: the ratio does not see it."""
    rows = [result("a", 4, i, 100.0 / (i + 1)) for i in range(3)] + [
        result("b", 4, i, 95.0 / (i + 1)) for i in range(3)
    ]
    (pairing,) = compare.within(rows)
    assert pairing.ratio.low == pytest.approx(0.95) and pairing.ratio.high == pytest.approx(0.95)
    assert pairing.verdict == "slower"
    assert compare.within(rows, "b")[0].verdict == "faster"
    with pytest.raises(BenchError, match="no setup 'c'"):
        compare.within(rows, "c")
    with pytest.raises(BenchError, match="only one setup"):
        compare.within(rows[:3])


def test_one_run_each_says_nothing() -> None:
    rows = [result("a", 1, 0, 10.0), result("b", 1, 0, 20.0)]
    assert compare.within(rows)[0].verdict == "one run"


def test_a_summary_sets_loads_against_one_request_round_by_round() -> None:
    """The second round is half as fast throughout: 3 × in both."""
    rows = [result("a", 1, 0, 20.0), result("a", 4, 0, 60.0), result("a", 1, 1, 10.0), result("a", 4, 1, 30.0)]
    one, four = summaries(rows)
    assert (one.to_one, four.to_one) == (None, 3.0)
    assert four.total is not None and (four.total.median, four.total.low, four.total.high) == (45.0, 30.0, 60.0)
    busy = Result(Cell("a", 1, 0), Figures(total_tok_s=1.0, tokens=30, prompt_tokens=20, cached_tokens=10, answers=1))
    spent = replace(busy, conditions={"engine_cpu_s": 4.0})
    assert [row.per_cpu_second for row in summaries([spent])] == [10.0]
    assert [row.per_cpu_second for row in summaries([busy])] == [None]


def test_a_prediction_is_held_against_what_was_measured() -> None:
    live = Figures(total_tok_s=50, ttft_ms=Percentiles(100, 200, 300), gap_ms=None)
    simulated = Figures(total_tok_s=55, user_tok_s=9, ttft_ms=Percentiles(90, 220, 300), gap_ms=Percentiles(1, 2, 3))
    assert compare.predictions(live, simulated) == [
        ("total tok/s", 50, 55),
        ("first token, ms p50", 100, 90),
        ("first token, ms p95", 200, 220),
    ], "what one of them does not know is left out"
