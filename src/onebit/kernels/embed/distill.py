"""A static table from a sentence-transformer: its vectors of many texts, learnt by the mean of token vectors.

The recipe (measured on the 60 queries that our own table was first tested with: MRR 0.91, the teacher 0.96, plain
distillation as model2vec does it 0.74): PCA of the teacher's vectors, then an EmbeddingBag trained on 1 − cosine plus
10 × the squared error of the similarities within a batch.

It begins with what the teacher makes of each token alone, the frequent ones made small, as model2vec does: so a token
that none of the texts has is not lost. Of 29,000 docstrings all-MiniLM-L6-v2 made a table that finds adapters, which
docstrings say little about, with an MRR of 0.71; begun at random, of 0.30. On docstrings held back both were as near
to the teacher (a mean cosine of 0.87).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from onebit.errors import EmbedError, MissingTools
from onebit.kernels.embed.kernel import best_kernel, make_tokenizer
from onebit.kernels.embed.lexicon import make_lexicon
from onebit.kernels.embed.table import TOKENIZER, Table, check_new, save_table
from onebit.kernels.embed.tokenizer_file import PREFIX, TokenizerSpec, read_tokenizer
from onebit.kernels.embed.vectors import quantize, unit

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer

Floats = npt.NDArray[np.float32]
Report = Callable[[str, int, int], None]  # what is done, how far, of how much
_SIF = 1e-4


@dataclass(frozen=True, slots=True)
class Recipe:
    """How to train. The defaults made the package's own table from 120,000 texts in 73 s on two cores."""

    dims: int = 256
    epochs: int = 5
    batch: int = 512
    learning_rate: float = 2e-3
    similarity_weight: float = 10.0
    seed: int = 0


def distill(teacher: Path, texts: Sequence[str], target: Path, recipe: Recipe, report: Report) -> Table:
    """Make a table that imitates `teacher` (a folder of a sentence-transformer) on `texts`; write it to `target`.

    Nothing is fetched. The teacher's tokeniser, which must be WordPiece, becomes the table's.
    """
    check_new(target)
    if len(texts) < recipe.dims:
        raise EmbedError(f"{len(texts):,} texts are too few for {recipe.dims} dimensions", hint="give at least 10,000")
    spec = read_tokenizer(teacher / TOKENIZER)
    model = _load(teacher)
    if recipe.dims > (wide := model.encode(texts[:1]).shape[1]):  # not after minutes of reading
        raise EmbedError(
            f"the teacher has {wide} dimensions, {recipe.dims} were asked for", hint="name fewer with --dims"
        )
    taught = unit(_teach(model, texts, "the teacher reads texts", report))
    axes = principal_axes(taught, recipe.dims)
    tokens = unit(_teach(model, token_texts(spec), "the teacher reads tokens", report))
    ids, ends = make_tokenizer(best_kernel(), make_lexicon(spec)).tokenize(texts)
    begin = damp(tokens @ axes, ids)
    values = train(ids.astype(np.int64), ends.astype(np.int64), unit(taught @ axes), begin, recipe, report)
    rows, scales = quantize(values)
    table = Table(rows, scales, spec, {"teacher": teacher.resolve().name})
    save_table(table, teacher / TOKENIZER, target)
    return table


def _load(teacher: Path) -> SentenceTransformer:
    try:
        from sentence_transformers import SentenceTransformer
        from transformers.utils import logging
    except ImportError as exc:
        raise MissingTools(
            f"distilling needs sentence-transformers: {exc}", hint="pip install 'onebit[distill]'"
        ) from exc
    log: Any = logging  # it has types where it is installed, and none where it is not
    log.disable_progress_bar()  # of its own, in the midst of ours
    try:
        return SentenceTransformer(str(teacher), local_files_only=True, trust_remote_code=False, device="cpu")
    except Exception as exc:  # of three libraries that read the user's files: each has errors of its own
        raise EmbedError(f"{teacher} cannot be loaded as a sentence-transformer: {exc}") from exc


