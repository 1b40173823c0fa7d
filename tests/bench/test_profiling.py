"""Profiles: measured on two engine processes, stored, found again by what they hold for, checked."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from onebit.bench.answer import Ask
from onebit.bench.profiling import Pair, Profiling
from onebit.bench.steady import total_rate
from onebit.bench.target import engines_running
from onebit.engines.spec import Draft, DraftKind, EngineSpec
from onebit.errors import BenchError, ProfileError
from onebit.models.fingerprint import fingerprint
from onebit.scheduler.profile import Grid, Profile, ProfileKey
from onebit.scheduler.profile_file import find, key_of, path_of, read, write
from tests.bench.servers import fake_spec
from tests.engines.specs import spec


class Quiet:
    """Shows nothing."""

    def doing(self, what: str) -> None:
        """Nothing."""

    def point(self, point: tuple[int, int], total: float, left: float) -> None:
        """Nothing."""


@pytest.mark.anyio
async def test_two_engines_are_measured_point_by_point_and_gone_on_with(tmp_path: Path) -> None:
    """20 ms a token on one, 40 ms on the other: they cannot be faster than 50 and 25 tok/s for each request."""
    first = fake_spec(tmp_path, slots=2, name="a", tokens=1000, token_delay_s=0.02)
    second = fake_spec(tmp_path, slots=1, name="b", tokens=1000, token_delay_s=0.04)
    pair = Pair(first, _named(second, "second"), tmp_path, 30)
    kept: list[int] = []
    profiling = Profiling(pair, 200, 4, 0.2, Quiet(), keep=lambda points: kept.append(len(points)))
    assert await profiling.run(budget=0.001) is False, "time is up after the first point"
    assert kept == [1] and list(profiling.points) == [(1, 0)]
    assert await profiling.run(budget=600) is True
    assert set(profiling.points) == {(1, 0), (2, 0), (0, 1), (1, 1), (2, 1)}
    for (a, b), total in profiling.points.items():
        assert 0 < total <= 1.1 * (50 * a + 25 * b)
    assert await profiling.run(budget=600) is True and kept == [1, 2, 3, 4, 5], "nothing is measured twice"
    assert profiling.checked() == []
    await profiling.check([2, 9], rounds=2)
    (checked,) = profiling.checked()
    assert len(checked.ratios) == 2 and set(checked.alone) == {(2, 0)}


def _named(of: EngineSpec, name: str) -> EngineSpec:
    return replace(of, name=name)


@pytest.mark.anyio
async def test_a_request_that_fails_ends_the_measurement(tmp_path: Path) -> None:
    broken = fake_spec(tmp_path, tokens=100, close_after_chunks=8)
    async with engines_running([broken], tmp_path, 30) as engines:
        with pytest.raises(BenchError, match="closed early"):
            await total_rate(engines, (2,), Ask("", 50), lambda: "hello", 30)


KEY = ProfileKey("f00d", "vulkan", "rocm")
GRIDS = {0: Grid({(1, 0): 11.8, (0, 1): 11.6, (1, 1): 14.3}), 2: Grid({(1, 0): 30.0})}


def test_what_is_stored_is_found_again(home: Path) -> None:
    path = write(Profile(KEY, GRIDS, (64, 32)), {"cpu": "test"})
    assert path == path_of(KEY) and home in path.parents
    found = find(KEY)
    assert found is not None and found.key == KEY and found.lengths == (64, 32)
    assert {draft: dict(grid.points) for draft, grid in found.grids.items()} == {
        draft: dict(grid.points) for draft, grid in GRIDS.items()
    }
    assert found.grid(2) is not None and found.grid(1) is None
    assert find(ProfileKey("f00d", "vulkan", "another build")) is None
    assert [p.name for p in path.parent.iterdir()] == [path.name], "no temporary file is left"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "damaged"),
        ("[1]", "damaged"),
        ("{}", "damaged"),
        ('{"version": 99}', "format version 99, this onebit writes 1"),
        (
            '{"version": 1, "key": {"model": "a", "first": "b", "second": "c"}, "grids": {"0": [[1, 0, NaN]]}}',
            "damaged",
        ),
        ('{"version": 1, "key": {"model": "a", "first": "b", "second": "c"}, "grids": {"0": [[1, 0]]}}', "damaged"),
        ("[" * 200_000, "damaged"),
        (" " * (5 << 20), "over 4 MiB"),
    ],
)
def test_files_that_are_no_profile(tmp_path: Path, text: str, words: str) -> None:
    path = tmp_path / "p.json"
    path.write_text(text)
    with pytest.raises(ProfileError) as error:
        read(path)
    assert words in error.value.message and error.value.hint == "onebit bench profile makes one"


def test_a_folder_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ProfileError, match="cannot write the profile"):
        write(Profile(KEY, GRIDS), {}, tmp_path / "file" / "p.json")
    with pytest.raises(ProfileError, match="cannot read the profile"):
        read(tmp_path / "none.json")


def test_the_key_holds_what_changes_speed_and_nothing_else() -> None:
    first, second = spec(), spec(name="b", threads=2)
    key = key_of("f", first, second)
    assert key == key_of("f", spec(slots=32, draft=Draft(DraftKind.MTP, 3)), spec(slots=1, name="c", threads=2))
    for other in (spec(threads=3), spec(batch=256), spec(gpu_layers=4), spec(extra=("--no-mmap",))):
        assert key_of("f", other, second) != key
    assert key_of("g", first, second) != key
    assert "threads" not in json.dumps(key.first) and "-t 1" in key.first


def test_a_fingerprint_sees_size_ends_and_middle(tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    data = bytearray(8 << 20)
    path.write_bytes(data)
    prints = {fingerprint(path)}
    for place in (0, len(data) // 63 * 31, len(data) - 1):  # the 32nd of 64 samples begins there
        changed = bytearray(data)
        changed[place] = 1
        path.write_bytes(changed)
        prints.add(fingerprint(path))
    path.write_bytes(data + b"\0")
    prints.add(fingerprint(path))
    path.write_bytes(b"small")
    prints.add(fingerprint(path))
    path.write_bytes(b"smalL")
    prints.add(fingerprint(path))
    assert len(prints) == 7
