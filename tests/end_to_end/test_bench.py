"""`onebit bench` on the real engine: tokens and prompt caches as the engine counts them, MTP, both engines at once."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from onebit.engines.device import Build
from tests.support.mtp import Chain
from tests.support.serving import command

pytestmark = pytest.mark.engine


def _bench(file: Path, *args: str | Path) -> list[Mapping[str, Any]]:
    """The rows of a sweep on the CPU."""
    argv = command("bench", "--device", "cpu", "--repeats", "1", "--json", file, *args)
    done = subprocess.run(argv, capture_output=True, text=True, timeout=110, check=False)
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in file.read_text().splitlines()]


def test_tokens_are_counted_as_the_engine_counts_them(cpu_build: Build, demo: Path, tmp_path: Path) -> None:
    rows = _bench(tmp_path / "run.jsonl", "-m", demo, "-r", "1,3", "-n", "12", "-p", "24", "--router")
    assert [(row["setup"], row["requests"]) for row in rows] == [
        *[("cpu", 1), ("cpu", 3)],
        *[("cpu routed", 1), ("cpu routed", 3)],
    ]
    for row in rows:
        figures = row["figures"]
        assert figures["tokens"] == 12 * row["requests"] and figures["counts_agree"] and not figures["errors"]
        assert figures["agreement"] is not None, "the engine's own timings came with the answers"
        assert 20 * row["requests"] <= figures["prompt_tokens"] <= 30 * row["requests"]
    assert all(row["measured_on"]["build"] == cpu_build.version for row in rows)


def test_prompts_are_unknown_to_the_cache_unless_they_share_a_beginning(
    cpu_build: Build, demo: Path, tmp_path: Path
) -> None:
    """Four answers one after the other in one slot: the last three could find the prompt before."""
    lengths = ("-m", demo, "-r", "1", "-n", "4", "-p", "40", "--answers", "4")
    (unique,) = _bench(tmp_path / "unique.jsonl", *lengths)
    (shared,) = _bench(tmp_path / "shared.jsonl", *lengths, "--shared-prefix", "32")
    assert unique["figures"]["cached_tokens"] <= 4 * 3
    assert shared["figures"]["cached_tokens"] >= 3 * 28


def test_draft_lengths_side_by_side(cpu_build: Build, right: Chain, tmp_path: Path) -> None:
    rows = _bench(tmp_path / "run.jsonl", "-m", right.path, "--mtp", "0,2", "-r", "1", "-n", "24", "-p", "8")
    found = {row["setup"]: row["figures"] for row in rows}
    assert set(found) == {"cpu no mtp", "cpu mtp 2"}
    assert found["cpu no mtp"]["acceptance"] is None
    assert found["cpu mtp 2"]["acceptance"] == 1.0, "this head is always right"
    assert all(figures["tokens"] == 24 for figures in found.values())


def test_a_profile_of_two_cpu_engines(
    cpu_build: Build, demo: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))  # the profile goes there
    args: list[str | Path] = [
        "-m",
        demo,
        "--llama-server",
        cpu_build.path,
        "--device",
        "cpu,cpu",
        "--threads",
        "1,2",
        "--parallel",
        "2,1",
    ]
    argv = command(
        "bench", "profile", *args, "--seconds", "0.3", "-n", "16", "-p", "8", "--check", "1,2", "--rounds", "1"
    )
    done = subprocess.run(argv, capture_output=True, text=True, timeout=110, check=False)
    assert done.returncode == 0, done.stderr
    (path,) = (tmp_path / "onebit" / "profiles").glob("*.json")
    profile = json.loads(path.read_text())
    assert {tuple(point[:2]) for point in profile["grids"]["0"]} == {(1, 0), (2, 0), (0, 1), (1, 1), (2, 1)}
    assert all(total > 0 for _, _, total in profile["grids"]["0"])
    assert "-t 1" in profile["key"]["first"] and "-t 2" in profile["key"]["second"]