def _teach(model: Any, texts: Sequence[str], phase: str, report: Report, batch: int = 256) -> Floats:
    parts = []
    for start in range(0, len(texts), batch):
        parts.append(model.encode(texts[start : start + batch], convert_to_numpy=True, show_progress_bar=False))
        report(phase, min(start + batch, len(texts)), len(texts))
    return np.concatenate(parts).astype(np.float32)


def token_texts(spec: TokenizerSpec) -> list[str]:
    """Every token by its id, as a text: a piece that goes on without the signs that say so."""
    texts = [""] * (spec.highest_id + 1)
    for token, number in (spec.vocab | spec.added).items():
        texts[number] = token.removeprefix(PREFIX) if token != PREFIX else token
    return texts


def principal_axes(vectors: Floats, dims: int) -> Floats:
    """The first `dims` principal axes [wide, dims] of unit vectors [n, wide]: `vectors @ axes` are as many dimensions.

    Not centred, so that cosines survive: they are the eigenvectors of the second moments.
    """
    _, axes = np.linalg.eigh((vectors.T @ vectors).astype(np.float64))
    return axes[:, ::-1][:, :dims].astype(np.float32)


def damp(tokens: Floats, ids: npt.NDArray[np.integer[Any]]) -> Floats:
    """Unit vectors of tokens [n, dims], each times a / (a + its share of `ids`), with a = 1e-4.

    Smooth inverse frequency (Arora, Liang and Ma 2017): "the" says little of what a text is about.
    """
    share = np.bincount(ids, minlength=len(tokens)) / max(1, len(ids))
    return unit(tokens) * (_SIF / (_SIF + share))[:, None].astype(np.float32)


def train(
    ids: npt.NDArray[np.int64],
    ends: npt.NDArray[np.int64],
    targets: Floats,
    begin: Floats,
    recipe: Recipe,
    report: Report,
) -> Floats:
    """float32 [tokens, dims] whose means over the texts' ids point where `targets` (float32 [n, dims]) point.

    `ids`, `ends`: as `Tokenizer.tokenize` gives them. `begin`: float32 [tokens, dims], what the training starts from,
    and what a token keeps that no text has.
    """
    try:
        import torch
    except ImportError as exc:
        raise MissingTools(f"distilling needs torch: {exc}", hint="pip install 'onebit[distill]'") from exc
    from torch.nn.functional import cosine_similarity, mse_loss, normalize

    bag = torch.nn.EmbeddingBag.from_pretrained(
        torch.tensor(begin), freeze=False, mode="mean", include_last_offset=True
    )
    optimizer = torch.optim.Adam(bag.parameters(), recipe.learning_rate)
    starts = np.concatenate([[0], ends[:-1]])
    with_tokens = np.flatnonzero(ends > starts)
    order = np.random.default_rng(recipe.seed)
    steps, done = recipe.epochs * -(-len(with_tokens) // recipe.batch), 0
    for _ in range(recipe.epochs):
        shuffled = order.permutation(with_tokens)
        for at in range(0, len(shuffled), recipe.batch):
            batch = shuffled[at : at + recipe.batch]
            flat = np.concatenate([ids[starts[i] : ends[i]] for i in batch])
            offsets = np.concatenate([[0], np.cumsum(ends[batch] - starts[batch])])
            wanted = torch.from_numpy(targets[batch])
            got = bag(torch.from_numpy(flat), torch.from_numpy(offsets))
            units = normalize(got)
            loss = (1 - cosine_similarity(got, wanted)).mean()
            loss = loss + recipe.similarity_weight * mse_loss(units @ units.T, wanted @ wanted.T)
            optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]  # torch gives it no types
            optimizer.step()
            done += 1
            report("training", done, steps)
    found: Floats = bag.weight.detach().numpy()
    return found
