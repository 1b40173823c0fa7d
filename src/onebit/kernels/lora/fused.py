"""The merge in one pass over W: the C kernel where it was built, the reference where it was not."""

from __future__ import annotations

import importlib
import logging
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from itertools import pairwise
from types import ModuleType

from onebit.kernels.lora import reference
from onebit.kernels.lora.numbers import Matrix
from onebit.kernels.lora.terms import Mode, Term, check_shapes

log = logging.getLogger(__name__)
TWIN = "python"  # the variant that needs no compiler

_ROWS_A_THREAD = 48  # fewer are not worth a thread: 48 × 3072 × rank 128 take 0.4 ms


def variants() -> tuple[str, ...]:
    """What `merge` can run on here, the default first: instruction sets of the C kernel, then "python"."""
    kernel = _kernel()
    return (*(kernel.variants() if kernel else ()), TWIN)


def merge(
    weight: Matrix,
    terms: Sequence[Term],
    mode: Mode = Mode.EXACT,
    *,
    threads: int = 1,
    variant: str | None = None,
) -> bool:
    """weight (out × in) += Σ scale · B (out × rank) @ A (rank × in), in place.

    Returns True if all results are finite. The bits are the same for every variant and number of threads. The C
    kernel runs without the GIL. Raises ValueError for shapes that do not fit and for an unknown variant.
    """
    check_shapes(weight, terms)
    work = _worker(weight, terms, mode, variant)
    threads = max(1, min(threads, weight.rows // _ROWS_A_THREAD))
    bounds = [weight.rows * part // threads for part in range(threads + 1)]
    spans = [range(first, last) for first, last in pairwise(bounds)]
    if threads == 1:
        return work(spans[0])
    return all(list(_pool(threads).map(work, spans)))


def _worker(weight: Matrix, terms: Sequence[Term], mode: Mode, variant: str | None) -> Callable[[range], bool]:
    kernel = _kernel()
    if kernel is None and variant is None:
        _say_once()
    if variant == TWIN or (kernel is None and variant is None):
        return lambda rows: reference.merge(weight, terms, mode, rows)
    if kernel is None or variant not in (None, *kernel.variants()):
        raise ValueError(f"no variant {variant} here; there are {', '.join(variants())}")
    packed = [(t.b.array, t.b.number, t.a.array, t.a.number, t.rank, t.scale) for t in terms]

    def work(rows: range) -> bool:
        args = (weight.number, weight.rows, weight.cols, packed, mode, rows.start, rows.stop, variant)
        return bool(kernel.merge(weight.array, *args))

    return work


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
