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
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
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


Module = tuple[torch.Tensor, Sequence[DeviceTerm]]


class Launch:
    """A merge of many modules, prepared: `run` does it, again and again if wanted (each run adds once more)."""

    def __init__(self, modules: Sequence[Module], mode: Mode, delta: torch.dtype | None = None) -> None:
        """`modules`: weights (out × in, contiguous, changed in place) of one type on one device, each once, with terms.

        `delta`: what scale · b @ a is rounded to in EXACT, the factors' type if not given. Raises ValueError for shapes
        that do not fit, mixed types or devices, and memory with gaps.
        """
        self._keep = list(modules)  # the tables hold bare addresses: the tensors must live as long as they
        weights = [weight for weight, _ in modules]
        factors = [f for _, terms in modules for term in terms for f in (term.b, term.a)]
        weight_type, factor_type = _one_type("weights", weights), _one_type("factors", factors)
        self._types = weight_type, factor_type, factor_type if delta is None else _TYPES[delta]
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
        # Triton launches on the current device; on a CPU this does nothing
        with torch.cuda.device_of(self._tables[0]):  # type: ignore[no-untyped-call]
            merge_tile[(tiles,)](
                *self._tables,
                W_T=self._types[0],
                F_T=self._types[1],
                DELTA_T=self._types[2],
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


def merge(modules: Sequence[Module], mode: Mode = Mode.EXACT) -> None:
    """Merge into all modules, each a weight of its own: in one launch where all types are the same.

    Otherwise in one for each device and combination of types; and where a weight's adapters change their type n times
    on the way, n more: its launches follow each other in the adapters' order. Raises ValueError as `Launch`, before
    anything is changed.
    """
    runs = [(weight, list(_runs(terms, mode))) for weight, terms in modules]
    launches = []
    for place in range(max((len(some) for _, some in runs), default=0)):
        groups: defaultdict[tuple[Any, ...], list[Module]] = defaultdict(list)
        for weight, some in runs:
            if place < len(some):
                kind, terms = some[place]
                groups[weight.device, weight.dtype, terms[0].b.dtype, kind].append((weight, terms))
        launches += [Launch(group, mode, kind) for (*_, kind), group in groups.items()]
    for launch in launches:
        launch.run()


def terms_on(device: torch.device, terms: Sequence[Term]) -> list[DeviceTerm]:
    """Copy factors to a device."""
    return [DeviceTerm(_tensor(t.b).to(device), _tensor(t.a).to(device), t.scale) for t in terms]


def _tensor(matrix: Matrix) -> torch.Tensor:
    tensor = torch.from_numpy(matrix.array)
    return tensor.view(torch.bfloat16) if matrix.number is Number.BF16 else tensor


def _runs(terms: Sequence[DeviceTerm], mode: Mode) -> Iterator[tuple[torch.dtype, list[DeviceTerm]]]:
    """Terms that can go in one launch, and what their deltas are rounded to. float32 holds all types."""
    if mode is not Mode.EXACT and len({f.dtype for term in terms for f in (term.b, term.a)}) > 1:
        yield torch.float32, [_widened(term) for term in terms]  # only exact rounds, and only exact may part them
        return
    for (delta, _), run in groupby(terms, lambda term: (term.b.dtype, term.a.dtype)):
        yield delta, [term if term.a.dtype == delta else _widened(term) for term in run]


def _widened(term: DeviceTerm) -> DeviceTerm:
    return DeviceTerm(term.b.float(), term.a.float(), term.scale)


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


def _module_rows(modules: Sequence[Module]) -> list[list[int]]:
    rows, first = [], 0
    for weight, terms in modules:
        rows.append([weight.data_ptr(), *weight.shape, first, first + len(terms)])
        first += len(terms)
    return rows
