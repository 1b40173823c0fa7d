"""The package's table finds the right adapter for what people ask; benchmarks/embed.py compares it with others."""

from __future__ import annotations

import numpy as np
from benchmarks.embed_adapters import DESCRIPTIONS, QUERIES, places

from onebit.kernels.embed import Embedder, Nearest, Vectors
from onebit.kernels.embed.vectors import unit


def test_the_set_is_large_enough() -> None:
    assert len(DESCRIPTIONS) >= 60
    assert len({query for query, _ in QUERIES}) >= 200


def test_mean_reciprocal_rank(embedder: Embedder) -> None:
    scores = unit(embedder.encode([query for query, _ in QUERIES])) @ unit(embedder.encode(DESCRIPTIONS)).T
    found = np.array(places(scores.tolist()))
    assert (1 / found).mean() > 0.80  # 0.814 when the table came; WordLlama 0.659, see docs/kernels-embed.md
    assert (found == 1).mean() > 0.70


def test_nearest_and_int8_search_agree_with_the_scores(embedder: Embedder) -> None:
    nearest = Nearest(embedder, DESCRIPTIONS)
    vectors = Vectors.from_floats(embedder.encode(DESCRIPTIONS))
    same = 0
    for query, _ in QUERIES:
        best, second = nearest.find(query, 2)
        assert nearest.find(query) == [best]
        assert best.score >= second.score
        same += vectors.search(embedder.encode([query])[0], 1)[0].row == best.row
    assert same >= len(QUERIES) - 2  # rounding to int8 may turn round two that are all but equal


def test_nothing_is_near_to_a_text_without_tokens(embedder: Embedder) -> None:
    assert Nearest(embedder, DESCRIPTIONS).find(" \n") == []
