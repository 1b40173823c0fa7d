"""The C kernels with the signatures of their twins (twin.py says what each does); an ImportError if none were built."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from onebit.kernels.embed import _native
from onebit.kernels.embed._native import instruction_sets, pool, use
from onebit.kernels.embed.twin import Ends, Floats, Ids, PieceArrays, Rows

__all__ = ["Tokenizer", "instruction_sets", "pool", "search", "use"]


class Tokenizer:
    """`twin.Tokenizer` in C; it releases the GIL while it works."""

    def __init__(
        self,
        units: npt.NDArray[np.uint32],
        runs: npt.NDArray[np.uint32],
        first: PieceArrays,
        later: PieceArrays,
        added: Sequence[tuple[str, int]],
        unknown: int,
        longest_word: int,
    ) -> None:
        self._native = _native.Tokenizer(units, runs, first, later, added, unknown, longest_word)
        self.embed = self._native.embed

    def tokenize(self, texts: Sequence[str | bytes]) -> tuple[Ids, Ends]:
        """The token ids of all texts, and where each text's ids end."""
        ids, ends = self._native.tokenize(texts)
        return np.frombuffer(ids, np.uint32), np.frombuffer(ends, np.uint64)


def search(
    rows: Rows, scales: Floats, query: Rows, k: int, allow: npt.NDArray[np.bool_] | None = None
) -> tuple[npt.NDArray[np.int64], Floats]:
    """The k best rows and their scores, best first."""
    size = min(k, len(rows))
    numbers, scores = np.empty(size, np.int64), np.empty(size, np.float32)
    found = _native.search(rows, scales, query, allow, numbers, scores)
    return numbers[:found], scores[:found]
