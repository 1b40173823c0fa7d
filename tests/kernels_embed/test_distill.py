"""Distilling, as far as it can be tested without a real teacher: its arithmetic, its training, its refusals."""

from __future__ import annotations

import stat
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from safetensors import SafetensorError

from onebit.errors import EmbedError, MissingTools
from onebit.kernels.embed import Embedder
from onebit.kernels.embed.distill import Recipe, damp, distill, principal_axes, token_texts, train
from onebit.kernels.embed.table import TOKENIZER, default_folder
from onebit.kernels.embed.tokenizer_file import read_tokenizer
from onebit.kernels.embed.vectors import unit


def quiet(_what: str, _done: int, _total: int) -> None:
    """Nobody watches."""


def test_principal_axes_keep_the_cosines() -> None:
    chance = np.random.default_rng(0)
    hidden = chance.normal(size=(400, 10))
    vectors = (hidden @ chance.normal(size=(10, 64))).astype(np.float32)  # 64 dimensions, of which 10 matter
    vectors = unit(vectors)
    small = vectors @ principal_axes(vectors, 10)
    assert small.shape == (400, 10)
    assert small @ small.T == pytest.approx(vectors @ vectors.T, abs=1e-4)


def test_every_token_is_a_text_for_the_teacher() -> None:
    spec = read_tokenizer(default_folder() / TOKENIZER)
    texts = token_texts(spec)
    assert len(texts) == spec.highest_id + 1
    whole, piece = spec.vocab["play"], spec.vocab["##ing"]
    assert (texts[whole], texts[piece]) == ("play", "ing")


def test_what_is_frequent_begins_small() -> None:
    tokens = np.array([[3, 4], [0, 2], [0, 0]], np.float32)
    begin = damp(tokens, np.zeros(1000, np.uint32))
    assert begin[1] == pytest.approx([0, 1])  # no text has it
    assert np.linalg.norm(begin[0]) == pytest.approx(1e-4, rel=0.01)
    assert begin[2].tolist() == [0, 0]


def test_training_finds_vectors_whose_means_point_where_they_should() -> None:
    pytest.importorskip("torch")
    chance = np.random.default_rng(1)
    truth = chance.normal(size=(200, 16)).astype(np.float32)
    lengths = chance.integers(0, 12, 3000)
    lengths[:2] = 0, 5  # a text without tokens teaches nothing and breaks nothing
    ids, ends = chance.integers(0, 200, lengths.sum()), np.cumsum(lengths)
    parts = np.split(ids, ends[:-1])
    means = np.stack([truth[part].mean(axis=0) if len(part) else np.zeros(16) for part in parts])
    begin = chance.normal(size=(201, 16), scale=0.02).astype(np.float32)
    learnt = train(ids, ends, unit(means.astype(np.float32)), begin, Recipe(epochs=30, batch=128), quiet)
    assert np.isfinite(learnt).all()
    assert (learnt[200] == begin[200]).all() and not (learnt[:200] == begin[:200]).any()  # the last one is in no text
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


class Teacher:
    """What is used of a sentence-transformer: its vectors are of the letters of a text."""

    def __init__(self, *_: object, **__: object) -> None:
        pass

    def encode(self, texts: list[str], **_: object) -> np.ndarray[Any, Any]:
        return np.array([[1 + text.count(chr(97 + i)) for i in range(26)] for text in texts], np.float32)


@pytest.fixture
def teacher(monkeypatch: pytest.MonkeyPatch) -> None:
    """The libraries of the extra, of which a real one was run by hand: docs/kernels-embed.md."""
    monkeypatch.setitem(sys.modules, "sentence_transformers", SimpleNamespace(SentenceTransformer=Teacher))
    logging = SimpleNamespace(disable_progress_bar=lambda: None)
    monkeypatch.setitem(sys.modules, "transformers", SimpleNamespace())
    monkeypatch.setitem(sys.modules, "transformers.utils", SimpleNamespace(logging=logging))


def test_from_a_teacher_to_a_table_on_disk(teacher: None, tmp_path: Path) -> None:
    pytest.importorskip("torch")
    seen = []
    words = ["cat", "dog", "house", "tree", "water", "stone"]
    texts = [f"{a} {b}" for a in words for b in words] * 10
    distill(default_folder(), texts, tmp_path / "new", Recipe(dims=8, epochs=2), lambda *at: seen.append(at))
    assert [phase for phase, done, of in seen if done == of] == [
        "the teacher reads texts",
        "the teacher reads tokens",
        "training",
    ]
    embedder = Embedder.load(tmp_path / "new")
    cat, cats_and_dogs, unseen = unit(embedder.encode(["cat", "cat dog", "zebra"]))
    assert cat @ cats_and_dogs > cat @ unseen
    assert all(stat.S_IMODE(file.stat().st_mode) == 0o644 for file in (tmp_path / "new").iterdir())


def test_no_more_dimensions_than_the_teacher_has(teacher: None, tmp_path: Path) -> None:
    with pytest.raises(EmbedError, match="the teacher has 26 dimensions, 27 were asked for"):
        distill(default_folder(), ["a text"] * 300, tmp_path / "new", Recipe(dims=27), quiet)


def test_a_teacher_that_cannot_be_loaded(teacher: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def load(*_: object, **__: object) -> None:
        raise SafetensorError("incomplete metadata, file not fully covered")

    monkeypatch.setattr(sys.modules["sentence_transformers"], "SentenceTransformer", load)
    with pytest.raises(EmbedError, match="cannot be loaded as a sentence-transformer: incomplete metadata"):
        distill(default_folder(), ["a text"] * 300, tmp_path / "new", Recipe(), quiet)
