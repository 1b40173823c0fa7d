#!/usr/bin/env python3
"""Ask the Hugging Face `tokenizers` package what it does with every code point; write it down for our tokeniser.

    python scripts/probe_unicode.py        # 25 s; rewrites src/onebit/kernels/embed/data/unicode.json

Why asked and not taken from Python's `unicodedata`: the package mixes Unicode versions (its list of accents is older
than its lower case), so that 80 accents that Python 3.11 knows are kept, and U+1734 is removed though it is none any
more. Only the order of accents (the combining classes, which never change) is read from `unicodedata`.
"""

from __future__ import annotations

import json
import sys
import unicodedata
from collections.abc import Iterable
from importlib.metadata import version
from pathlib import Path

from tokenizers.normalizers import NFD, BertNormalizer
from tokenizers.pre_tokenizers import BertPreTokenizer

TARGET = Path(__file__).parents[1] / "src/onebit/kernels/embed/data/unicode.json"
HANGUL = range(0xAC00, 0xD7A4)  # decomposed by a formula, so not listed
HIGH, LOW = "\U0001d16d", "\U0001d165"  # kept marks of the classes 226 and 216: HIGH + LOW is turned round


def only(step: str) -> BertNormalizer:
    """A normaliser that takes one of the four steps."""
    steps = dict.fromkeys(("clean_text", "handle_chinese_chars", "strip_accents", "lowercase"), False)
    return BertNormalizer(**(steps | {step: True}))


def ranges(points: Iterable[int]) -> list[list[int]]:
    """First and last of each run of code points."""
    found: list[list[int]] = []
    for point in points:
        if found and found[-1][1] == point - 1:
            found[-1][1] = point
        else:
            found.append([point, point])
    return found


def probe() -> dict[str, object]:
    """All that the tokeniser must know, by the step in which it matters."""
    clean, chinese, strip, lower = map(only, ("clean_text", "handle_chinese_chars", "strip_accents", "lowercase"))
    split, nfd = BertPreTokenizer(), NFD()
    sets: dict[str, list[int]] = {
        name: [] for name in ("dropped", "blank", "chinese", "white", "punctuation", "stripped", "stripped_starters")
    }
    maps: dict[str, dict[str, str]] = {"decomposed": {}, "lower": {}}
    classes: list[list[int]] = []
    for point in range(sys.maxunicode + 1):
        if 0xD800 <= point <= 0xDFFF:  # half a character: the package takes no such text
            continue
        char = chr(point)
        cleaned = clean.normalize_str(char)
        if cleaned != char:
            sets["blank" if cleaned else "dropped"].append(point)
        if chinese.normalize_str(char) != char:
            sets["chinese"].append(point)
        bare = strip.normalize_str(char)
        if not bare:  # an accent; those of class 0 still keep their neighbours from changing places
            turned = strip.normalize_str(HIGH + char + LOW) == LOW + HIGH
            sets["stripped" if turned else "stripped_starters"].append(point)
        elif bare != char and point not in HANGUL:
            maps["decomposed"][char] = bare
        elif bare == char and nfd.normalize_str("\u0345" + char) != "\u0345" + char:  # U+0345 has the highest class
            classes.append([point, unicodedata.combining(char)])
        lowered = lower.normalize_str(char)
        if lowered != char:
            maps["lower"][char] = lowered
        words = [word for word, _ in split.pre_tokenize_str(f"a{char}a")]
        if len(words) > 1:
            sets["punctuation" if char in words else "white"].append(point)
    return {
        "origin": f"tokenizers {version('tokenizers')} (Apache-2.0), every code point asked by {Path(__file__).name}",
        **{name: ranges(points) for name, points in sets.items()},
        "classes": classes,
        **maps,
    }


if __name__ == "__main__":
    lines = [f"{json.dumps(key)}: {json.dumps(value, separators=(',', ':'))}" for key, value in probe().items()]
    TARGET.write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="ascii")
    print(f"{TARGET}: {TARGET.stat().st_size:,} bytes")
