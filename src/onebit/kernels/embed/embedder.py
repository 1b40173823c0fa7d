"""Texts to vectors: the mean of the texts' tokens' rows. No model runs."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cache, partial
from itertools import pairwise
from pathlib import Path

import numpy as np
import numpy.typing as npt

from onebit.errors import EmbedError
from onebit.kernels.embed.kernel import Kernel, best_kernel, make_tokenizer
from onebit.kernels.embed.lexicon import make_lexicon
from onebit.kernels.embed.table import Table, default_folder, load_table
from onebit.kernels.embed.vectors import Hit, unit
from onebit.kernels.threads import together

Text = str | bytes

_LARGE = 1 << 18  # floats: 1 MiB, from which on pool.c writes past the cache
_LINE = 16  # floats: 64 bytes


class Embedder:
    """Embeds with one table. Thread-safe: nothing in it changes after it was made."""

    def __init__(self, table: Table, *, kernel: Kernel | None = None) -> None:
        self.table = table
        self._tokenizer = make_tokenizer(kernel or best_kernel(), make_lexicon(table.spec))

    @classmethod
    def load(cls, folder: Path | None = None, *, kernel: Kernel | None = None) -> Embedder:
        """With the table in `folder`, or with the package's own."""
        return cls(load_table(folder or default_folder()), kernel=kernel)

    @property
    def dims(self) -> int:
        """The length of a vector."""
        return self.table.dims

    def encode(
        self, texts: Sequence[Text], *, threads: int = 1, out: npt.NDArray[np.float32] | None = None
    ) -> npt.NDArray[np.float32]:
        """float32 [n, dims]: for each text the mean of its tokens' rows; zeros for a text without tokens.

        A text is str, or bytes that are read as UTF-8; what is not valid in it is passed over. Texts are never cut.
        Compare vectors by cosine: their lengths say nothing. `out` is filled and returned, which saves the memory of a
        new array. The GIL is released while embedding; each thread takes a part of the texts.
        """
        shape = (len(texts), self.dims)
        if out is None:
            out = _empty(*shape)
        elif out.shape != shape or out.dtype != np.float32 or not out.flags.c_contiguous:
            raise EmbedError(f"out must be a contiguous float32 array of {shape}, not {out.dtype} {out.shape}")
        threads = max(1, min(threads, len(texts)))
        if threads == 1:
            self._tokenizer.embed(texts, self.table.rows, self.table.scales, out)
            return out

        def part(start: int, stop: int) -> None:
            self._tokenizer.embed(texts[start:stop], self.table.rows, self.table.scales, out[start:stop])

        bounds = [round(i * len(texts) / threads) for i in range(threads + 1)]
        together([partial(part, *span) for span in pairwise(bounds)])
        return out

    def tokenize(self, texts: Sequence[Text]) -> list[list[int]]:
        """The token ids of each text, without special tokens: those of Hugging Face's `tokenizers`."""
        ids, ends = self._tokenizer.tokenize(texts)
        return [part.tolist() for part in np.split(ids, ends[:-1].astype(np.int64))] if len(texts) else []


def _empty(rows: int, dims: int) -> npt.NDArray[np.float32]:
    """float32 [rows, dims]; a large one begins with a cache line, so that the C code can write whole ones."""
    size = rows * dims
    if size < _LARGE:
        return np.empty((rows, dims), np.float32)
    floats = np.empty(size + _LINE, np.float32)
    skip = -(floats.ctypes.data // floats.itemsize) % _LINE
    return floats[skip : skip + size].reshape(rows, dims)


@cache
def default_embedder() -> Embedder:
    """The package's own table, loaded once a process (0.1 s)."""
    return Embedder.load()


class Nearest:
    """Which of a few texts (adapter descriptions, say) is nearest to another one; they are embedded once."""

    def __init__(self, embedder: Embedder, texts: Sequence[Text]) -> None:
        self._embedder = embedder
        self._units = unit(embedder.encode(texts))  # float32 [n, dims]

    def find(self, text: Text, k: int = 1) -> list[Hit]:
        """The k nearest by cosine, best first, equal ones in the order given. None for a text without tokens."""
        query = self._embedder.encode([text])[0]
        length = math.sqrt(query @ query)
        if not length or not len(self._units):
            return []
        scores = self._units @ query
        best = [scores.argmax()] if k == 1 else np.argsort(-scores, kind="stable")[: max(k, 0)]
        return [Hit(int(i), float(scores[i]) / length) for i in best]
