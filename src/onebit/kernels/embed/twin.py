"""The plain reference of the C kernels, in Python and numpy: the same results, bit for bit, some 1,000 times slower.

It is what runs where the package was installed without a C compiler, and what the C kernels are tested against.

Order of arithmetic, the same in both: a text's vector is 0 + q₁·s₁ + q₂·s₂ + …, token by token, each product and each
sum rounded to float32 (no fused multiply-add), and at the end multiplied with the rounded 1/n. Columns are independent
of each other, which is what makes any vector width give the same bits. Dot products are of integers, so exact.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from onebit.kernels.embed.charmap import PAYLOAD, Kind

Ids = npt.NDArray[np.uint32]
Ends = npt.NDArray[np.uint64]
Rows = npt.NDArray[np.int8]
Floats = npt.NDArray[np.float32]
Labels = npt.NDArray[np.uint16]
PieceArrays = tuple[Labels, npt.NDArray[np.uint32], Ids]

_SEARCH_BLOCK = 8192  # rows: 16 MB as float64 at 256 dims


class Tokenizer:
    """BERT's normaliser, splitter and WordPiece, over the tables of a `Lexicon`."""

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
        self._units = units
        self._runs: list[int] = runs.tolist()
        self._first = _words(first)
        self._later = _words(later)
        self._added = sorted(added, key=lambda entry: -len(entry[0]))  # the longest that fits wins
        self._unknown = unknown
        self._longest_word = longest_word

    def tokenize(self, texts: Sequence[str | bytes]) -> tuple[Ids, Ends]:
        """The token ids of all texts, one after the other (uint32), and where each text's ids end (uint64 [n])."""
        if isinstance(texts, str | bytes):  # each of its characters would be a text
            raise TypeError("texts must be a sequence of texts, not one text")
        ids: list[int] = []
        ends = np.zeros(len(texts), np.uint64)
        for i, text in enumerate(texts):
            ids += self._text(_as_str(text))
            ends[i] = len(ids)
        return np.array(ids, np.uint32), ends

    def embed(self, texts: Sequence[str | bytes], rows: Rows, scales: Floats, out: Floats) -> None:
        """Write the vectors of the texts into `out` (float32 [n, dims]): `tokenize`, then `pool`."""
        ids, ends = self.tokenize(texts)
        pool(ids, ends, rows, scales, out)

    def _text(self, text: str) -> list[int]:
        ids: list[int] = []
        word = _Word()
        after_added = 0  # where the added token that was found last ends
        codes = np.frombuffer(text.encode("utf-32-le", "surrogatepass"), "<u4")
        for at, unit in enumerate(self._units[codes].tolist()):
            if at < after_added:
                continue
            if unit >> 21 & 7 == Kind.ADDED:
                found = next((entry for entry in self._added if text.startswith(entry[0], at)), None)
                if found is not None:
                    ids += self._pieces(word.take())
                    ids.append(found[1])
                    after_added = at + len(found[0])
                    continue
            for one in self._expand(unit):
                kind, label = Kind(one >> 21 & 7), one & PAYLOAD
                if kind in (Kind.SPACE, Kind.ALONE):
                    ids += self._pieces(word.take())
                    if kind is Kind.ALONE:
                        ids += self._pieces(chr(label))
                elif kind is Kind.BREAK:
                    word.settle()
                elif kind is Kind.MARK:
                    word.add_mark(label, one >> 24)
                elif kind is Kind.LETTER:
                    word.settle()
                    word.letters.append(chr(label))
        return ids + self._pieces(word.take())

    def _expand(self, unit: int) -> list[int]:
        if unit >> 21 & 7 not in (Kind.MANY, Kind.ADDED):
            return [unit]
        at = unit & PAYLOAD
        return self._runs[at + 1 : at + 1 + self._runs[at]]

    def _pieces(self, word: str) -> list[int]:
        """WordPiece: the longest token that fits, again and again; one unknown token if at any place none does."""
        if not word:
            return []
        if len(word) > self._longest_word:
            return [self._unknown]
        ids: list[int] = []
        start, tokens = 0, self._first
        while start < len(word):
            end = next((end for end in range(len(word), start, -1) if word[start:end] in tokens), None)
            if end is None:
                return [self._unknown]
            ids.append(tokens[word[start:end]])
            start, tokens = end, self._later
        return ids


class _Word:
    """The word being read; marks wait until the letter after them, sorted by class (equal ones in order)."""

    def __init__(self) -> None:
        self.letters: list[str] = []
        self._marks: list[tuple[int, str]] = []

    def add_mark(self, label: int, mark_class: int) -> None:
        self._marks.append((mark_class, chr(label)))

    def settle(self) -> None:
        self.letters += [letter for _, letter in sorted(self._marks, key=lambda mark: mark[0])]
        self._marks.clear()

    def take(self) -> str:
        self.settle()
        word = "".join(self.letters)
        self.letters.clear()
        return word


def _words(pieces: PieceArrays) -> dict[str, int]:
    labels, ends, ids = pieces
    text = labels.astype("<u4").tobytes().decode("utf-32-le", "surrogatepass")
    starts = [0, *ends[:-1].tolist()]
    return {text[a:b]: number for a, b, number in zip(starts, ends.tolist(), ids.tolist(), strict=True)}


def _as_str(text: str | bytes) -> str:
    if isinstance(text, bytes):
        return text.decode("utf-8", "replace")
    if not isinstance(text, str):
        raise TypeError(f"a text must be str or bytes, not {type(text).__name__}")
    return text


def pool(ids: Ids, ends: Ends, rows: Rows, scales: Floats, out: Floats) -> None:
    """Write the mean of each text's rows into `out` (float32 [n, dims]); a text without tokens gives zeros."""
    start = 0
    for i, end in enumerate(ends.tolist()):
        total = np.zeros(rows.shape[1], np.float32)
        for token in ids[start:end].tolist():
            total += rows[token].astype(np.float32) * scales[token]
        out[i] = total * (np.float32(1) / np.float32(end - start)) if end > start else total
        start = end


def search(
    rows: Rows, scales: Floats, query: Rows, k: int, allow: npt.NDArray[np.bool_] | None = None
) -> tuple[npt.NDArray[np.int64], Floats]:
    """The k rows with the highest dot(row, query) · scale, best first, equal ones by row number.

    Returns int64 [≤ k] row numbers and float32 [≤ k] scores. `query`: int8 [dims]. `allow`: bool [rows], or all.
    """
    numbers, scores = np.empty(0, np.int64), np.empty(0, np.float32)
    wide = query.astype(np.float64)
    for start in range(0, len(rows), _SEARCH_BLOCK):
        block = rows[start : start + _SEARCH_BLOCK]
        dots = block.astype(np.float64) @ wide  # exact: integers far below 2^53
        found = np.arange(len(block)) if allow is None else np.flatnonzero(allow[start : start + len(block)])
        values = dots[found].astype(np.float32) * scales[start + found]
        numbers, scores = np.concatenate([numbers, start + found]), np.concatenate([scores, values])
        best = np.argsort(-scores, kind="stable")[:k]
        numbers, scores = numbers[best], scores[best]
    return numbers, scores
