"""A tensor's bytes in a file as a matrix of numbers, and back."""

from __future__ import annotations

import math
from io import BufferedReader
from pathlib import Path

import numpy as np

from onebit.errors import ModelFileError
from onebit.kernels.lora.numbers import Matrix, Number
from onebit.kernels.lora.safetensors_file import NUMBERS, TensorSpan, read_span


def can_merge(span: TensorSpan) -> bool:
    """Whether a tensor of this type can be decoded and encoded again."""
    return span.dtype in NUMBERS or span.dtype == "Q8_0"


def decode(file: BufferedReader, path: Path, span: TensorSpan) -> Matrix:
    """Read a tensor as rows × (the rest). Q8_0 becomes float32. Raises ModelFileError where the file is too short."""
    if span.dtype != "Q8_0":
        array = read_span(file, path, span)
        return Matrix(array.reshape(array.shape[0] if array.ndim else 1, -1), NUMBERS[span.dtype])
    from gguf import GGMLQuantizationType, quants

    file.seek(span.offset)
    raw = np.frombuffer(file.read(span.size), np.uint8)
    if raw.size != span.size:
        raise ModelFileError(f"{path} is truncated: {span.name} ends too early", hint="fetch the file again")
    rows = math.prod(span.shape[:-1])
    values = quants.dequantize(raw.reshape(rows, -1), GGMLQuantizationType.Q8_0)
    return Matrix(np.ascontiguousarray(values, np.float32).reshape(span.shape[0], -1), Number.F32)


def encode(matrix: Matrix, span: TensorSpan) -> memoryview:
    """The bytes of a tensor for its place in the file. Q8_0 is rounded to its grid again, block by block."""
    if span.dtype != "Q8_0":
        return matrix.array.reshape(-1).view(np.uint8).data
    from gguf import GGMLQuantizationType, quants

    rows = matrix.array.reshape(math.prod(span.shape[:-1]), -1)
    return np.ascontiguousarray(quants.quantize(rows, GGMLQuantizationType.Q8_0)).reshape(-1).view(np.uint8).data
