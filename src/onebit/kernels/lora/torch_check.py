"""Does torch's own loop give the same bits here? Asked once a process, and said if not."""

from __future__ import annotations

import logging
from functools import cache

import numpy as np

from onebit.kernels.lora import fused
from onebit.kernels.lora.numbers import Matrix, Number
from onebit.kernels.lora.terms import Term

log = logging.getLogger(__name__)
_ROWS, _COLS, _RANK = 96, 160, 32


@cache
def agrees_with_torch() -> bool:
    """Compare one small merge with `W += scale * (B @ A)` in torch; a warning tells where they differ.

    They agree where torch's math library sums over k in ascending order with fused multiply-adds. Where it does not,
    this package's merges still equal each other on every machine, but not that loop.
    """
    import torch

    rng = np.random.default_rng(0)
    w, b, a = (rng.standard_normal(s, np.float32) for s in ((_ROWS, _COLS), (_ROWS, _RANK), (_RANK, _COLS)))
    expected = torch.from_numpy(w.copy())
    expected += (torch.from_numpy(b) @ torch.from_numpy(a)) * 0.7
    fused.merge(Matrix(w, Number.F32), [Term(Matrix(b, Number.F32), Matrix(a, Number.F32), 0.7)])
    same = bool(np.array_equal(expected.numpy(), w))
    if not same:
        log.warning(
            "torch's math library sums matrix products in another order on this machine: exact merges have the bits "
            "of onebit's reference, not those of torch's loop (the difference is of the last bit)"
        )
    return same
