"""Which kernels run: the compiled ones, or where none were built their Python twins, which is said once."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from functools import cache
from typing import Protocol

import numpy as np
import numpy.typing as npt

from onebit.kernels.embed.lexicon import Lexicon, Pieces
from onebit.kernels.embed.twin import Ends, Floats, Ids, Rows


class Tokenizer(Protocol):
    """What both tokenisers do; see twin.py."""

    def tokenize(self, texts: Sequence[str | bytes], /) -> tuple[Ids, Ends]:
        """Token ids of all texts, and where each text's ids end."""

    def embed(self, texts: Sequence[str | bytes], rows: Rows, scales: Floats, out: Floats, /) -> None:
        """Write the vectors of the texts."""


class Kernel(Protocol):
    """What both modules, `compiled` and `twin`, offer."""

    @property
    def __name__(self) -> str: ...

    def Tokenizer(  # noqa: N802 -- a class in both
        self,
        units: npt.NDArray[np.uint32],
        runs: npt.NDArray[np.uint32],
        first: tuple[npt.NDArray[np.uint16], npt.NDArray[np.uint32], Ids],
        later: tuple[npt.NDArray[np.uint16], npt.NDArray[np.uint32], Ids],
        added: Sequence[tuple[str, int]],
        unknown: int,
        longest_word: int,
    ) -> Tokenizer:
        """A tokeniser over the tables of a lexicon."""

    def pool(self, ids: Ids, ends: Ends, rows: Rows, scales: Floats, out: Floats, /) -> None:
        """Write the mean of each text's rows."""

    def search(
        self, rows: Rows, scales: Floats, query: Rows, k: int, allow: npt.NDArray[np.bool_] | None = None
    ) -> tuple[npt.NDArray[np.int64], Floats]:
        """The k best rows and their scores."""


@cache
def best_kernel() -> Kernel:
    """The fastest that this installation has."""
    try:
        from onebit.kernels.embed import compiled
    except ImportError as exc:
        warnings.warn(
            f"the compiled embedding kernels are missing ({exc}): the Python ones give the same results, "
            "about 1,000 times slower. Install a C compiler and then onebit again.",
            RuntimeWarning,
            stacklevel=2,
        )
        from onebit.kernels.embed import twin

        return twin
    return compiled


def make_tokenizer(kernel: Kernel, lexicon: Lexicon) -> Tokenizer:
    """The kernel's tokeniser over a lexicon."""
    return kernel.Tokenizer(
        lexicon.chars.units,
        lexicon.chars.runs,
        _arrays(lexicon.first),
        _arrays(lexicon.later),
        lexicon.added,
        lexicon.unknown,
        lexicon.longest_word,
    )


def _arrays(pieces: Pieces) -> tuple[npt.NDArray[np.uint16], npt.NDArray[np.uint32], Ids]:
    return pieces.labels, pieces.ends, pieces.ids
