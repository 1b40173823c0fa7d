"""Embedding and searching: onebit's kernels beside WordLlama, model2vec and the memory of the machine.

    pip install -e '.[bench-embed]'
    python benchmarks/embed.py

Everything runs on one core, in turn, round after round: a figure is the median of the rounds, a ratio the median of
the ratios within the rounds. Times are CPU time of the process: what else runs on the machine slows it down (caches,
memory), but is not counted. Texts: 20,000 different pieces of about 50 bytes of the docstrings of Python's standard
library. Goals: 1,000,000 embeds/s, 50 × WordLlama one by one, 30 × its batch, 100 × model2vec one by one, at most 2 ×
pooling plus tokenising, search at 80 % of the memory's bandwidth, an MRR 0.10 above WordLlama's.

WordLlama's `load()` asks a server even for the files that are in its wheel, so its object is built from those.
model2vec gets our own table, as float32.
"""

from __future__ import annotations

import ctypes
import logging
import os
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks._common import arguments, report, table
from benchmarks.embed_adapters import DESCRIPTIONS, QUERIES, places
from benchmarks.embed_texts import stdlib_texts

from onebit.kernels.embed import Embedder, Vectors, compiled
from onebit.kernels.embed.table import TOKENIZER, Table, default_folder
from onebit.kernels.embed.vectors import unit

Work = tuple[Callable[[], object], int]  # what to run, and how many texts (or bytes) it treats
Encode = Callable[[Sequence[str]], npt.NDArray[np.float32]]


def main() -> None:
    """Run it all and print the tables."""
    options = arguments(__doc__).parse_args()
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    rounds, count = (3, 2000) if options.quick else (15, 20_000)
    texts = stdlib_texts(count)
    ours = Embedder.load()
    wordllama, model2vec = load_wordllama(), load_model2vec(ours.table)
    seconds = run_rounds(embedding_works(ours, wordllama, model2vec, texts), rounds)
    rows, figures = embedding_rows(seconds)
    size = (1 << 26) if options.quick else (1 << 28)
    search = run_rounds(search_works(size), rounds)
    encoders: dict[str, Encode] = {"onebit": ours.encode, "WordLlama": lambda t: wordllama.embed(list(t))}
    encoders["model2vec, the same table"] = lambda t: model2vec.encode(list(t))
    quality = {name: quality_of(encode) for name, encode in encoders.items()}
    bytes_each = sum(len(text.encode()) for text in texts) / len(texts)
    tokens = sum(map(len, ours.tokenize(texts))) / len(texts)
    report(
        options,
        f"Embedding {len(texts):,} texts of {bytes_each:.0f} bytes, {tokens:.1f} tokens; "
        f"256 dimensions where not said otherwise; one core, {compiled.instruction_sets()[0]}",
        [
            table(["what", "µs a text (least)", "texts/s", "onebit's batch is faster by"], rows),
            table(["reading", "GB/s (most)", "share of plain reading"], search_rows(search, size)),
            table(
                [f"{len(QUERIES)} queries, {len(DESCRIPTIONS)} adapters", "first place", "MRR"],
                [[name, f"{top:.3f}", f"{mrr:.3f}"] for name, (top, mrr) in quality.items()],
            ),
        ],
        {"texts": len(texts), "bytes": bytes_each, "tokens": tokens, "us": figures, "quality": quality},
    )


def load_wordllama() -> Any:
    """WordLlama's 256 dimensions, from its wheel."""
    import wordllama
    from safetensors.numpy import load_file
    from tokenizers import Tokenizer
    from wordllama.inference import WordLlamaInference

    logging.getLogger().setLevel(logging.WARNING)  # importing it turns on everybody's messages
    root = Path(wordllama.__file__).parent
    weights = load_file(root / "weights/l2_supercat_256.safetensors")["embedding.weight"]
    tokenizer = Tokenizer.from_file(str(root / "tokenizers/l2_supercat_tokenizer_config.json"))
    return WordLlamaInference(weights, tokenizer)


def load_model2vec(ours: Table) -> Any:
    """model2vec with our table and tokeniser."""
    from model2vec import StaticModel
    from tokenizers import Tokenizer

    values = ours.rows * ours.scales[:, None]
    return StaticModel(values, Tokenizer.from_file(str(default_folder() / TOKENIZER)))


