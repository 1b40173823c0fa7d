"""Matrices of float32, bfloat16 and float16, as the merge sees them: a numpy array that may hold bfloat16 bits.

numpy has no bfloat16, so such a matrix holds its bits as uint16. That keeps torch out of everything that only moves
and merges weights.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from enum import IntEnum
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    import torch


class Number(IntEnum):
    """Types of weights and factors. The values are those of the C kernel."""

    F32 = 0
    BF16 = 1
    F16 = 2

    @property
    def array_dtype(self) -> np.dtype[Any]:
        """How numpy holds it."""
        return np.dtype((np.float32, np.uint16, np.float16)[self])


@dataclass(frozen=True, slots=True)
class Matrix:
    """A view of a rows × cols matrix, C-contiguous. Writing to `array` writes to what it was made from."""

    array: NDArray[Any]  # rows × cols, of number.array_dtype
    number: Number

    def __post_init__(self) -> None:
        if self.array.ndim != 2 or not self.array.flags.c_contiguous or self.array.dtype != self.number.array_dtype:
            raise ValueError(f"no contiguous matrix of {self.number.name}: {self.array.dtype} {self.array.shape}")

    @property
    def rows(self) -> int:
        """The first dimension."""
        return int(self.array.shape[0])

    @property
    def cols(self) -> int:
        """The second dimension."""
        return int(self.array.shape[1])

    def as_float32(self) -> NDArray[np.float32]:
        """The values, rows × cols: exact, and a copy only where the type is another."""
        return bf16_to_f32(self.array) if self.number is Number.BF16 else self.array.astype(np.float32, copy=False)

    def transposed(self) -> Matrix:
        """A contiguous copy, cols × rows."""
        return Matrix(np.ascontiguousarray(self.array.T), self.number)

    def copy(self) -> Matrix:
        """The same values in memory of their own."""
        return Matrix(self.array.copy(), self.number)

    def widened(self) -> Matrix:
        """A copy as float32."""
        return Matrix(np.array(self.as_float32()), Number.F32)

    def load(self) -> Matrix:
        """It is here already; see `Later`."""
        return self


@dataclass(frozen=True, slots=True)
class Later:
    """A matrix that is read, or computed, whenever it is wanted: so little of a large adapter is in memory."""

    rows: int
    cols: int
    number: Number
    load: Callable[[], Matrix]

    def widened(self) -> Later:
        """It as float32."""
        return Later(self.rows, self.cols, Number.F32, lambda: self.load().widened())


def bf16_to_f32(bits: NDArray[np.uint16]) -> NDArray[np.float32]:
    """Any shape; exact."""
    return (bits.astype(np.uint32) << 16).view(np.float32)


def f32_to_bf16(values: NDArray[np.float32]) -> NDArray[np.uint16]:
    """Any shape; to nearest, ties to even; NaN becomes the quiet NaN 0x7fc0, as in torch's scalar conversion."""
    bits = np.ascontiguousarray(values).view(np.uint32)
    rounded = ((bits + (0x7FFF + ((bits >> 16) & 1))) >> 16).astype(np.uint16)
    rounded[np.isnan(values)] = 0x7FC0
    return rounded


def rounded_to(number: Number, values: NDArray[np.float32]) -> NDArray[np.float32]:
    """The float32 values nearest to `values` that `number` can hold."""
    if number is Number.BF16:
        return bf16_to_f32(f32_to_bf16(values))
    if number is Number.F16:
        with np.errstate(over="ignore"):  # beyond 65504 it is infinite, which the caller looks for
            return values.astype(np.float16).astype(np.float32)
    return values


def matrix_of(values: NDArray[Any] | torch.Tensor) -> Matrix:
    """A view of a numpy array or a CPU tensor as rows × (the rest): convolutions become matrices.

    Raises TypeError for types that are not merged (integers, float64, quantized) and ValueError for memory that is
    not contiguous or not the CPU's.
    """
    if isinstance(values, np.ndarray):
        array, number = values, _NUMPY.get(values.dtype.name)
    else:
        array, number = _tensor_view(values)
    if number is None:
        raise TypeError(f"{values.dtype} is not merged; float32, bfloat16 and float16 are")
    if not array.flags.c_contiguous or array.ndim < 1:
        raise ValueError("the memory is not contiguous")
    return Matrix(array.reshape(array.shape[0], math.prod(array.shape[1:])), number)  # -1 fits no empty array


_NUMPY = {"float32": Number.F32, "float16": Number.F16}


def _tensor_view(tensor: torch.Tensor) -> tuple[NDArray[Any], Number | None]:
    import torch

    if tensor.device.type != "cpu" or not tensor.is_contiguous():
        raise ValueError(f"the memory is on {tensor.device}, or not contiguous")
    data = tensor.detach()
    if data.dtype == torch.bfloat16:
        return data.view(torch.uint16).numpy(), Number.BF16
    if data.dtype in (torch.float32, torch.float16):
        array: NDArray[Any] = data.numpy()
        return array, _NUMPY[array.dtype.name]
    return np.empty(0), None
