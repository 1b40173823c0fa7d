"""A tokeniser's vocabulary in the form that the kernels take: sorted words over a small alphabet."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import count

import numpy as np
import numpy.typing as npt

from onebit.errors import EmbedError
from onebit.kernels.embed.charmap import CODE_POINTS, CharMap, compose
from onebit.kernels.embed.tokenizer_file import TokenizerSpec

_MOST_LABELS = 0xFFFF  # a label is a uint16; multilingual BERT has 12,000 different characters


@dataclass(frozen=True, slots=True)
class Pieces:
    """Sorted token texts as labels. `labels`: uint16, one after the other; `ends`: uint32 [n]; `ids`: uint32 [n]."""

    labels: npt.NDArray[np.uint16]
    ends: npt.NDArray[np.uint32]
    ids: npt.NDArray[np.uint32]


@dataclass(frozen=True, slots=True)
class Lexicon:
    """All that tokenising needs. `first`: tokens that begin a word; `later`: those that go on (without their `##`)."""

    chars: CharMap
    first: Pieces
    later: Pieces
    added: tuple[tuple[str, int], ...]
    unknown: int
    longest_word: int


def make_lexicon(spec: TokenizerSpec) -> Lexicon:
    """Number the alphabet in the order of code points, so that ASCII comes first and is common; sort the pieces."""
    first = {token: number for token, number in spec.vocab.items() if token}
    later = {token[2:]: number for token, number in first.items() if token.startswith("##") and len(token) > 2}
    alphabet = sorted(set("".join(first)).union("".join(later)))
    if len(alphabet) > _MOST_LABELS:
        raise EmbedError(f"the vocabulary has {len(alphabet):,} different characters, more than {_MOST_LABELS:,}")
    labels = np.zeros(CODE_POINTS, np.uint16)
    labels[_code_points("".join(alphabet))] = np.arange(1, len(alphabet) + 1)
    return Lexicon(
        chars=compose(spec.normalizer, dict(zip(alphabet, count(1))), spec.added),
        first=_pieces(first, labels),
        later=_pieces(later, labels),
        added=tuple(spec.added.items()),
        unknown=spec.unknown,
        longest_word=spec.longest_word,
    )


def _pieces(tokens: dict[str, int], labels: npt.NDArray[np.uint16]) -> Pieces:
    """Sorted by code points is sorted by labels."""
    ordered = sorted(tokens)
    return Pieces(
        labels=labels[_code_points("".join(ordered))],
        ends=np.cumsum(np.fromiter(map(len, ordered), np.uint32, len(ordered)), dtype=np.uint32),
        ids=np.fromiter(map(tokens.__getitem__, ordered), np.uint32, len(ordered)),
    )


def _code_points(text: str) -> npt.NDArray[np.uint32]:
    return np.frombuffer(text.encode("utf-32-le", "surrogatepass"), "<u4")
