"""The merge written down: what every other version must equal, bit for bit. It is also the one used without C.

For each element w of W, adapters in their order:

    acc = 0;  for k ascending: acc = fma(b[k], a[k], acc)      float32, one rounding a step
    w = round_W(w + round_B(scale * acc))                      round_T: to the type T of the weight, of the factors

This is what `W += scale * (B @ A)` gives wherever the math library sums in ascending order with fused multiply-adds,
which those under torch do for ranks up to about 192 (beyond they split the sum in parts) and for matrices, not for
single rows or columns. So the order is fixed here, and `torch_check` compares it with torch where torch is used.
peft's merge has the same roundings: with bfloat16 or float16 factors on a CPU it multiplies in float32, scales, rounds
to the factors' type and adds in the weight's type.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from onebit.kernels.lora.numbers import Matrix, Number, f32_to_bf16, rounded_to
from onebit.kernels.lora.terms import Mode, Term

Floats = NDArray[np.float32]
_ROWS = 32  # at a time: the temporaries of 32 × 3072 float64 stay in the cache


def fma(x: Floats, y: Floats, z: Floats) -> Floats:
    """x · y + z, rounded once to float32; shapes are broadcast.

    The product of two floats is exact in float64. The sum is rounded to odd there: if it is inexact, the neighbour
    with an odd last bit is taken, so that rounding again to float32 cannot be deceived by the first rounding
    (Boldo and Melquiond, "Emulation of FMA and correctly rounded sums", 2008).
    """
    product, addend = x.astype(np.float64) * y, z.astype(np.float64)
    total = product + addend
    with np.errstate(invalid="ignore"):  # inf - inf, where the total is not finite and stays as it is
        back = total - product
        error = (product - (total - back)) + (addend - back)  # Knuth's two-sum: total + error is the exact sum
    bits = total.view(np.int64)
    inexact_even = (error != 0) & ((bits & 1) == 0) & np.isfinite(total)
    bits += np.where(inexact_even, np.where((error > 0) == (total > 0), 1, -1), 0)
    with np.errstate(over="ignore"):
        return total.astype(np.float32)


def merge(weight: Matrix, terms: Sequence[Term], mode: Mode = Mode.EXACT) -> bool:
    """Update `weight` (out × in) in place. True if all results are finite."""
    finite = True
    for top in range(0, weight.rows, _ROWS):
        finite &= _merge_rows(weight, terms, mode, slice(top, min(top + _ROWS, weight.rows)))
    return finite


def _merge_rows(weight: Matrix, terms: Sequence[Term], mode: Mode, rows: slice) -> bool:
    block = Matrix(weight.array[rows], weight.number)
    w = block.as_float32()
    with np.errstate(invalid="ignore", over="ignore"):
        if mode is Mode.EXACT:
            for term in terms:
                acc = _chain(np.zeros_like(w), term.b.as_float32()[rows], term.a.as_float32())
                delta = rounded_to(term.b.number, np.float32(term.scale) * acc)
                w = rounded_to(weight.number, w + delta)
        elif terms:
            w = rounded_to(weight.number, w + _delta(np.zeros_like(w), terms, mode, rows))
    block.array[:] = f32_to_bf16(w) if weight.number is Number.BF16 else w
    return bool(np.isfinite(w).all())


def _delta(total: Floats, terms: Sequence[Term], mode: Mode, rows: slice) -> Floats:
    """The sum of all terms in float32, for the modes that round to W's type once."""
    for term in terms:
        b, a, scale = term.b.as_float32()[rows], term.a.as_float32(), np.float32(term.scale)
        if mode is Mode.ACCURATE:
            total = fma(scale, _chain(np.zeros_like(total), b, a), total)  # type: ignore[arg-type]  # a scalar
        elif mode is Mode.FAST:
            total = _chain(total, b * scale, a)
        else:
            total = _chain(total, rounded_to(Number.BF16, b * scale), rounded_to(Number.BF16, a))
    return total


def _chain(acc: Floats, b: Floats, a: Floats) -> Floats:
    """`acc` (rows × in) plus b (rows × rank) @ a (rank × in), k ascending."""
    for k in range(b.shape[1]):
        acc = fma(b[:, k : k + 1], a[k : k + 1], acc)
    return acc
