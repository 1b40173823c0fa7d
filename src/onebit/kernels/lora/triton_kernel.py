"""The Triton kernel of the merge: one program, one tile of one weight."""

# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators
# ruff: noqa: N803 (compile-time constants are capitals, by Triton's custom)

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def _factors(
    b_ptr, a_ptr, row, col, k, rows, cols, rank,
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    """BM × BK of B and BK × BN of A from k on, as float32; zeros outside."""
    i, j, kk = row + tl.arange(0, BM), col + tl.arange(0, BN), k + tl.arange(0, BK)
    b = tl.load(b_ptr + i[:, None].to(tl.int64) * rank + kk[None, :], (i < rows)[:, None] & (kk < rank)[None, :], 0.0)
    a = tl.load(a_ptr + kk[:, None].to(tl.int64) * cols + j[None, :], (kk < rank)[:, None] & (j < cols)[None, :], 0.0)
    return b.to(tl.float32), a.to(tl.float32)


@triton.jit
def _rounded(x, T: tl.constexpr):
    """The float32 nearest to x that T can hold. By hand for bfloat16: the interpreter's conversion truncates.

    A NaN of 0x7fffffff, as NVIDIA's units make them, would be carried over into -0.
    """
    if tl.bfloat16 == T:
        bits = x.to(tl.uint32, bitcast=True)
        nearest = ((bits + 0x7FFF + ((bits >> 16) & 1)) & 0xFFFF0000).to(tl.float32, bitcast=True)
        x = tl.where(x != x, float("nan"), nearest)
    return x.to(T).to(tl.float32)


@triton.jit
def merge_tile(
    tile_table,  # tiles × 3: module, first row, first column
    module_table,  # modules × 5: address of W, rows, cols, first term, one past the last
    term_table,  # terms × 3: addresses of B and A, rank
    scales,  # terms, float32
    W_T: tl.constexpr,  # type of the weights
    F_T: tl.constexpr,  # type of the factors
    DELTA_T: tl.constexpr,  # what scale * b @ a is rounded to, if exact
    MODE: tl.constexpr,
    TENSOR_CORES: tl.constexpr,
    BM: tl.constexpr,
    BN: tl.constexpr,
    BK: tl.constexpr,
):
    """Add all adapters to a tile of BM × BN; MODE as in `terms.Mode`, BK ranks a dot."""
    tile = tl.program_id(0)
    module = tl.load(tile_table + tile * 3)
    row = tl.load(tile_table + tile * 3 + 1)
    col = tl.load(tile_table + tile * 3 + 2)
    w_ptr = tl.load(module_table + module * 5).to(tl.pointer_type(W_T))
    rows = tl.load(module_table + module * 5 + 1)
    cols = tl.load(module_table + module * 5 + 2)
    first = tl.load(module_table + module * 5 + 3)
    last = tl.load(module_table + module * 5 + 4)

    i, j = row + tl.arange(0, BM), col + tl.arange(0, BN)
    inside = (i < rows)[:, None] & (j < cols)[None, :]
    w_at = w_ptr + i[:, None].to(tl.int64) * cols + j[None, :]
    w = tl.load(w_at, inside, 0.0).to(tl.float32)
    total = tl.zeros((BM, BN), tl.float32)

    for term in range(first, last):
        b_ptr = tl.load(term_table + term * 3).to(tl.pointer_type(F_T))
        a_ptr = tl.load(term_table + term * 3 + 1).to(tl.pointer_type(F_T))
        rank = tl.load(term_table + term * 3 + 2)
        scale = tl.load(scales + term)
        if MODE == 0:
            acc = tl.zeros((BM, BN), tl.float32)
            for k in range(rank):
                b = tl.load(b_ptr + i.to(tl.int64) * rank + k, i < rows, 0.0).to(tl.float32)
                a = tl.load(a_ptr + tl.cast(k, tl.int64) * cols + j, j < cols, 0.0).to(tl.float32)
                acc = tl.fma(tl.broadcast_to(b[:, None], (BM, BN)), tl.broadcast_to(a[None, :], (BM, BN)), acc)
            w = _rounded(w + _rounded(scale * acc, DELTA_T), W_T)
        elif MODE == 1:
            acc = tl.zeros((BM, BN), tl.float32)
            for k in range(0, rank, BK):
                b, a = _factors(b_ptr, a_ptr, row, col, k, rows, cols, rank, BM, BN, BK)
                acc = tl.dot(b, a, acc, input_precision="ieee")
            total += scale * acc
        else:
            for k in range(0, rank, BK):
                b, a = _factors(b_ptr, a_ptr, row, col, k, rows, cols, rank, BM, BN, BK)
                b = b * scale
                if MODE == 3:
                    b, a = _rounded(b, tl.bfloat16), _rounded(a, tl.bfloat16)
                if MODE == 3 and TENSOR_CORES:
                    total = tl.dot(b.to(tl.bfloat16), a.to(tl.bfloat16), total)
                else:  # the interpreter multiplies no bfloat16: the same numbers, as float32
                    total = tl.dot(b, a, total, input_precision="ieee")
    if MODE != 0:
        w = _rounded(w + total, W_T)
    tl.store(w_at, w.to(W_T), inside)