def embedding_works(ours: Embedder, wordllama: Any, model2vec: Any, texts: list[str]) -> dict[str, Work]:
    """The contenders. Slow ones get fewer of the same texts."""
    few = texts[:: max(1, len(texts) // 1000)][:1000]
    out = np.empty((len(texts), ours.dims), np.float32)
    lexicon_tokenizer, small = ours._tokenizer, ours.table
    wide = Embedder(replace(small, rows=np.tile(small.rows, (1, 4))))
    wide_out = np.empty((len(texts), wide.dims), np.float32)
    ids, ends = lexicon_tokenizer.tokenize(texts)
    return {
        "onebit, inside C": (lambda: lexicon_tokenizer.embed(texts, small.rows, small.scales, out), len(texts)),
        "onebit, batch": (lambda: ours.encode(texts), len(texts)),
        "onebit, batch, 1024 dimensions": (lambda: wide.encode(texts, out=wide_out), len(texts)),
        "onebit, one by one": (lambda: [ours.encode([text]) for text in few], len(few)),
        "onebit, tokenising only": (lambda: lexicon_tokenizer.tokenize(texts), len(texts)),
        "onebit, pooling only": (lambda: compiled.pool(ids, ends, small.rows, small.scales, out), len(texts)),
        "WordLlama, batch": (lambda: wordllama.embed(few), len(few)),
        "WordLlama, one by one": (lambda: [wordllama.embed(text) for text in few], len(few)),
        "model2vec, batch": (lambda: model2vec.encode(few, use_multiprocessing=False), len(few)),
        "model2vec, one by one": (lambda: [model2vec.encode(text) for text in few], len(few)),
    }


def search_works(size: int) -> dict[str, Work]:
    """Reading the same number of bytes: by glibc's memchr, which does nothing else, and by a search."""
    rows = np.random.default_rng(0).integers(-127, 128, (size // 256, 256), dtype=np.int8)
    vectors = Vectors(rows, np.ones(len(rows), np.float32))
    query = np.random.default_rng(1).normal(size=256).astype(np.float32)
    plain = np.ones(size, np.uint8)
    return {
        "memchr": (lambda: _scan(plain), size),
        "numpy, bitwise or": (lambda: np.bitwise_or.reduce(plain.view(np.uint64)), size),
        "onebit, search for 10": (lambda: vectors.search(query), size),
    }


def _scan(ones: npt.NDArray[np.uint8]) -> None:
    memchr = ctypes.CDLL(None).memchr
    memchr.argtypes, memchr.restype = [ctypes.c_void_p, ctypes.c_int, ctypes.c_size_t], ctypes.c_void_p
    assert memchr(ones.ctypes.data, 0, len(ones)) is None


def run_rounds(works: dict[str, Work], rounds: int) -> dict[str, list[float]]:
    """Seconds for each text or byte, in each round after one that warms up."""
    seconds: dict[str, list[float]] = {name: [] for name in works}
    for number in range(rounds + 1):
        for name, (work, count) in works.items():
            began = time.process_time()
            work()
            if number:
                seconds[name].append((time.process_time() - began) / count)
    return seconds


def embedding_rows(seconds: dict[str, list[float]]) -> tuple[list[list[str]], dict[str, dict[str, float]]]:
    """A row for each contender, and one for the sum of the two halves."""
    parts = zip(seconds["onebit, tokenising only"], seconds["onebit, pooling only"], strict=True)
    seconds = seconds | {"onebit, tokenising + pooling, apart": [a + b for a, b in parts]}
    rows, figures = [], {}
    for name, values in seconds.items():
        median, least = statistics.median(values), min(values)
        faster = statistics.median(v / own for v, own in zip(values, seconds["onebit, batch"], strict=True))
        rows.append([name, f"{median * 1e6:.2f} ({least * 1e6:.2f})", f"{1 / median:,.0f}", f"{faster:.2f} ×"])
        figures[name] = {"median": median * 1e6, "least": least * 1e6, "ratio": faster}
    return rows, figures


def search_rows(seconds: dict[str, list[float]], size: int) -> list[list[str]]:
    """Bandwidths, and the share of the faster plain reader in each round."""
    plain = [min(pair) for pair in zip(seconds["memchr"], seconds["numpy, bitwise or"], strict=True)]
    return [
        [
            f"{name}, {size >> 20} MiB",
            f"{1e-9 / statistics.median(values):.1f} ({1e-9 / min(values):.1f})",
            f"{statistics.median(p / v for p, v in zip(plain, values, strict=True)):.2f}",
        ]
        for name, values in seconds.items()
    ]


def quality_of(encode: Encode) -> tuple[float, float]:
    """The share of queries whose adapter comes first, and the mean reciprocal rank."""
    queries, adapters = (unit(encode(part)) for part in ([query for query, _ in QUERIES], DESCRIPTIONS))
    found = places((queries @ adapters.T).tolist())
    return statistics.mean(place == 1 for place in found), statistics.mean(1 / place for place in found)


if __name__ == "__main__":
    main()
