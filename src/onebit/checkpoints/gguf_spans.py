"""Where the tensors of a GGUF file lie, and the few facts that adapter names are translated by."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from onebit.errors import ModelFileError
from onebit.kernels.lora.safetensors_file import TensorSpan
from onebit.models.gguf_file import ModelKind, inspect
from onebit.models.gguf_open import open_header

if TYPE_CHECKING:
    from onebit.models.gguf_reader import HeaderReader


@dataclass(frozen=True, slots=True)
class GgufFacts:
    """Of the whole model."""

    architecture: str
    blocks: int
    heads: int
    kv_heads: int


def read_gguf(path: Path) -> tuple[dict[str, TensorSpan], GgufFacts]:
    """The tensors by name, shapes with the rows first, and the facts. Raises ModelFileError as `inspect` does."""
    info = inspect(path)  # every way in which the file can be bad is told there
    if info.split_count > 1:
        raise ModelFileError(
            f"{path} is split in {info.split_count} files", hint="join them with `llama-gguf-split --merge` first"
        )
    if info.kind is not ModelKind.MODEL:
        raise ModelFileError(f"{path} is no model: {info.kind}", hint="adapters are merged into whole models")
    header = open_header(path)
    tensors = {}
    for tensor in header.tensors:
        shape = tuple(int(n) for n in reversed(tensor.shape))
        span = TensorSpan(tensor.name, tensor.tensor_type.name, shape, int(tensor.data_offset), int(tensor.n_bytes))
        tensors[tensor.name] = span
    heads = _number(header, f"{info.architecture}.attention.head_count")
    kv_heads = _number(header, f"{info.architecture}.attention.head_count_kv") or heads
    return tensors, GgufFacts(info.architecture, info.block_count, heads, kv_heads)


def _number(header: HeaderReader, key: str) -> int:
    """A whole number, or 0: where it differs by layer it is an array, and no single answer."""
    field = header.fields.get(key)
    value = field.contents() if field is not None and field.data else 0
    return value if isinstance(value, int) else 0
