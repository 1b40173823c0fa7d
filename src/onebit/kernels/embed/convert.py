"""Static tables of other projects (model2vec, sentence-transformers) as int8 tables of ours."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from onebit.errors import EmbedError
from onebit.kernels.embed.table import MAX_DIMS, MODEL, TABLE_TYPES, TOKENIZER, Table, is_file, read_tensors, save_table
from onebit.kernels.embed.tokenizer_file import MAX_TOKENS, TokenizerSpec, read_tokenizer
from onebit.kernels.embed.vectors import quantize

_FOLDERS = (".", "0_StaticEmbedding")  # sentence-transformers puts the first module into the second
_NAMES = ("embeddings", "embedding.weight")  # model2vec's, sentence-transformers'


def convert(source: Path, target: Path, *, dims: int | None = None) -> Table:
    """Read the table in the folder `source`, write it as int8 to `target`. `dims`: keep only the first columns."""
    folder = next((source / name for name in _FOLDERS if is_file(source / name / MODEL)), None)
    if folder is None:
        raise EmbedError(f"{source} holds no {MODEL}", hint="a folder saved by model2vec or sentence-transformers?")
    tokenizer = folder / TOKENIZER if is_file(folder / TOKENIZER) else source / TOKENIZER
    spec = read_tokenizer(tokenizer)
    tensors, _ = read_tensors(folder / MODEL)
    try:
        values = token_vectors(tensors, spec)
    except EmbedError as exc:
        raise EmbedError(f"{folder / MODEL}: {exc.message}", hint=exc.hint) from exc
    if dims is not None and not 0 < dims <= values.shape[1]:
        raise EmbedError(f"{dims} dimensions cannot be kept: the table has {values.shape[1]}")
    rows, scales = quantize(values[:, :dims])
    table = Table(rows, scales, spec, {"source": source.resolve().name})
    save_table(table, tokenizer, target)
    return table


@np.errstate(over="ignore", invalid="ignore")  # what float32 cannot hold becomes infinite, and is refused
def token_vectors(tensors: Mapping[str, npt.NDArray[Any]], spec: TokenizerSpec) -> npt.NDArray[np.float32]:
    """float32 [tokens, dims]: what each token id adds to a mean.

    model2vec may keep fewer rows than tokens (`mapping`: token → row) and a weight for each token (`weights`); it also
    passes over unknown words, which a row of zeros does here: the mean gets shorter, its direction does not change.
    """
    values = next((tensors[name] for name in _NAMES if name in tensors), None)
    if values is None:
        found = ", ".join(tensors) or "nothing"
        raise EmbedError(
            f"it holds {found}, none of {' and '.join(_NAMES)}", hint="only static tables can be converted"
        )
    if values.dtype.kind not in "fi":
        raise EmbedError(f"the table is of the type {values.dtype}", hint=f"it may be of {TABLE_TYPES}")
    if values.ndim != 2 or not 0 < values.shape[1] <= MAX_DIMS:
        raise EmbedError(f"the table has the shape {values.shape}, not tokens × 1 to {MAX_DIMS:,} dimensions")
    model2vec = _NAMES[0] in tensors
    weights, mapping = tensors.get("weights"), tensors.get("mapping")
    values = values.astype(np.float32)
    if mapping is not None:
        if mapping.ndim != 1 or mapping.dtype.kind not in "iu" or not _within(mapping, len(values)):
            raise EmbedError("`mapping` leads outside of the table")
        values = values[mapping]
    if weights is not None:
        if weights.dtype.kind not in "fi":
            raise EmbedError(f"`weights` is of the type {weights.dtype}", hint=f"it may be of {TABLE_TYPES}")
        if weights.shape != (len(values),):
            raise EmbedError(f"`weights` has the shape {weights.shape}, there are {len(values):,} tokens")
        values *= weights.astype(np.float32)[:, None]
    if not spec.highest_id < len(values) <= MAX_TOKENS:
        raise EmbedError(f"the tokeniser gives ids up to {spec.highest_id:,}, the table has {len(values):,} rows")
    if not np.isfinite(values).all():
        row = int(np.argmin(np.isfinite(values).all(axis=1)))
        raise EmbedError(f"row {row} holds a value that is not a finite number")
    if model2vec:
        values[spec.unknown] = 0
    return values


def _within(numbers: npt.NDArray[Any], count: int) -> bool:
    return not len(numbers) or (int(numbers.min()) >= 0 and int(numbers.max()) < count)
