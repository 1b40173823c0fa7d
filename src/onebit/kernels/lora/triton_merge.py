"""The merge on a GPU: one launch for all modules of a model.

A program works on one tile of one weight. Which, it reads from a table; where the weight and its adapters' factors
lie, from tables of addresses and ranks. So modules of any shapes and adapters of any ranks go in one launch, and
nothing is concatenated or scaled in memory: scales are applied in registers.

The modes are those of `terms.Mode`. EXACT walks k in ascending order with explicit fused multiply-adds, and the
launch forbids the compiler to fuse the others: the bits of the reference. ACCURATE and FAST use IEEE float32 dots,
BF16 the tensor cores. Import this module only where torch and triton are; with TRITON_INTERPRET=1 set before that
it runs without a GPU, slowly.
"""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import triton
import triton.language as tl

from onebit.kernels.lora.numbers import Matrix, Number
from onebit.kernels.lora.terms import Mode, Term

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
_TYPES: Mapping[torch.dtype, Any] = {
    torch.float32: tl.float32,
    torch.bfloat16: tl.bfloat16,
    torch.float16: tl.float16,
}


@dataclass(frozen=True, slots=True)
class DeviceTerm:
    """A `Term` on a device: scale · b @ a."""

    b: torch.Tensor  # out × rank, contiguous
    a: torch.Tensor  # rank × in, contiguous
    scale: float


@triton.jit  # type: ignore[untyped-decorator]
def _factors(
    b_ptr, a_ptr, row, col, k, rows, cols, rank,  # type: ignore[no-untyped-def]
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,  # noqa: N803
):  # fmt: skip
    """BM × BK of B and BK × BN of A from k on, as float32; zeros outside."""
    i, j, kk = row + tl.arange(0, BM), col + tl.arange(0, BN), k + tl.arange(0, BK)
    b = tl.load(b_ptr + i[:, None].to(tl.int64) * rank + kk[None, :], (i < rows)[:, None] & (kk < rank)[None, :], 0.0)
    a = tl.load(a_ptr + kk[:, None].to(tl.int64) * cols + j[None, :], (kk < rank)[:, None] & (j < cols)[None, :], 0.0)
    return b.to(tl.float32), a.to(tl.float32)


@triton.jit  # type: ignore[untyped-decorator]
def _rounded(x, T: tl.constexpr):  # type: ignore[no-untyped-def]  # noqa: N803
    """The float32 nearest to x that T can hold. By hand for bfloat16: the interpreter's conversion truncates."""
    if tl.bfloat16 == T:
        bits = x.to(tl.uint32, bitcast=True)
        x = ((bits + 0x7FFF + ((bits >> 16) & 1)) & 0xFFFF0000).to(tl.float32, bitcast=True)
    return x.to(T).to(tl.float32)


@triton.jit  # type: ignore[untyped-decorator]
def _merge_tile(
    tile_table,  # tiles × 3: module, first row, first column
    module_table,  # modules × 5: address of W, rows, cols, first term, one past the last
    term_table,  # terms × 3: addresses of B and A, rank
    scales,  # terms, float32
    W_T: tl.constexpr,  # noqa: N803  # type of the weights
    F_T: tl.constexpr,  # noqa: N803  # type of the factors
    MODE: tl.constexpr,  # noqa: N803
    TENSOR_CORES: tl.constexpr,  # noqa: N803
    BM: tl.constexpr,  # noqa: N803
    BN: tl.constexpr,  # noqa: N803
    BK: tl.constexpr,  # noqa: N803
):  # type: ignore[no-untyped-def]
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
            w = _rounded(w + _rounded(scale * acc, F_T), W_T)
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


