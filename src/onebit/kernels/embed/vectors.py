"""Vectors as int8 rows, and exact search among them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from onebit.errors import EmbedError
from onebit.kernels.embed.kernel import Kernel, best_kernel
from onebit.kernels.threads import together

Floats = npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class Hit:
    """`row`: number in the collection; `score`: cosine with the query, -1 to 1."""

    row: int
    score: float


def quantize(values: Floats) -> tuple[npt.NDArray[np.int8], Floats]:
    """float32 [n, dims] → int8 rows [n, dims] and scales [n], so that row times scale is closest to the value.

    The highest value of each row becomes ±127; a row of zeros has the scale 0.
    """
    scales = np.abs(values).max(axis=1, initial=0).astype(np.float32) / np.float32(127)
    safe = np.where(scales > 0, scales, np.float32(1))
    return np.rint(values / safe[:, None]).astype(np.int8), scales


def unit_scales(rows: npt.NDArray[np.int8]) -> Floats:
    """The scales [n] that give rows [n, dims] the length 1 as they are, rounded to int8: so scores are true cosines."""
    wide = rows.astype(np.int32)
    squares = np.einsum("nd,nd->n", wide, wide)  # at most 16384 · 127², below 2^31
    return np.where(squares > 0, 1 / np.sqrt(np.maximum(squares, 1)), 0).astype(np.float32)


@dataclass(frozen=True, slots=True)
class Vectors:
    """A collection. `rows`: int8 [n, dims], may be memory-mapped; `scales`: float32 [n], from `unit_scales`."""

    rows: npt.NDArray[np.int8]
    scales: Floats

    @classmethod
    def from_floats(cls, values: Floats) -> Vectors:
        """Quantise float32 [n, dims]; the vectors' lengths are forgotten."""
        if not np.isfinite(values).all():
            raise EmbedError(f"vector {int(np.argmin(np.isfinite(values).all(axis=-1)))} holds NaNs or infinities")
        rows, _ = quantize(values)
        return cls(rows, unit_scales(rows))

    def search(
        self,
        query: Floats,
        k: int = 10,
        *,
        allow: npt.NDArray[np.bool_] | None = None,
        threads: int = 1,
        kernel: Kernel | None = None,
    ) -> list[Hit]:
        """The k rows of the highest cosine with `query` (float32 [dims]), best first, equal ones by number.

        Exact: every row is compared, int8 with int8. `allow` (bool [n]) leaves out rows.
        """
        if query.shape != (self.rows.shape[1],):
            raise EmbedError(f"the query has the shape {query.shape}, the vectors have {self.rows.shape[1]} dimensions")
        if not np.isfinite(query).all():
            raise EmbedError("the query holds NaNs or infinities")
        if allow is not None and allow.shape != self.scales.shape:
            raise EmbedError(f"the filter has the shape {allow.shape}, there are {len(self.rows):,} vectors")
        asked, _ = quantize(query[None, :].astype(np.float32))
        kernel = kernel or best_kernel()
        threads = max(1, min(threads, len(self.rows)))
        bounds = [round(i * len(self.rows) / threads) for i in range(threads + 1)]

        def part(start: int, stop: int) -> tuple[npt.NDArray[np.int64], Floats]:
            some = None if allow is None else allow[start:stop]
            numbers, scores = kernel.search(self.rows[start:stop], self.scales[start:stop], asked[0], max(k, 0), some)
            return numbers + start, scores

        parts = together([partial(part, *span) for span in pairwise(bounds)])
        numbers, scores = parts[0]
        if threads > 1:
            numbers, scores = (np.concatenate(column) for column in zip(*parts, strict=True))
            best = np.argsort(-scores, kind="stable")[:k]
            numbers, scores = numbers[best], scores[best]
        length = unit_scales(asked)[0]
        return [Hit(int(row), float(score)) for row, score in zip(numbers, scores * length, strict=True)]


def unit(values: Floats) -> Floats:
    """float32 [n, dims] with each row's length 1; zeros stay zeros."""
    lengths = np.linalg.norm(values, axis=-1, keepdims=True)
    result = np.zeros_like(values)
    np.divide(values, lengths, out=result, where=lengths > 0)
    return result


def ranks(scores: Floats, right: Sequence[int]) -> list[int]:
    """For float32 [queries, n] and the right column of each query: its place, 1 for the best (ties count against)."""
    return [int((row >= row[column]).sum()) for row, column in zip(scores, right, strict=True)]
