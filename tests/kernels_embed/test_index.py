"""Index files: written in parts, read in place; damaged ones and full disks are reported, and nothing is left over."""

from __future__ import annotations

import random
import resource
from collections.abc import Iterator
from pathlib import Path
from zlib import crc32

import numpy as np
import pytest

from onebit.errors import EmbedError
from onebit.kernels.embed import Embedder, Index, IndexWriter
from onebit.kernels.embed.lines import LONGEST, read_lines

TEXTS = [b"the cat sat on the mat", b"quarterly revenue grew", "ein Gedicht über Käse 🧀".encode(), b"\xff broken"]


def write_index(path: Path, embedder: Embedder, texts: list[bytes]) -> Path:
    with IndexWriter(path, embedder.dims, embedder.table.fingerprint()) as writer:
        for start in range(0, len(texts), 3):
            part = texts[start : start + 3]
            writer.add(part, embedder.encode(part))
    return path


def test_what_was_written_is_found(tmp_path: Path, embedder: Embedder) -> None:
    index = Index(write_index(tmp_path / "index", embedder, TEXTS))
    assert [index.text(row) for row in range(len(index))] == [text.decode("utf-8", "replace") for text in TEXTS]
    assert index.table == embedder.table.fingerprint()
    for row, text in enumerate(TEXTS[:3]):
        best = index.vectors.search(embedder.encode([text])[0], 1)[0]
        assert best.row == row
        assert best.score > 0.99
    assert (tmp_path / "index").stat().st_mode & 0o777 == 0o644


def test_an_empty_index(tmp_path: Path, embedder: Embedder) -> None:
    index = Index(write_index(tmp_path / "index", embedder, []))
    assert len(index) == 0
    assert index.vectors.search(np.ones(embedder.dims, np.float32)) == []
    assert index.containing("x").tolist() == []


def test_containing_finds_no_text_across_two(tmp_path: Path, embedder: Embedder) -> None:
    index = Index(write_index(tmp_path / "index", embedder, [b"ab", b"cab", b"", b"bab ab", b"c"]))
    assert index.containing("ab").tolist() == [True, True, False, True, False]
    assert index.containing("bc").tolist() == [False] * 5  # the ends of one and the beginning of the next
    assert index.containing("").tolist() == [True] * 5


def test_containing_where_all_texts_are_empty(tmp_path: Path, embedder: Embedder) -> None:
    index = Index(write_index(tmp_path / "index", embedder, [b"", b""]))
    assert index.containing("x").tolist() == [False, False]


def test_containing_in_any_block(tmp_path: Path, embedder: Embedder, monkeypatch: pytest.MonkeyPatch) -> None:
    texts = ["a cat", "", "cats", "c", "at", "a ca", "t", "kätzchen", "scat ", "ca", "ca", "cat"]
    index = Index(write_index(tmp_path / "index", embedder, [text.encode() for text in texts]))
    for block in range(1, 12):
        monkeypatch.setattr("onebit.kernels.embed.index._BLOCK", block)
        for part in ("cat", "a", "ä", "cats", "a cat", "kätzchen", "dog", "x" * 100):
            assert index.containing(part).tolist() == [part in text for text in texts]


def test_containing_bytes_and_half_characters(tmp_path: Path, embedder: Embedder) -> None:
    index = Index(write_index(tmp_path / "index", embedder, TEXTS))
    assert index.containing(b"\xff").tolist() == [False, False, False, True]
    assert index.containing("\udcff").tolist() == [False] * 4


class TestDamage:
    @pytest.fixture
    def whole(self, tmp_path: Path, embedder: Embedder) -> bytes:
        return write_index(tmp_path / "index", embedder, TEXTS).read_bytes()

    def test_truncations(self, tmp_path: Path, whole: bytes) -> None:
        for length in [0, 1, 8, 100, 4095, 4096, *range(4097, len(whole), 311), len(whole) - 1]:
            (tmp_path / "index").write_bytes(whole[:length])
            with pytest.raises(EmbedError, match="index is"):
                Index(tmp_path / "index")

    def test_damaged_headers(self, tmp_path: Path, whole: bytes) -> None:
        chance = random.Random(7)
        for _ in range(500):
            damaged = bytearray(whole)
            for _ in range(chance.randint(1, 3)):
                damaged[chance.randrange(110)] = chance.choice(b'0123456789{}[]",:- \x00\xffe')
            (tmp_path / "index").write_bytes(damaged)
            if damaged != whole:
                with pytest.raises(EmbedError, match=r"damaged|is no index"):
                    Index(tmp_path / "index")

    @pytest.mark.parametrize(
        ("old", "new"),
        [
            (b'"version": 1', b'"version": 9'),
            (b'"rows": 4', b'"rows":-4'),
            (b'"rows": 4', b'"rows": 5'),
            (b'"dims": 256', b'"dims": 0.5'),
            (b'"texts"', b'"taxts"'),
        ],
    )
    def test_headers_that_lie(self, tmp_path: Path, whole: bytes, old: bytes, new: bytes) -> None:
        assert old in whole
        header = whole[16:4096].replace(old, new)
        (tmp_path / "index").write_bytes(whole[:8] + f"{crc32(header):08x}".encode() + header + whole[4096:])
        with pytest.raises(EmbedError, match=r"damaged|version"):
            Index(tmp_path / "index")

    @pytest.mark.parametrize(
        ("at", "bytes_there"),
        [(0, b"\xff" * 4), (64, b"\xff" * 4), (64, b"\xff" * 8)],
        ids=["a NaN", "an end far away", "an end before the beginning"],
    )
    def test_numbers_that_lie(self, tmp_path: Path, whole: bytes, at: int, bytes_there: bytes) -> None:
        damaged = bytearray(whole)
        at += 4096 + 4 * 256
        damaged[at : at + len(bytes_there)] = bytes_there
        (tmp_path / "index").write_bytes(damaged)
        with pytest.raises(EmbedError, match="is damaged"):
            Index(tmp_path / "index")


