"""A tensor's bytes in a file as a matrix of numbers, and back."""

from __future__ import annotations

import math
from io import BufferedReader
from pathlib import Path

import numpy as np

from onebit.errors import ModelFileError
from onebit.kernels.lora.numbers import Matrix, Number
from onebit.kernels.lora.safetensors_file import NUMBERS, TensorSpan, read_matrix


def can_merge(span: TensorSpan) -> bool:
    """Whether a tensor of this type can be decoded and encoded again."""
    return span.dtype in NUMBERS or span.dtype == "Q8_0"


def decode(file: BufferedReader, path: Path, span: TensorSpan) -> Matrix:
    """Read a tensor as rows × (the rest). Q8_0 becomes float32. Raises ModelFileError where the file is too short."""
    if span.dtype != "Q8_0":
        return read_matrix(file, path, span)
    from gguf import GGMLQuantizationType, quants

    file.seek(span.offset)
    raw = np.frombuffer(file.read(span.size), np.uint8)
    if raw.size != span.size:
        raise ModelFileError(f"{path} is truncated: {span.name} ends too early", hint="fetch the file again")
    rows = math.prod(span.shape[:-1])
    values = quants.dequantize(raw.reshape(rows, -1), GGMLQuantizationType.Q8_0)
    return Matrix(np.ascontiguousarray(values, np.float32).reshape(span.shape[0], -1), Number.F32)


def encode(matrix: Matrix, span: TensorSpan) -> memoryview:
    """The bytes of a tensor for its place in the file. Q8_0 is rounded to its grid again, block by block.

    Raises OverflowError where a block of it has no scale that float16 can hold.
    """
    if span.dtype != "Q8_0":
        return matrix.array.reshape(-1).view(np.uint8).data
    from gguf import GGML_QUANT_SIZES, GGMLQuantizationType, quants

    _, block_bytes = GGML_QUANT_SIZES[GGMLQuantizationType.Q8_0]
    rows = matrix.array.reshape(math.prod(span.shape[:-1]), -1)
    with np.errstate(over="ignore"):  # looked for below
        blocks = np.ascontiguousarray(quants.quantize(rows, GGMLQuantizationType.Q8_0)).reshape(-1, block_bytes)
    scales = np.ascontiguousarray(blocks[:, :2]).view(np.float16)  # a block begins with its own
    if not np.isfinite(scales).all():
        raise OverflowError(f"{span.name} is beyond what Q8_0 can hold")
    return blocks.reshape(-1).data
