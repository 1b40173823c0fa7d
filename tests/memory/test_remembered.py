"""What was measured, kept in a file that several servers write and that anything may have happened to."""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from onebit import paths
from onebit.engines.device import Device, DeviceKind
from onebit.engines.spec import Adapter, Draft, DraftKind, EngineSpec
from onebit.memory.remembered import Remembered, key_of
from tests.engines.specs import CARD, CARD_BUILD, spec


@pytest.fixture
def model(tmp_path: Path) -> Path:
    path = tmp_path / "m.gguf"
    path.write_bytes(b"GGUF")
    return path


@pytest.fixture
def engine(model: Path) -> EngineSpec:
    return spec(model=model)


def test_what_was_stored_is_recalled_by_the_next_server(tmp_path: Path, engine: EngineSpec) -> None:
    file = tmp_path / "cache" / "memory.json"
    assert Remembered(file).recall(engine) is None
    Remembered(file).store(engine, 1000)
    Remembered(file).store(engine, 2000)
    assert Remembered(file).recall(engine) == 2000
    same = replace(engine, name="cpu-2", alias="other", threads=7, rank=1, row_limit=8)
    assert Remembered(file).recall(same) == 2000


def test_its_place_is_the_cache_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, engine: EngineSpec) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    Remembered().store(engine, 5)
    assert paths.memory_file().is_file()
    assert paths.memory_file().is_relative_to(tmp_path)


def test_everything_the_bytes_depend_on_makes_another_entry(tmp_path: Path, engine: EngineSpec) -> None:
    head, adapter = tmp_path / "head.gguf", tmp_path / "a.gguf"
    head.write_bytes(b"1")
    adapter.write_bytes(b"2")
    draft = Draft(DraftKind.MTP, 3)
    vulkan = Device(DeviceKind.VULKAN)
    card = replace(engine, device=vulkan, build=CARD_BUILD)
    others = [
        engine,
        replace(engine, slots=5),
        replace(engine, context=512),
        replace(engine, batch=64),
        replace(engine, gpu_layers=3),
        replace(engine, embeddings=True),
        replace(engine, embeddings=True, pooling="mean"),
        replace(engine, extra=("-ctk", "q8_0")),
        replace(engine, draft=draft),
        replace(engine, draft=replace(draft, length=4)),
        replace(engine, draft=replace(draft, kind=DraftKind.NGRAM)),
        replace(engine, draft=replace(draft, model=head)),
        replace(engine, adapters=(Adapter(adapter),)),
        replace(engine, build=replace(engine.build, version="2")),
        card,
        replace(card, build=replace(CARD_BUILD, devices=(replace(CARD, description="another card"),))),
    ]
    assert len({key_of(other) for other in others}) == len(others)


def test_a_changed_file_is_another_model(engine: EngineSpec, model: Path) -> None:
    before = key_of(engine)
    stat = model.stat()
    os.utime(model, ns=(stat.st_atime_ns, stat.st_mtime_ns + 1))
    changed = key_of(engine)
    model.write_bytes(b"GGUFGGUF")
    os.utime(model, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    assert len({before, changed, key_of(engine)}) == 3


def test_a_file_that_is_gone_is_not_remembered(tmp_path: Path, engine: EngineSpec, model: Path) -> None:
    model.unlink()
    Remembered(tmp_path / "memory.json").store(engine, 1)
    assert Remembered(tmp_path / "memory.json").recall(engine) is None
    assert not (tmp_path / "memory.json").exists()


@pytest.mark.parametrize(
    "damage",
    [
        b"",
        b"{",
        b"\xff\xfe",
        b"[]",
        b'{"format": 2, "bytes": {}}',
        b'{"format": 1, "bytes": []}',
        b'{"format": 1, "bytes": {"a": "1"}}',
        b'{"format": 1, "bytes": {"a": -1}}',
        b'{"format": 1, "bytes": {"a": true}}',
        b'{"format": 1, "bytes": {"a": NaN}}',
        b'{"format": 1, "bytes": {"a": 1' + b"0" * 5000 + b"}}",
        b"[" * 100_000,
        b" " * ((1 << 20) + 1),
    ],
)
def test_a_damaged_file_is_empty_and_said_and_mended(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, engine: EngineSpec, damage: bytes
) -> None:
    file = tmp_path / "memory.json"
    file.write_bytes(damage)
    with caplog.at_level(logging.WARNING):
        assert Remembered(file).recall(engine) is None
    assert str(file) in caplog.text
    Remembered(file).store(engine, 7)
    assert Remembered(file).recall(engine) == 7


@pytest.mark.parametrize("size", [0, -1, 1 << 60])
def test_a_size_that_cannot_be_is_not_stored(tmp_path: Path, engine: EngineSpec, size: int) -> None:
    Remembered(tmp_path / "memory.json").store(engine, size)
    assert Remembered(tmp_path / "memory.json").recall(engine) is None


def test_the_entries_longest_not_written_give_way(tmp_path: Path, engine: EngineSpec) -> None:
    file = tmp_path / "memory.json"
    file.write_text(json.dumps({"format": 1, "bytes": {str(i): i + 1 for i in range(512)}}))
    entries = Remembered(file)
    entries.store(engine, 6)
    entries.store(replace(engine, slots=1), 1)
    entries.store(engine, 7)  # written again: the newest again
    kept = json.loads(file.read_text())["bytes"]
    assert len(kept) == 512
    assert "1" not in kept and "2" in kept
    assert list(kept)[-1] == key_of(engine)


def test_a_folder_that_cannot_be_written_is_said_and_no_more(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, engine: EngineSpec
) -> None:
    (tmp_path / "cache").write_text("not a folder")
    Remembered(tmp_path / "cache" / "memory.json").store(engine, 7)
    assert "not kept" in caplog.text


def test_a_full_disk_leaves_the_old_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, engine: EngineSpec
) -> None:
    file = tmp_path / "memory.json"
    Remembered(file).store(engine, 7)

    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    Remembered(file).store(engine, 8)
    monkeypatch.undo()
    assert "No space left" in caplog.text
    assert Remembered(file).recall(engine) == 7
    assert {path.name for path in tmp_path.iterdir()} == {"m.gguf", "memory.json", ".memory.json.lock"}


def test_servers_that_write_at_once_lose_nothing(tmp_path: Path, model: Path) -> None:
    file = tmp_path / "memory.json"
    code = """
import sys
from pathlib import Path
from onebit.memory.remembered import Remembered
from tests.engines.specs import spec
file, model, number = Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3])
for i in range(20):
    Remembered(file).store(spec(model=model, slots=number, context=i + 1), 1000 * number + i)
"""
    servers = [
        subprocess.Popen(
            [sys.executable, "-c", code, str(file), str(model), str(number)], cwd=Path(__file__).parents[2]
        )
        for number in (1, 2, 3)
    ]
    assert [server.wait() for server in servers] == [0, 0, 0]
    entries = Remembered(file)
    for number in (1, 2, 3):
        for i in range(20):
            assert entries.recall(spec(model=model, slots=number, context=i + 1)) == 1000 * number + i
