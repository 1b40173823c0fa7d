"""An index in one file: vectors to search in place (memory-mapped), and the texts they stand for.

    bytes 0-4095   b"onebitix", the CRC-32 of what follows up to byte 4095 (8 hex digits), JSON, padded with spaces:
                   version, dims, rows, texts (bytes), table (fingerprint)
    then           int8 vectors [rows, dims] | float32 scales [rows] | int64 ends of texts [rows] | texts, UTF-8
    each section starts at the next multiple of 64 bytes; numbers are little-endian

It suits 1 to 10 million rows: a search reads all vectors once. For more, use a library with an approximate index.
"""

from __future__ import annotations

import json
import mmap
import os
import sys
import tempfile
from array import array
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self
from zlib import crc32

import numpy as np
import numpy.typing as npt

from onebit.errors import EmbedError
from onebit.kernels.embed.table import MAX_DIMS
from onebit.kernels.embed.vectors import Vectors

_MAGIC = b"onebitix"
_HEADER = 4096  # bytes
_JSON_AT = 16  # bytes: after the magic and the checksum
_ALIGN = 64  # bytes: a cache line
_MAX_ROWS = 1 << 40
_VERSION = 1
_BLOCK = 1 << 20  # bytes of texts that are looked through at once


@dataclass(frozen=True, slots=True)
class _Layout:
    """Where the sections are, in bytes from the start of the file."""

    dims: int
    rows: int
    texts: int

    @property
    def scales_at(self) -> int:
        return _aligned(_HEADER + self.rows * self.dims)

    @property
    def ends_at(self) -> int:
        return _aligned(self.scales_at + self.rows * 4)

    @property
    def texts_at(self) -> int:
        return _aligned(self.ends_at + self.rows * 8)

    @property
    def size(self) -> int:
        return self.texts_at + self.texts


