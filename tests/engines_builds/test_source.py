"""Fetching the pinned source: sealed by its checksum, unpacked safely, there or not there."""

from __future__ import annotations

import hashlib
import io
import tarfile
from collections.abc import Mapping
from pathlib import Path

import pytest

from onebit import paths
from onebit.engines import source
from onebit.errors import ConfigError, DownloadError

TOP = f"llama_cpp_python-{source.PINNED}"
GOOD = {
    f"{TOP}/CMakeLists.txt": "the outer one",
    f"{TOP}/vendor/llama.cpp/CMakeLists.txt": "project(llama)",
    f"{TOP}/vendor/llama.cpp/src/llama.cpp": "int x;",
    f"{TOP}/vendor/other/file": "no",
}


def archive(path: Path, files: Mapping[str, str], links: Mapping[str, str] | None = None) -> Path:
    with tarfile.open(path, "w:gz") as tar:
        for name, text in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(text.encode())
            tar.addfile(member, io.BytesIO(text.encode()))
        for name, target in (links or {}).items():
            member = tarfile.TarInfo(name)
            member.type, member.linkname = tarfile.SYMTYPE, target
            tar.addfile(member)
    return path


def test_only_llama_cpp_is_unpacked(home: Path) -> None:
    into = home / "tree"
    source.unpack(archive(home / "a.tar.gz", GOOD), into)
    files = sorted(str(p.relative_to(into)) for p in into.rglob("*") if p.is_file())
    assert files == ["CMakeLists.txt", "src/llama.cpp"]
    assert (into / "CMakeLists.txt").read_text() == "project(llama)"


@pytest.mark.parametrize(
    ("files", "links"),
    [
        ({f"{TOP}/vendor/llama.cpp/../../../evil": "x"}, {}),
        ({f"{TOP}/vendor/llama.cpp//../../evil": "x"}, {}),
        ({}, {f"{TOP}/vendor/llama.cpp/out": "../../../../evil"}),
        ({}, {f"{TOP}/vendor/llama.cpp/out": "/etc"}),
    ],
)
def test_an_archive_that_reaches_outside_is_refused(
    home: Path, files: Mapping[str, str], links: Mapping[str, str]
) -> None:
    with pytest.raises(DownloadError, match="cannot be unpacked"):
        source.unpack(archive(home / "a.tar.gz", {**GOOD, **files}, links), home / "deep" / "tree")
    assert not list(home.rglob("evil"))


def test_an_archive_without_it_and_a_damaged_one(home: Path) -> None:
    with pytest.raises(DownloadError, match=r"holds no vendor/llama\.cpp"):
        source.unpack(archive(home / "a.tar.gz", {f"{TOP}/README": "x"}), home / "tree")
    (home / "b.tar.gz").write_bytes(b"not a tar")
    with pytest.raises(DownloadError, match="cannot be unpacked"):
        source.unpack(home / "b.tar.gz", home / "tree2")


def test_fetch_is_atomic_and_done_once(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fetched: list[Path] = []

    def download(folder: Path) -> Path:
        fetched.append(folder)
        if len(fetched) == 1:
            raise DownloadError("no network")
        return archive(folder / "a.tar.gz", GOOD)

    monkeypatch.setattr(source, "download", download)
    notes: list[str] = []
    with pytest.raises(DownloadError):
        source.fetch(notes.append)
    folder = paths.sources_dir() / f"llama-cpp-python-{source.PINNED}"
    assert list(folder.iterdir()) == []
    tree = source.fetch(notes.append)
    assert tree == folder / "llama.cpp"
    assert list(folder.iterdir()) == [tree], "the download and the half-unpacked tree are gone"
    assert source.fetch(notes.append) == tree
    assert len(fetched) == 2
    assert notes[-2].startswith("downloading") and notes[-1].startswith("unpacking")


def test_pip_without_a_network_is_one_clear_message(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The real pip, sent to a port where nobody listens."""
    for name, value in {"INDEX_URL": "http://127.0.0.1:9/simple", "RETRIES": "0", "CONFIG_FILE": "/dev/null"}.items():
        monkeypatch.setenv(f"PIP_{name}", value)
    monkeypatch.delenv("PIP_EXTRA_INDEX_URL", raising=False)
    with pytest.raises(DownloadError) as caught:
        source.download(home)
    assert f"could not download llama-cpp-python {source.PINNED}: ERROR" in caught.value.message
    assert "--source DIR" in (caught.value.hint or "")


def test_another_file_than_the_pinned_one_is_refused(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The real pip, given a folder with an archive of the right name and the wrong content."""
    shelf, into = home / "shelf", home / "into"
    shelf.mkdir()
    into.mkdir()
    name = f"llama_cpp_python-{source.PINNED}"
    backend = "def get_requires_for_build_wheel(c=None): return []\ndef prepare_metadata_for_build_wheel(d, c=None):\n"
    backend += f"    import os\n    os.mkdir(f'{{d}}/{name}.dist-info')\n"
    metadata = f"Metadata-Version: 2.1\\nName: llama-cpp-python\\nVersion: {source.PINNED}\\n"
    backend += f"    open(f'{{d}}/{name}.dist-info/METADATA', 'w').write('{metadata}')\n"
    backend += f"    return '{name}.dist-info'\n"
    project = '[build-system]\nrequires = []\nbuild-backend = "backend"\nbackend-path = ["."]\n'
    sent = archive(shelf / f"{name}.tar.gz", {f"{name}/pyproject.toml": project, f"{name}/backend.py": backend})
    for variable, value in {"NO_INDEX": "1", "FIND_LINKS": str(shelf), "CONFIG_FILE": "/dev/null"}.items():
        monkeypatch.setenv(f"PIP_{variable}", value)
    with pytest.raises(DownloadError, match="is not the file that was pinned"):
        source.download(into)
    monkeypatch.setattr(source, "SHA256", hashlib.sha256(sent.read_bytes()).hexdigest())
    for left in into.iterdir():
        left.unlink()
    assert source.download(into) == into / sent.name


def test_the_names_of_versions(home: Path) -> None:
    assert source.version_of(None) == f"llama-cpp-python-{source.PINNED}"
    mine = source.version_of(home / ".my llama.cpp")
    assert mine.startswith("-my-llama-cpp-"), "no dot, no slash, no blank: it becomes a folder's name"
    assert mine != source.version_of(home / "other" / ".my llama.cpp")


def test_a_source_folder_without_cmake_is_refused(home: Path) -> None:
    with pytest.raises(ConfigError, match=r"no CMakeLists\.txt"):
        source.check_folder(home)
