"""Static int8 embeddings: a text's vector is the mean of its tokens' rows, in about a microsecond."""

from __future__ import annotations

from onebit.kernels.embed.embedder import Embedder, Nearest, default_embedder
from onebit.kernels.embed.index import Index, IndexWriter
from onebit.kernels.embed.table import Table, load_table, save_table
from onebit.kernels.embed.vectors import Hit, Vectors

__all__ = [
    "Embedder",
    "Hit",
    "Index",
    "IndexWriter",
    "Nearest",
    "Table",
    "Vectors",
    "default_embedder",
    "load_table",
    "save_table",
]
