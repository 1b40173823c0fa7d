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
import triton.language as tl

from onebit.kernels.lora.numbers import Matrix, Number
from onebit.kernels.lora.terms import Mode, Term
from onebit.kernels.lora.triton_kernel import merge_tile

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
        merge_tile[(tiles,)](
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
        if mode is not Mode.EXACT and len({term.b.dtype for term in terms}) > 1:
            # only exact rounds to the factors' type; the others need all in one launch, and float32 holds them all
            terms = [DeviceTerm(term.b.float(), term.a.float(), term.scale) for term in terms]
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
