"""The merge in one pass over W: the C kernel where it was built, the reference where it was not."""

from __future__ import annotations

import importlib
import logging
from collections.abc import Sequence
from functools import cache
from itertools import product
from types import ModuleType
from typing import Any

import numpy as np

from onebit.kernels.lora import reference
from onebit.kernels.lora.numbers import Matrix, Number, f32_to_bf16
from onebit.kernels.lora.terms import Mode, Term, check_shapes
from onebit.kernels.threads import help_with

log = logging.getLogger(__name__)
TWIN = "python"  # the variant that needs no compiler

_ROWS_A_THREAD = 48  # fewer are not worth a thread: 48 × 3072 × rank 128 take 0.4 ms


def variants() -> tuple[str, ...]:
    """What `merge` can run on here, the default first: instruction sets of the C kernel, then "python"."""
    return (*_c_variants(), TWIN)


def merge(
    weight: Matrix,
    terms: Sequence[Term],
    mode: Mode = Mode.EXACT,
    *,
    threads: int = 1,
    variant: str | None = None,
) -> bool:
    """weight (out × in) += Σ scale · B (out × rank) @ A (rank × in), in place.

    Returns True if all results are finite. Then the bits are the same for every variant and number of threads; but for
    Mode.BF16 a processor's own dot product of bfloat16 is used ("avx512bf16"), which rounds in its own way. The C
    kernel runs without the GIL. Raises ValueError for shapes that do not fit and for an unknown variant.
    """
    check_shapes(weight, terms)
    chosen = variant or variants()[0]
    if chosen not in variants():
        raise ValueError(f"no variant {variant} here; there are {', '.join(variants())}")
    if chosen == TWIN:
        if variant is None:
            _say_once()
        return reference.merge(weight, terms, mode)
    threads = max(1, min(threads, weight.rows // _ROWS_A_THREAD))
    job = _job(chosen, weight, terms, mode, threads)
    try:
        if threads > 1:
            help_with(job.help, threads - 1)
    finally:
        # It also waits for those who help. Ctrl-C comes after: the caller puts the weight back as it was then.
        finite: bool = job.run()
    return finite


def _job(variant: str, weight: Matrix, terms: Sequence[Term], mode: Mode, threads: int = 1) -> Any:
    kernel = _kernel()
    assert kernel is not None  # noqa: S101  # there is a variant
    packed = [(t.b.array, t.b.number, t.a.array, t.a.number, t.rank, t.scale) for t in terms]
    return kernel.Merge(weight.array, weight.number, weight.rows, weight.cols, packed, mode, threads, variant)


@cache
def _c_variants() -> tuple[str, ...]:
    """Those of the C kernel that give the reference's bits on this processor (in Mode.BF16: nearly).

    Asked once, in some milliseconds: an instruction set that no developer's machine has is not trusted unseen.
    """
    kernel = _kernel()
    names: tuple[str, ...] = kernel.variants() if kernel else ()
    good = tuple(name for name in names if _agrees(name))
    if good != names:
        log.warning("the merge kernel gives other results with %s: not used", ", ".join(set(names) - set(good)))
    return good


def _agrees(variant: str) -> bool:
    rng = np.random.default_rng(0)
    rows, cols = 13, 139  # a tile and a remainder in both directions, of every variant

    def matrix(height: int, width: int, number: Number) -> Matrix:
        values = rng.standard_normal((height, width), np.float32)
        return Matrix(f32_to_bf16(values) if number is Number.BF16 else values.astype(number.array_dtype), number)

    for number, mode in product(Number, (Mode.EXACT, Mode.BF16)):
        weight = matrix(rows, cols, number)
        terms = [Term(matrix(rows, rank, number), matrix(rank, cols, number), 0.7) for rank in (3, 8, 40)]
        wanted = weight.copy()
        reference.merge(wanted, terms, mode)
        _job(variant, weight, terms, mode).run()
        if mode is Mode.EXACT and weight.array.tobytes() != wanted.array.tobytes():
            return False
        if not np.allclose(weight.as_float32(), wanted.as_float32(), rtol=1e-2, atol=1e-3):
            return False
    return True


@cache
def _kernel() -> ModuleType | None:
    try:
        return importlib.import_module("onebit.kernels._lora")
    except ImportError:
        return None


@cache
def _say_once() -> None:
    log.warning(
        "the merge kernel was not built: merging in Python, with the same results some hundred times more slowly; "
        "install a C compiler and install onebit again"
    )
