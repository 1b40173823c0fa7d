"""Texts that a tokeniser could stumble over: many scripts, accents in any order, emoji, controls, word pieces."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence

# First and last code point of the scripts that are mixed; the last one is everything.
SCRIPTS = {
    "ascii": (0x20, 0x7E),
    "controls": (0x00, 0x9F),
    "latin": (0xA0, 0x24F),
    "accents": (0x300, 0x36F),
    "greek": (0x370, 0x3FF),
    "cyrillic": (0x400, 0x52F),
    "hebrew": (0x590, 0x5F4),
    "arabic": (0x600, 0x6FF),
    "new accents": (0x898, 0x8FF),  # some are older than the tables of `tokenizers`, some are newer
    "devanagari": (0x900, 0x97F),
    "bengali": (0x980, 0x9FF),
    "thai": (0xE00, 0xE7F),
    "tibetan": (0xF00, 0xFFF),
    "jamo": (0x1100, 0x11FF),
    "balinese": (0x1B00, 0x1B7F),
    "latin with accents": (0x1E00, 0x1EFF),
    "greek with accents": (0x1F00, 0x1FFF),
    "punctuation and spaces": (0x2000, 0x206F),
    "symbols": (0x2100, 0x27BF),
    "chinese": (0x4E00, 0x9FFF),
    "tone marks and kana": (0x3000, 0x30FF),
    "hangul": (0xAC00, 0xD7A3),
    "chinese, compatible": (0xF900, 0xFAFF),
    "wide forms": (0xFE00, 0xFFFD),
    "musical": (0x1D100, 0x1D1FF),
    "glagolitic marks": (0x1E000, 0x1E02A),
    "emoji": (0x1F300, 0x1FAFF),
    "chinese, rare": (0x20000, 0x2FA1F),
    "tags and selectors": (0xE0000, 0xE01EF),
    "anything": (0x00, 0x10FFFF),
}
_EMOJI = ["👩‍👩‍👧‍👦", "🏳️‍🌈", "👍🏽", "🇩🇪", "1️⃣", "❤️"]
_ADDED = ["[UNK]", "[PAD]", "[pad]", "[UN", "[", "]", "##", "[CLS]"]


def generated(seed: int, count: int, words: Sequence[str]) -> Iterator[str]:
    """`count` texts, the same for the same seed; `words` are sprinkled in."""
    chance = random.Random(seed)
    scripts = list(SCRIPTS.values())
    for _ in range(count):
        some = chance.sample(scripts, k=chance.randint(1, 3))
        yield "".join(_piece(chance, some, words) for _ in range(chance.choice((1, 4, 12, 30))))


def _piece(chance: random.Random, scripts: list[tuple[int, int]], words: Sequence[str]) -> str:
    kind = chance.random()
    if kind < 0.6:
        return _character(chance, *chance.choice(scripts))
    if kind < 0.7:
        return _character(chance, 0x300, 0x36F)
    if kind < 0.85:
        return chance.choice(("", " ", " ", ", ")) + chance.choice(words).removeprefix("##")
    if kind < 0.95:
        return chance.choice(" \t\n.-'")
    return chance.choice(_EMOJI if kind < 0.98 else _ADDED)


def _character(chance: random.Random, first: int, last: int) -> str:
    point = chance.randint(first, last)
    return "" if 0xD800 <= point <= 0xDFFF else chr(point)  # half a character is no text for `tokenizers`