class TestWriting:
    def test_an_error_on_the_way_leaves_the_old_index(self, tmp_path: Path, embedder: Embedder) -> None:
        path = write_index(tmp_path / "index", embedder, TEXTS)
        before = path.read_bytes()
        with pytest.raises(EmbedError, match="4 texts"), IndexWriter(path, embedder.dims, "") as writer:
            writer.add(TEXTS, np.ones((4, 3, 2), np.float32))
        assert path.read_bytes() == before
        assert list(tmp_path.iterdir()) == [path]

    def test_other_files_are_not_overwritten(self, tmp_path: Path, embedder: Embedder) -> None:
        (tmp_path / "notes.txt").write_text("mine")
        with pytest.raises(EmbedError, match="exists and is no index"):
            write_index(tmp_path / "notes.txt", embedder, TEXTS)
        assert (tmp_path / "notes.txt").read_text() == "mine"

    def test_a_folder_that_is_not_there(self, tmp_path: Path, embedder: Embedder) -> None:
        with pytest.raises(EmbedError, match="cannot be written: No such file"):
            write_index(tmp_path / "no" / "index", embedder, TEXTS)

    def test_a_name_that_is_too_long(self, tmp_path: Path, embedder: Embedder) -> None:
        with pytest.raises(EmbedError, match="cannot be written: File name too long"):
            write_index(tmp_path / ("x" * 300), embedder, TEXTS)

    @pytest.fixture
    def small_disk(self) -> Iterator[None]:
        """Files may have 64 KiB and no more: what a full disk looks like, without one."""
        before = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 16, before[1]))
        yield
        resource.setrlimit(resource.RLIMIT_FSIZE, before)

    def test_a_full_disk(self, tmp_path: Path, embedder: Embedder, small_disk: None) -> None:
        with pytest.raises(EmbedError, match="cannot be written: File too large"):
            write_index(tmp_path / "index", embedder, TEXTS * 1000)
        assert list(tmp_path.iterdir()) == []


class TestLines:
    def test_lines_of_a_file(self, tmp_path: Path) -> None:
        path = tmp_path / "lines"
        path.write_bytes(b"one\r\n\n  \ntwo \n" + b"three\n" * 9000 + b"\xff last")
        parts = list(read_lines(path, None))
        lines = [line for part in parts for line in part.lines]
        assert lines == [b"one", b"two", *[b"three"] * 9000, b"\xff last"]
        assert (len(parts), parts[-1].done, parts[-1].total) == (2, path.stat().st_size, path.stat().st_size)

    def test_fields_of_objects(self, tmp_path: Path) -> None:
        (tmp_path / "lines").write_text('{"about": "é", "x": 1}\n')
        (part,) = read_lines(tmp_path / "lines", "about")
        assert part.texts == ["é"]
        assert part.lines == ['{"about": "é", "x": 1}'.encode()]

    @pytest.mark.parametrize("line", ["{", "[]", "1", "{}", '{"about": 1}', "[" * 100_000])
    def test_lines_without_the_field(self, tmp_path: Path, line: str) -> None:
        (tmp_path / "lines").write_text('{"about": "fine"}\n' + line)
        with pytest.raises(EmbedError, match="line 2 of"):
            list(read_lines(tmp_path / "lines", "about"))

    def test_a_line_without_end(self, tmp_path: Path) -> None:
        with (tmp_path / "lines").open("wb") as file:
            file.truncate(LONGEST + 2)
        with pytest.raises(EmbedError, match=r"line 1 of .* has more than 16 MiB"):
            list(read_lines(tmp_path / "lines", None))
