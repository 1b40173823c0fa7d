"""Distilling, as far as it can be tested without a teacher: its arithmetic, its training, its refusals."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

from onebit.errors import EmbedError, MissingTools
from onebit.kernels.embed.distill import Recipe, distill, principal, train
from onebit.kernels.embed.table import default_folder
from onebit.kernels.embed.vectors import unit


def quiet(_what: str, _done: int, _total: int) -> None:
    """Nobody watches."""


def test_principal_axes_keep_the_cosines() -> None:
    chance = np.random.default_rng(0)
    hidden = chance.normal(size=(400, 10))
    vectors = (hidden @ chance.normal(size=(10, 64))).astype(np.float32)  # 64 dimensions, of which 10 matter
    small = principal(vectors, 10)
    assert small.shape == (400, 10)
    assert small @ small.T == pytest.approx(unit(vectors) @ unit(vectors).T, abs=1e-4)


def test_no_more_dimensions_than_the_teacher_has() -> None:
    with pytest.raises(EmbedError, match="the teacher has 4 dimensions, 5 were asked for"):
        principal(np.ones((9, 4), np.float32), 5)


def test_training_finds_vectors_whose_means_point_where_they_should() -> None:
    pytest.importorskip("torch")
    chance = np.random.default_rng(1)
    truth = chance.normal(size=(200, 16)).astype(np.float32)
    lengths = chance.integers(0, 12, 3000)
    lengths[:2] = 0, 5  # a text without tokens teaches nothing and breaks nothing
    ids, ends = chance.integers(0, 200, lengths.sum()), np.cumsum(lengths)
    parts = np.split(ids, ends[:-1])
    means = np.stack([truth[part].mean(axis=0) if len(part) else np.zeros(16) for part in parts])
    learnt = train(ids, ends, unit(means.astype(np.float32)), 200, Recipe(dims=16, epochs=30, batch=128), quiet)
    assert np.isfinite(learnt).all()
    got = np.stack([learnt[part].mean(axis=0) for part in parts if len(part)])
    assert (unit(got) * unit(means)[lengths > 0]).sum(axis=1).mean() > 0.98


def test_without_the_extra_it_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "sentence_transformers", None)
    with pytest.raises(MissingTools) as caught:
        distill(default_folder(), ["a text"] * 300, tmp_path / "new", Recipe(), quiet)
    assert caught.value.hint == "pip install 'onebit[distill]'"


def test_too_few_texts_and_a_taken_name(tmp_path: Path) -> None:
    with pytest.raises(EmbedError, match="1 texts are too few for 256 dimensions"):
        distill(default_folder(), ["a text"], tmp_path / "new", Recipe(), quiet)
    with pytest.raises(EmbedError, match="exists already"):
        distill(default_folder(), ["a text"], tmp_path, Recipe(), quiet)
