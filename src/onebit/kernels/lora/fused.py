"""The merge in one pass over W: the C kernel where it was built, the reference where it was not."""

from __future__ import annotations

import importlib
import logging
from collections import deque
from collections.abc import Sequence
from functools import cache, partial
from itertools import product
from queue import SimpleQueue
from types import ModuleType
from typing import Any

import numpy as np

from onebit.kernels.lora import reference
from onebit.kernels.lora.numbers import Matrix, Number, f32_to_bf16
from onebit.kernels.lora.terms import Mode, Term, check_shapes
from onebit.kernels.threads import MOST_HELPERS, help_with, in_spite_of_ctrl_c

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
    return merge_many([(weight, terms)], mode, threads=threads, variant=variant) is None


def merge_many(
    work: Sequence[tuple[Matrix, Sequence[Term]]],
    mode: Mode = Mode.EXACT,
    *,
    threads: int = 1,
    variant: str | None = None,
) -> int | None:
    """`merge` for many weights, one after the other, but no thread waits for the others in between.

    Returns the number of the first weight with a result that is not finite, or None; the next one may be merged then,
    those after it are not. The weights must not share memory. Raises as `merge` does; for shapes that do not fit and
    for an unknown variant before anything is changed.
    """
    for weight, terms in work:
        check_shapes(weight, terms)
    chosen = variant or variants()[0]
    if chosen not in variants():
        raise ValueError(f"no variant {variant} here; there are {', '.join(variants())}")
    if chosen != TWIN:
        return _in_c(work, mode, threads, chosen)
    if variant is None:
        _say_once()
    return next((i for i, (weight, terms) in enumerate(work) if not reference.merge(weight, terms, mode)), None)


def _in_c(work: Sequence[tuple[Matrix, Sequence[Term]]], mode: Mode, threads: int, variant: str) -> int | None:
    workers = [max(1, min(threads, weight.rows // _ROWS_A_THREAD, MOST_HELPERS)) for weight, _ in work]
    queues: list[SimpleQueue[Any]] = [SimpleQueue() for _ in range(max(workers, default=1) - 1)]
    begun: deque[Any] = deque()
    try:
        help_with([partial(_help, queue) for queue in queues])
        for number in range(len(work) + 1):
            if number < len(work):  # who is done with the one before goes on with this one
                begun.append(_job(variant, *work[number], mode, workers[number]))
                for queue in queues:
                    queue.put(begun[-1])
            if number > 0:
                if not begun[0].run():
                    return number - 1
                begun.popleft()
        return None
    finally:
        for queue in queues:
            queue.put(None)
        in_spite_of_ctrl_c(partial(_finish, begun))  # nobody writes any more then: who called puts the weights back


def _help(queue: SimpleQueue[Any]) -> None:
    while (job := queue.get()) is not None:
        job.help()


def _finish(jobs: deque[Any]) -> None:
    while jobs:
        jobs[0].run()
        jobs.popleft()


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
        terms = [
            Term(matrix(rows, rank, number), matrix(rank, cols, number), scale)
            for rank, scale in ((3, 0.7), (8, -0.4), (40, 0.3))
        ]
        for some in (terms, terms[:1]):  # of one term the sums go another way
            merged, wanted = weight.copy(), weight.copy()
            reference.merge(wanted, some, mode)
            _job(variant, merged, some, mode).run()
            if mode is Mode.EXACT and merged.array.tobytes() != wanted.array.tobytes():
                return False
            if not np.allclose(merged.as_float32(), wanted.as_float32(), rtol=1e-2, atol=1e-3):
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
