"""The merge in one pass over W: the C kernel where it was built, the reference where it was not."""

from __future__ import annotations

import importlib
import logging
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from functools import cache
from itertools import pairwise, product
from types import ModuleType

import numpy as np

from onebit.kernels.lora import reference
from onebit.kernels.lora.numbers import Matrix, Number, f32_to_bf16
from onebit.kernels.lora.terms import Mode, Term, check_shapes

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
    work = _worker(weight, terms, mode, variant)
    threads = max(1, min(threads, weight.rows // _ROWS_A_THREAD))
    bounds = [weight.rows * part // threads for part in range(threads + 1)]
    spans = [range(first, last) for first, last in pairwise(bounds)]
    if threads == 1:
        return work(spans[0])
    others: list[Future[bool]] = []
    try:
        for span in spans[1:]:
            others.append(_pool(threads - 1).submit(work, span))
        # This thread works, too: two that were woken at once shared a core for milliseconds while it was left idle.
        finite = work(spans[0])
    finally:
        _outlast(others)
    return all([finite, *(other.result() for other in others)])


def _outlast(others: Sequence[Future[bool]]) -> None:
    """Return when nobody writes to the weight any more, however often Ctrl-C is pressed meanwhile: it comes after."""
    interrupted = None
    while any(not other.done() for other in others):
        try:
            wait(others)
        except KeyboardInterrupt as error:
            interrupted = error
    if interrupted is not None:
        raise interrupted


def _worker(weight: Matrix, terms: Sequence[Term], mode: Mode, variant: str | None) -> Callable[[range], bool]:
    chosen = variant or variants()[0]
    if chosen not in variants():
        raise ValueError(f"no variant {variant} here; there are {', '.join(variants())}")
    if chosen == TWIN:
        if variant is None:
            _say_once()
        return lambda rows: reference.merge(weight, terms, mode, rows)
    return lambda rows: _run(chosen, weight, terms, mode, rows)


def _run(variant: str, weight: Matrix, terms: Sequence[Term], mode: Mode, rows: range) -> bool:
    packed = [(t.b.array, t.b.number, t.a.array, t.a.number, t.rank, t.scale) for t in terms]
    args = (weight.number, weight.rows, weight.cols, packed, mode, rows.start, rows.stop, variant)
    kernel = _kernel()
    assert kernel is not None  # noqa: S101  # there is a variant
    return bool(kernel.merge(weight.array, *args))


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
        _run(variant, weight, terms, mode, range(rows))
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


@cache
def _pool(threads: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(threads, thread_name_prefix="lora-merge")
