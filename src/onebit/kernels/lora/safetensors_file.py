"""The header of a safetensors file: which tensor lies where.

The `safetensors` library gives tensors but no offsets, and no bfloat16 to numpy. A merge needs both: it copies a
file and rewrites some spans of it. The format is https://github.com/huggingface/safetensors#format: 8 bytes of
length (little-endian), a JSON object, the data. Everything in it is checked before any of it is used.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from io import BufferedReader
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from onebit.errors import ModelFileError
from onebit.kernels.lora.numbers import Matrix, Number

FETCH_AGAIN = "fetch the file again; its size or checksum will differ"
_MAX_HEADER = 100_000_000  # bytes; the library's own limit
_MAX_DIMS = 8
_ITEM_BYTES = {
    "F64": 8, "F32": 4, "F16": 2, "BF16": 2, "I64": 8, "I32": 4, "I16": 2, "I8": 1, "U64": 8, "U32": 4, "U16": 2,
    "U8": 1, "BOOL": 1, "F8_E4M3": 1, "F8_E5M2": 1, "F8_E8M0": 1, "C64": 8,
}  # fmt: skip
NUMBERS = {"F32": Number.F32, "BF16": Number.BF16, "F16": Number.F16}


@dataclass(frozen=True, slots=True)
class TensorSpan:
    """One tensor of a file."""

    name: str
    dtype: str  # "F32", "BF16", …
    shape: tuple[int, ...]
    offset: int  # bytes from the start of the file
    size: int  # bytes


@dataclass(frozen=True, slots=True)
class SafetensorsHeader:
    """What the header says, checked against the file's size."""

    path: Path
    tensors: Mapping[str, TensorSpan]
    metadata: Mapping[str, str]  # free texts of whoever wrote the file


def read_header(path: Path) -> SafetensorsHeader:
    """Read and check a header. Raises ModelFileError naming the file and what is wrong with it."""
    try:
        with path.open("rb") as file:
            return _read(path, file)
    except OSError as exc:
        hint = "name a .safetensors file" if path.is_dir() else "check the path and its permissions"
        raise ModelFileError(f"{path} cannot be read: {exc.strerror or exc}", hint=hint) from exc


def read_span(file: BufferedReader, path: Path, span: TensorSpan) -> NDArray[Any]:
    """One tensor's numbers in its shape, of the array type of its Number: bfloat16 as its bits in uint16.

    Raises ModelFileError where the file has become shorter, and for types that are not merged.
    """
    number = NUMBERS.get(span.dtype)
    if number is None:
        raise ModelFileError(f"{path}: {span.name} is {span.dtype}; F32, F16 and BF16 can be merged")
    file.seek(span.offset)
    array = np.empty(math.prod(span.shape), number.array_dtype)
    if file.readinto(array.view(np.uint8).data) != span.size:
        raise ModelFileError(f"{path} is truncated: {span.name} ends too early", hint=FETCH_AGAIN)
    return array.reshape(span.shape)


def read_matrix(file: BufferedReader, path: Path, span: TensorSpan) -> Matrix:
    """The same as rows × (the rest). Raises as `read_span`."""
    rows = span.shape[0] if span.shape else 1
    return Matrix(read_span(file, path, span).reshape(rows, math.prod(span.shape[1:])), NUMBERS[span.dtype])


def _read(path: Path, file: BufferedReader) -> SafetensorsHeader:
    size = path.stat().st_size
    head = file.read(9)
    if len(head) < 9 or head[8:9] != b"{":
        raise ModelFileError(f"{path} is not a safetensors file: {_looks_like(head)}", hint="name a .safetensors file")
    length = int.from_bytes(head[:8], "little")
    if length > _MAX_HEADER:
        raise ModelFileError(f"{path} announces a header of {length:,} bytes", hint=FETCH_AGAIN)
    if 8 + length > size:
        raise ModelFileError(f"{path} is truncated: it ends inside its header", hint=FETCH_AGAIN)
    try:
        entries = json.loads(b"{" + file.read(length - 1), object_pairs_hook=_no_duplicates)
    except (ValueError, RecursionError) as exc:
        raise ModelFileError(f"{path} has a damaged header: {exc}", hint=FETCH_AGAIN) from exc
    metadata = entries.pop("__metadata__", {})
    if not isinstance(metadata, dict):
        metadata = {}
    try:
        tensors = {name: _span(name, entry, 8 + length) for name, entry in entries.items()}
    except (TypeError, KeyError, ValueError) as exc:
        raise ModelFileError(f"{path} has a damaged header: {exc}", hint=FETCH_AGAIN) from exc
    _check_cover(path, tensors, 8 + length, size)
    return SafetensorsHeader(path, tensors, {str(k): str(v) for k, v in metadata.items()})


def _no_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    entries = dict(pairs)
    if len(entries) != len(pairs):
        raise ValueError("a key stands in it twice")
    return entries


def _span(name: str, entry: Any, data_begin: int) -> TensorSpan:
    shape, (begin, end), dtype = entry["shape"], entry["data_offsets"], entry["dtype"]
    whole = [*shape, begin, end]
    if len(shape) > _MAX_DIMS or not all(type(n) is int and 0 <= n < 2**48 for n in whole):
        raise ValueError(f"impossible shape or offsets of {name!r}")
    if dtype in _ITEM_BYTES and math.prod(shape) * _ITEM_BYTES[dtype] != end - begin:
        raise ValueError(f"{name!r} has {end - begin:,} bytes, which is not what {dtype} {shape} needs")
    return TensorSpan(name, str(dtype), tuple(shape), data_begin + begin, end - begin)


def _check_cover(path: Path, tensors: Mapping[str, TensorSpan], data_begin: int, size: int) -> None:
    """Spans must follow each other without gap or overlap: overlapping ones would be merged twice."""
    at = data_begin
    for span in sorted(tensors.values(), key=lambda s: (s.offset, s.size)):
        if span.offset != at:
            raise ModelFileError(
                f"{path} has a damaged header: {span.name!r} overlaps or leaves a gap", hint=FETCH_AGAIN
            )
        at += span.size
    if at > size:
        raise ModelFileError(f"{path} is truncated: {at:,} bytes are promised, {size:,} are there", hint=FETCH_AGAIN)


def _looks_like(head: bytes) -> str:
    if head[:2] == b"PK" or head[:1] == b"\x80":
        return "it is a PyTorch checkpoint (pickle), which can run code and is never opened"
    if head[:4] == b"GGUF":
        return "it is GGUF"
    if head.startswith(b"version "):
        return "it is a Git LFS pointer; `git lfs pull` fetches the file itself"
    return "it is empty" if not head else f"it starts with the bytes {head[:8].hex(' ')}"
