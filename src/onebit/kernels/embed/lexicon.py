"""A tokeniser's vocabulary in the form that the kernels take: sorted words over a small alphabet."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from onebit.errors import EmbedError
from onebit.kernels.embed.charmap import CharMap, compose
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
    """Number the alphabet (frequent characters first, so that the search tree is dense), sort the pieces."""
    first = {token: number for token, number in spec.vocab.items() if token}
    later = {token[2:]: number for token, number in first.items() if token.startswith("##") and len(token) > 2}
    counts = Counter("".join(first) + "".join(later))
    if len(counts) > _MOST_LABELS:
        raise EmbedError(f"the vocabulary has {len(counts):,} different characters, more than {_MOST_LABELS:,}")
    alphabet = sorted(counts, key=lambda char: (-counts[char], char))
    labels = {char: label for label, char in enumerate(alphabet, start=1)}
    return Lexicon(
        chars=compose(spec.normalizer, labels, spec.added),
        first=_pieces(first, labels),
        later=_pieces(later, labels),
        added=tuple(spec.added.items()),
        unknown=spec.unknown,
        longest_word=spec.longest_word,
    )


def _pieces(tokens: dict[str, int], labels: dict[str, int]) -> Pieces:
    table = str.maketrans({char: chr(label) for char, label in labels.items()})
    spelled = sorted((token.translate(table), number) for token, number in tokens.items())
    text = "".join(word for word, _ in spelled).encode("utf-16-le", "surrogatepass")
    return Pieces(
        labels=np.frombuffer(text, "<u2").astype(np.uint16),
        ends=np.cumsum([len(word) for word, _ in spelled], dtype=np.uint32),
        ids=np.array([number for _, number in spelled], np.uint32),
    )