def _aligned(offset: int) -> int:
    return -(-offset // _ALIGN) * _ALIGN


class IndexWriter:
    """Writes an index part by part, in bounded memory (12 bytes a row); the file appears when the block ends well."""

    def __init__(self, path: Path, dims: int, table: str) -> None:
        self._path, self._dims, self._table = path, dims, table
        self._scales, self._ends = array("f"), array("q")
        self._text_bytes = 0
        self._file: Any = None
        self._texts: Any = None

    def __enter__(self) -> Self:
        try:
            if self._path.exists() and not _is_index(self._path):
                raise EmbedError(
                    f"{self._path} exists and is no index: it is not overwritten", hint="name another file"
                )
            # beside the target, so that the last step is a rename; both are closed in __exit__
            self._file = tempfile.NamedTemporaryFile(prefix=f".{self._path.name}.", dir=self._path.parent, delete=False)
            self._texts = tempfile.TemporaryFile(dir=self._path.parent)
            Path(self._file.name).chmod(0o644)
            self._file.write(b" " * _HEADER)
        except OSError as exc:
            self._discard()
            raise self._failed(exc) from exc
        return self

    def add(self, texts: Sequence[bytes], values: npt.NDArray[np.float32]) -> None:
        """Texts and their vectors, float32 [n, dims]."""
        if values.shape != (len(texts), self._dims):
            raise EmbedError(f"{len(texts)} texts with vectors of the shape {values.shape}, not (…, {self._dims})")
        vectors = Vectors.from_floats(values)
        try:
            self._file.write(vectors.rows.data)
            self._texts.write(b"".join(texts))
        except OSError as exc:
            raise self._failed(exc) from exc
        self._scales.frombytes(vectors.scales.tobytes())
        for text in texts:
            self._text_bytes += len(text)
            self._ends.append(self._text_bytes)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if kind is None:
                self._finish()
                Path(self._file.name).replace(self._path)
        except OSError as exc:
            raise self._failed(exc) from exc
        finally:
            self._discard()

    def _discard(self) -> None:
        """Remove what is left of the unfinished files; nothing, where all went well."""
        for file in (self._file, self._texts):
            with suppress(OSError):  # a full disk: what was not written yet is not wanted either
                if file is not None:
                    file.close()
        if self._file is not None:
            Path(self._file.name).unlink(missing_ok=True)

    def _finish(self) -> None:
        layout = _Layout(self._dims, len(self._ends), self._text_bytes)
        for at, numbers in ((layout.scales_at, self._scales), (layout.ends_at, self._ends)):
            self._file.seek(at)
            self._file.write(memoryview(numbers).cast("B"))
        self._file.seek(layout.texts_at)
        self._texts.seek(0)
        while part := self._texts.read(1 << 20):
            self._file.write(part)
        self._file.truncate(layout.size)
        header = {"version": _VERSION, "dims": layout.dims, "rows": layout.rows, "texts": layout.texts}
        self._file.seek(0)
        content = json.dumps(header | {"table": self._table}).encode().ljust(_HEADER - _JSON_AT)
        self._file.write(_MAGIC + _checksum(content) + content)
        self._file.flush()
        os.fsync(self._file.fileno())

    def _failed(self, exc: OSError) -> EmbedError:
        return EmbedError(f"{self._path} cannot be written: {exc.strerror or exc}")


class Index:
    """A memory-mapped index. `vectors` can be searched; `text(row)` is what a row stands for."""

    def __init__(self, path: Path) -> None:
        """Open and check; `EmbedError` says what is wrong with the file."""
        self.path = path
        try:
            with path.open("rb") as file:
                size = os.fstat(file.fileno()).st_size
                layout, self.table = _read_header(file.read(_HEADER), size, path)
                self._map = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        except OSError as exc:
            raise EmbedError(f"{path} cannot be read: {exc.strerror}") from exc
        self._texts_at = layout.texts_at
        rows = np.frombuffer(self._map, np.int8, layout.rows * layout.dims, _HEADER)
        scales = np.frombuffer(self._map, "<f4", layout.rows, layout.scales_at)
        self._ends = np.frombuffer(self._map, "<i8", layout.rows, layout.ends_at)
        if not (scales >= 0).all() or not np.isfinite(scales).all():  # 10 ms for 10 million rows
            raise EmbedError(f"{path} is damaged: a scale is negative or not a number", hint="make the index again")
        ends = self._ends
        if layout.rows and (ends[0] < 0 or ends[-1] != layout.texts or (ends[1:] < ends[:-1]).any()):
            raise EmbedError(f"{path} is damaged: the places of its texts are wrong", hint="make the index again")
        self.vectors = Vectors(rows.reshape(layout.rows, layout.dims), scales)

    def __len__(self) -> int:
        return len(self._ends)

    def text(self, row: int) -> str:
        """The text of a row."""
        start = int(self._ends[row - 1]) if row else 0
        return self._map[self._texts_at + start : self._texts_at + int(self._ends[row])].decode("utf-8", "replace")

    def containing(self, part: str | bytes) -> npt.NDArray[np.bool_]:
        """bool [rows]: whose text contains `part`, letter for letter, byte for byte. For `Vectors.search(allow=…)`."""
        allow = np.zeros(len(self), np.bool_)
        wanted = part if isinstance(part, bytes) else part.encode("utf-8", "surrogatepass")
        if not wanted or not len(self):
            return ~allow
        texts = np.frombuffer(self._map, np.uint8, int(self._ends[-1]), self._texts_at)
        # 10 million texts, 540 MB: 0.2 s, 1.6 s where each has it. (With the ends as uint64, which numpy compares with
        # int64 by making floats of all of them, it was 48 s.)
        for start in range(0, len(texts) - len(wanted) + 1, _BLOCK):
            block = texts[start : start + _BLOCK + len(wanted) - 1]
            at = np.flatnonzero(block[: len(block) - len(wanted) + 1] == wanted[0])
            for further, letter in enumerate(wanted[1:], 1):
                at = at[block[at + further] == letter]
                if not len(at):
                    break
            rows = np.searchsorted(self._ends, start + at, side="right")
            whole = start + at + len(wanted) <= self._ends[rows]  # not the end of one and the beginning of the next
            allow[rows[whole]] = True
        return allow


def _checksum(content: bytes) -> bytes:
    return f"{crc32(content):08x}".encode()


def _is_index(path: Path) -> bool:
    try:
        with path.open("rb") as file:
            return file.read(len(_MAGIC)) == _MAGIC
    except OSError:
        return False


def _read_header(header: bytes, size: int, path: Path) -> tuple[_Layout, str]:
    if sys.byteorder != "little":
        raise EmbedError("indexes need a little-endian machine")
    if len(header) < _HEADER or not header.startswith(_MAGIC):
        raise EmbedError(f"{path} is no index", hint="make one: onebit embed index FILE -o INDEX")
    try:
        if header[len(_MAGIC) : _JSON_AT] != _checksum(header[_JSON_AT:]):
            raise ValueError
        content = json.loads(header[_JSON_AT:])
        version, table = content["version"], content["table"]
        layout = _Layout(content["dims"], content["rows"], content["texts"])
    except (ValueError, KeyError, TypeError, RecursionError) as exc:
        raise EmbedError(
            f"{path} is damaged: its header is not as it was written", hint="make the index again"
        ) from exc
    if version != _VERSION:
        raise EmbedError(f"{path} has version {version!r}, this program reads {_VERSION}", hint="make the index again")
    bounds = ((layout.dims, 1, MAX_DIMS), (layout.rows, 0, _MAX_ROWS), (layout.texts, 0, 1 << 60))
    if any(type(value) is not int or not low <= value <= high for value, low, high in bounds):
        raise EmbedError(f"{path} is damaged: its header has impossible numbers", hint="make the index again")
    if size != layout.size or not isinstance(table, str):
        raise EmbedError(
            f"{path} is damaged: it has {size:,} bytes, its header asks for {layout.size:,}",
            hint="make the index again, with enough room on the disk",
        )
    return layout, table