class Launch:
    """A merge of many modules, prepared: `run` does it, again and again if wanted (each run adds once more)."""

    def __init__(self, modules: Sequence[tuple[torch.Tensor, Sequence[DeviceTerm]]], mode: Mode) -> None:
        """`modules`: weights (out × in, contiguous, changed in place) of one type on one device, with their terms.

        Raises ValueError for shapes that do not fit, mixed types or devices, and memory with gaps.
        """
        self._keep = list(modules)  # the tables hold bare addresses: the tensors must live as long as they
        weights = [weight for weight, _ in modules]
        factors = [f for _, terms in modules for term in terms for f in (term.b, term.a)]
        self._types = _one_type("weights", weights), _one_type("factors", factors)
        for weight, terms in modules:
            _check(weight, terms)
        self._mode = mode
        self._blocks = _blocks(mode)
        device = weights[0].device
        self._tables = (
            torch.tensor(self._tiles(weights), dtype=torch.int32, device=device),
            torch.tensor(_module_rows(modules), dtype=torch.int64, device=device),
            torch.tensor(
                [[t.b.data_ptr(), t.a.data_ptr(), t.b.shape[1]] for _, terms in modules for t in terms],
                dtype=torch.int64,
                device=device,
            ),
            torch.tensor([t.scale for _, terms in modules for t in terms], dtype=torch.float32, device=device),
        )

    def run(self) -> None:
        """Update every weight."""
        block_m, block_n, block_k, warps = self._blocks
        tiles = self._tables[0].shape[0]
        _merge_tile[(tiles,)](
            *self._tables,
            W_T=self._types[0],
            F_T=self._types[1],
            MODE=int(self._mode),
            TENSOR_CORES=not INTERPRETED,
            BM=block_m,
            BN=block_n,
            BK=block_k,
            num_warps=warps,
            enable_fp_fusion=self._mode is not Mode.EXACT,  # w + scale * acc rounds twice
        )

    def _tiles(self, weights: Sequence[torch.Tensor]) -> list[tuple[int, int, int]]:
        block_m, block_n, *_ = self._blocks
        return [
            (number, row, col)
            for number, weight in enumerate(weights)
            for row in range(0, weight.shape[0], block_m)
            for col in range(0, weight.shape[1], block_n)
        ]


def merge(modules: Sequence[tuple[torch.Tensor, Sequence[DeviceTerm]]], mode: Mode = Mode.EXACT) -> None:
    """Merge into all modules in one launch for each pair of types (of weights and factors) there is."""
    groups: dict[tuple[torch.dtype, torch.dtype], list[tuple[torch.Tensor, Sequence[DeviceTerm]]]] = {}
    for weight, terms in modules:
        types = {term.b.dtype for term in terms}
        if len(types) > 1 and mode is not Mode.EXACT:
            raise ValueError("factors of several types for one weight can only be merged exactly, one after the other")
        for kind in dict.fromkeys(term.b.dtype for term in terms):
            groups.setdefault((weight.dtype, kind), [])
        for run in _runs(terms):
            groups[weight.dtype, run[0].b.dtype].append((weight, run))
    for group in groups.values():
        Launch(group, mode).run()


def terms_on(device: torch.device, terms: Sequence[Term]) -> list[DeviceTerm]:
    """Copy factors to a device."""
    return [DeviceTerm(_tensor(t.b).to(device), _tensor(t.a).to(device), t.scale) for t in terms]


def _tensor(matrix: Matrix) -> torch.Tensor:
    tensor = torch.from_numpy(matrix.array)
    return tensor.view(torch.bfloat16) if matrix.number is Number.BF16 else tensor


def _runs(terms: Sequence[DeviceTerm]) -> list[list[DeviceTerm]]:
    runs: list[list[DeviceTerm]] = []
    for term in terms:
        if runs and runs[-1][0].b.dtype == term.b.dtype:
            runs[-1].append(term)
        else:
            runs.append([term])
    return runs


def _blocks(mode: Mode) -> tuple[int, int, int, int]:
    """Tile rows, tile columns, ranks a step, warps. The interpreter pays for each program and not for its size."""
    if INTERPRETED:
        return 64, 128, 16, 4
    if mode is Mode.EXACT:
        return 32, 128, 16, 4
    return 64, 128, 32, 4


def _one_type(what: str, tensors: Sequence[torch.Tensor]) -> Any:
    dtypes = {t.dtype for t in tensors}
    if len(dtypes) != 1 or not dtypes <= _TYPES.keys() or len({t.device for t in tensors}) != 1:
        raise ValueError(f"{what} of one type (float32, bfloat16, float16) on one device are merged, not {dtypes}")
    return _TYPES[dtypes.pop()]


def _check(weight: torch.Tensor, terms: Sequence[DeviceTerm]) -> None:
    for term in terms:
        rank = term.b.shape[1]
        if rank < 1 or term.b.shape != (weight.shape[0], rank) or term.a.shape != (rank, weight.shape[1]):
            raise ValueError(f"B {tuple(term.b.shape)} @ A {tuple(term.a.shape)} does not fit {tuple(weight.shape)}")
        if not math.isfinite(term.scale):
            raise ValueError(f"the scale is {term.scale}")
    if not all(t.is_contiguous() for t in (weight, *(f for term in terms for f in (term.b, term.a)))):
        raise ValueError("weights and factors must be contiguous")


def _module_rows(modules: Sequence[tuple[torch.Tensor, Sequence[DeviceTerm]]]) -> list[list[int]]:
    rows, first = [], 0
    for weight, terms in modules:
        rows.append([weight.data_ptr(), *weight.shape, first, first + len(terms)])
        first += len(terms)
    return rows
