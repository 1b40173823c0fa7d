"""Random matrices and terms of every type."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from onebit.kernels.lora.numbers import Matrix, Number, f32_to_bf16
from onebit.kernels.lora.terms import Term


def matrix(rng: np.random.Generator, rows: int, cols: int, number: Number = Number.F32, scale: float = 0.05) -> Matrix:
    """Normally distributed numbers."""
    return as_type((rng.standard_normal((rows, cols)) * scale).astype(np.float32), number)


def as_type(values: np.ndarray, number: Number) -> Matrix:
    """The values, rounded to the type."""
    return Matrix(f32_to_bf16(values) if number is Number.BF16 else values.astype(number.array_dtype), number)


def terms(
    rng: np.random.Generator, rows: int, cols: int, ranks: Sequence[int], number: Number = Number.F32
) -> list[Term]:
    """A term for each rank, with scales of both signs."""
    return [
        Term(matrix(rng, rows, rank, number), matrix(rng, rank, cols, number), float(rng.uniform(-2, 2)))
        for rank in ranks
    ]
