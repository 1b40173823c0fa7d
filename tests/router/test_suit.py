"""`"lora": "auto"` over 68 descriptions and three requests for each: seldom a wrong one, and none where none suits."""

from __future__ import annotations

import random

import pytest
from benchmarks.embed_adapters import DESCRIPTIONS, QUERIES

from onebit.router.suit import THRESHOLD, Suits


# Measured: 50, 1 and 97 % with 8 others; 49, 3 and 92 % with 24; 48, 7 and 81 % with all 67.
@pytest.mark.parametrize(
    ("size", "least_right", "most_wrong", "least_none"),
    [(8, 0.45, 0.03, 0.94), (24, 0.44, 0.05, 0.88), (67, 0.42, 0.1, 0.76)],
)
def test_the_right_one_or_none_but_seldom_a_wrong_one(
    size: int, least_right: float, most_wrong: float, least_none: float
) -> None:
    """Among so many others, the right one there or not."""
    chance = random.Random(1)
    right = wrong = none = 0
    for query, target in QUERIES:
        others = chance.sample([i for i in range(len(DESCRIPTIONS)) if i != target], size)
        found = Suits([DESCRIPTIONS[i] for i in (target, *others)])(query)
        right += found == 0
        wrong += found not in (0, None)
        none += Suits([DESCRIPTIONS[i] for i in others])(query) is None
    assert right / len(QUERIES) > least_right
    assert wrong / len(QUERIES) < most_wrong
    assert none / len(QUERIES) > least_none


def test_its_scores_explain_its_choice() -> None:
    suits = Suits(DESCRIPTIONS)
    for query, _ in QUERIES:
        best = suits.scores(query, 3)[0]
        assert suits(query) == (best.adapter if best.cosine >= THRESHOLD else None)


def test_a_text_without_words_suits_nothing() -> None:
    assert Suits(["a"])(" \n") is None
    assert Suits(["a"]).scores("", 3) == []
