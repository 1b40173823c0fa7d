"""Tiny GGUF files, valid and odd ones, for tests that need no tokenizer and no engine."""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from gguf import GGUFValueType, GGUFWriter

Value = bool | int | float | str | Sequence[int] | Sequence[bool] | Sequence[str]


def write_gguf(path: Path, *, arch: str, metadata: Mapping[str, Value], tensors: Mapping[str, tuple[int, ...]]) -> Path:
    """Write a file of zeros: `tensors` maps names to numpy shapes (rows, columns), in F32.

    Multiples of 8 elements end at the alignment of 32 bytes, so that the last byte of the file is needed.
    """
    writer = GGUFWriter(path, arch)
    for key, value in metadata.items():
        _add(writer, key, value)
    for name, shape in tensors.items():
        writer.add_tensor(name, np.zeros(shape, np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _add(writer: GGUFWriter, key: str, value: Value) -> None:
    match value:
        case bool():
            writer.add_bool(key, value)
        case int():
            writer.add_uint32(key, value)
        case float():
            writer.add_float32(key, value)
        case str():
            writer.add_string(key, value)
        case _:
            writer.add_array(key, list(value))


def model_metadata(
    arch: str = "llama", *, blocks: int = 2, embedding: int = 16, heads: int = 2, kv_heads: int | None = 1
) -> dict[str, Value]:
    """The keys that a small model has; tests change and add some."""
    metadata: dict[str, Value] = {
        "general.name": "tiny",
        "general.file_type": 0,
        f"{arch}.block_count": blocks,
        f"{arch}.context_length": 128,
        f"{arch}.embedding_length": embedding,
        f"{arch}.attention.head_count": heads,
        "tokenizer.ggml.tokens": [f"t{i}" for i in range(24)],
    }
    if kv_heads is not None:
        metadata[f"{arch}.attention.head_count_kv"] = kv_heads
    return metadata


def write_model(
    path: Path,
    *,
    arch: str = "llama",
    blocks: int = 2,
    trunk: bool = True,
    head: bool = False,
    extra: Mapping[str, Value] | None = None,
    **shape: Any,
) -> Path:
    """Write a model with the fewest tensors: an embedding, a norm per block, and an MTP head if asked.

    With `head` the last block is the MTP layer; without `trunk` the other blocks are left out.
    """
    tensors: dict[str, tuple[int, ...]] = {"token_embd.weight": (24, 16)}
    for block in range(blocks):
        is_head = head and block == blocks - 1
        if trunk or is_head:
            tensors[f"blk.{block}.attn_norm.weight"] = (16,)
        if is_head:
            tensors[f"blk.{block}.nextn.eh_proj.weight"] = (16, 32)
    metadata = model_metadata(arch, blocks=blocks, **shape) | dict(extra or {})
    return write_gguf(path, arch=arch, metadata=metadata, tensors=tensors)


# --- bytes, for files that no writer would write ------------------------------------------------------------


def header(*, tensors: int = 1, keys: int = 0, version: int = 3, order: str = "<") -> bytes:
    """The first 24 bytes."""
    return b"GGUF" + struct.pack(f"{order}IQQ", version, tensors, keys)


def text(value: bytes, length: int | None = None) -> bytes:
    """A GGUF string, with a length that may be a lie."""
    return struct.pack("<Q", len(value) if length is None else length) + value


def array_key(key: bytes, item: GGUFValueType, length: int, data: bytes = b"") -> bytes:
    """A key with an array, whose length may be a lie."""
    return text(key) + struct.pack("<IIQ", GGUFValueType.ARRAY, item, length) + data


def tensor_info(name: bytes, dims: Sequence[int], *, kind: int = 0, offset: int = 0) -> bytes:
    """An entry of the tensor list. `kind` 0 is F32."""
    return text(name) + struct.pack(f"<I{len(dims)}QIQ", len(dims), *dims, kind, offset)
