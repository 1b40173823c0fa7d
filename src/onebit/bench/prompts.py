"""Prompts of a wanted length that no prompt cache has seen, unless a shared beginning is asked for."""

from __future__ import annotations

import random
from collections.abc import Iterator

# Short and common: one token each, with the space before it, in SmolLM2's vocabulary, and likely so in others.
_WORDS = """
the of and to in is that for it as was with be by on not he his but at are this have from or had an
they which one you were all her she there would their we him been has when who will no more if out
so up said what its about than into them can only other time new some could these two may first then
do any like my now over such our man me even most made after also well many before must through
years where much your way down should long work life hand world old house water light day night city
name book table music river green small open white
""".split()  # noqa: SIM905 - a list of 118 literals reads worse


def prompts(tokens: int, shared: int = 0, seed: int | None = None) -> Iterator[str]:
    """Endless prompts of about `tokens` tokens each; the first `shared` of them are the same in all.

    A server counts the tokens exactly, and its count is what results show. `seed`: None makes prompts that no
    earlier run has left in a server's cache.
    """
    source = random.Random(seed)  # noqa: S311 - not a secret
    prefix = _words(random.Random(0), min(shared, tokens - 1))  # noqa: S311
    while True:
        yield " ".join(prefix + _words(source, tokens - len(prefix)))


def _words(source: random.Random, count: int) -> list[str]:
    """A cache matches from the beginning: four words of 118 are the same in one of 190 million pairs."""
    return source.choices(_WORDS, k=count)
