"""Normalising and splitting as one table: code point → what it does to the word that is being read.

BERT's normaliser has four steps (clean, Chinese apart, decompose and strip accents, lower case), and its splitter looks
at the result. Each step treats one character at a time, so their composition does too, and it is computed once per
tokeniser, for all of Unicode, into a table that both kernels only look up. The one exception is the order of accents
that are *kept* ("marks"): the table gives their class, the kernels keep them sorted.

A unit is a uint32: bits 0-20 payload, bits 21-23 kind, bits 24-31 class of a mark. Letters are not kept as code points
but as *labels*: the place of the character in the vocabulary's alphabet, 1 upwards; 0 is a letter no token has.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import IntEnum
from functools import cache
from importlib import resources
from typing import Any

import numpy as np
import numpy.typing as npt

from onebit.kernels.embed.tokenizer_file import Normalizer

CODE_POINTS = 0x110000
PAYLOAD = (1 << 21) - 1

Units = npt.NDArray[np.uint32]


class Kind(IntEnum):
    """What a character does."""

    LETTER = 0  # joins the word; payload: label
    SPACE = 1  # ends the word
    DROP = 2  # is not there
    BREAK = 3  # is not there, but marks before and after it keep their places
    ALONE = 4  # is a word by itself; payload: label
    MARK = 5  # joins the word, sorted by class among its neighbours; payload: label
    MANY = 6  # stands for several units; payload: index of their number in `runs`, they follow it
    ADDED = 7  # may begin an added token, else as MANY


@dataclass(frozen=True, slots=True)
class CharMap:
    """`units`: uint32 [0x110000], one per code point. `runs`: uint32, for MANY and ADDED: a count, then units."""

    units: Units
    runs: Units


def compose(normalizer: Normalizer, labels: dict[str, int], added: Iterable[str]) -> CharMap:
    """The table for these switches; `labels`: the alphabet; `added`: the tokens to look for in the text itself."""
    facts = _facts()
    builder = _Builder(normalizer, labels, facts)
    units = np.zeros(CODE_POINTS, np.uint32)
    for char, label in labels.items():
        units[ord(char)] = label
    _mark(units, facts["white"], Kind.SPACE)
    _mark(units, facts["punctuation"], Kind.ALONE)
    runs: list[int] = []
    changed = set(facts["decomposed"]) if normalizer.strip_accents else set()
    changed |= set(facts["lower"]) if normalizer.lowercase else set()
    if normalizer.strip_accents:
        changed |= {chr(point) for point, _ in facts["classes"]}
    for char in changed:
        units[ord(char)] = _pack(builder.after_normalizing(char), runs)
    if normalizer.strip_accents:
        _decompose_hangul(units, runs, labels)
        _fill(units, facts["stripped"], Kind.DROP)
        _fill(units, facts["stripped_starters"], Kind.BREAK)
    if normalizer.chinese_apart:
        _mark(units, facts["chinese"], Kind.ALONE)
    if normalizer.clean_text:
        _fill(units, facts["dropped"], Kind.DROP)
        _fill(units, facts["blank"], Kind.SPACE)
    units[0xD800:0xE000] = units[0xFFFD]  # half a character reads as the sign for undecodable bytes
    for first in {token[0] for token in added}:
        plain = int(units[ord(first)])
        many = plain >> 21 & 7 == Kind.MANY
        units[ord(first)] = Kind.ADDED << 21 | (plain & PAYLOAD if many else _append([plain], runs))
    return CharMap(units, np.array(runs or [0], np.uint32))


@cache
def _facts() -> dict[str, Any]:
    text = resources.files("onebit.kernels.embed").joinpath("data/unicode.json").read_text("ascii")
    facts: dict[str, Any] = json.loads(text)
    return facts


class _Builder:
    def __init__(self, normalizer: Normalizer, labels: dict[str, int], facts: dict[str, Any]) -> None:
        self._labels = labels
        self._decomposed: dict[str, str] = facts["decomposed"] if normalizer.strip_accents else {}
        self._lower: dict[str, str] = facts["lower"] if normalizer.lowercase else {}
        self._classes: dict[int, int] = dict(facts["classes"]) if normalizer.strip_accents else {}
        self._white = _points(facts["white"])
        self._punctuation = _points(facts["punctuation"])

    def after_normalizing(self, char: str) -> list[int]:
        bare = self._decomposed.get(char, char)
        return [self._unit(c) for c in "".join(self._lower.get(c, c) for c in bare)]

    def _unit(self, char: str) -> int:
        point = ord(char)
        if point in self._white:
            return Kind.SPACE << 21
        if point in self._punctuation:
            return Kind.ALONE << 21 | self._labels.get(char, 0)
        if point in self._classes:
            return self._classes[point] << 24 | Kind.MARK << 21 | self._labels.get(char, 0)
        return self._labels.get(char, 0)


def _points(ranges: Sequence[tuple[int, int]]) -> set[int]:
    return {point for first, last in ranges for point in range(first, last + 1)}


def _mark(units: Units, ranges: Sequence[tuple[int, int]], kind: Kind) -> None:
    """Change the kind, keep the label."""
    for first, last in ranges:
        units[first : last + 1] = units[first : last + 1] & PAYLOAD | kind << 21


def _fill(units: Units, ranges: Sequence[tuple[int, int]], kind: Kind) -> None:
    for first, last in ranges:
        units[first : last + 1] = kind << 21


def _pack(found: list[int], runs: list[int]) -> int:
    return found[0] if len(found) == 1 else Kind.MANY << 21 | _append(found, runs)


def _append(found: list[int], runs: list[int]) -> int:
    runs += [len(found), *found]
    return len(runs) - len(found) - 1


def _decompose_hangul(units: Units, runs: list[int], labels: dict[str, int]) -> None:
    """Unicode's formula: 19 leads × 21 vowels × 28 tails (the first: none) make 11,172 syllables."""
    lead, vowel, tail = np.indices((19, 21, 28)).reshape(3, -1)
    found = np.stack(
        [
            2 + (tail > 0),
            *(
                np.array([labels.get(chr(start + i), 0) for i in range(many)])[jamo]
                for start, many, jamo in ((0x1100, 19, lead), (0x1161, 21, vowel), (0x11A7, 28, tail))
            ),
        ],
        axis=1,
    )  # [11172, 4]: how many jamo, and which; the last one only where there is a tail
    lengths = found[:, 0] + 1
    units[0xAC00 : 0xAC00 + len(found)] = Kind.MANY << 21 | len(runs) + np.cumsum(lengths) - lengths
    runs += found[np.arange(4) < lengths[:, None]].tolist()
