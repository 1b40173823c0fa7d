"""Names of architectures that are treated apart, as they stand in GGUF files."""

from __future__ import annotations

# Encoders: they read a text as a whole, and have no KV cache.
BERT_LIKE = frozenset(
    {
        "bert",
        "modern-bert",
        "jina-bert-v2",
        "jina-bert-v3",
        "nomic-bert",
        "nomic-bert-moe",
        "neo-bert",
        "eurobert",
        "gemma-embedding",
    }
)
