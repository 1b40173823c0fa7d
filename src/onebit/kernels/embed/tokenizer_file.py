"""Reads Hugging Face's `tokenizer.json`: a WordPiece vocabulary and the switches of BERT's normaliser.

Anything that would make our token ids differ from those of the `tokenizers` package is refused by name.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from onebit.errors import EmbedError

MAX_BYTES = 64 << 20  # the largest in use (multilingual, 500,000 tokens) has 17 MB
MAX_TOKENS = 1 << 20
LONGEST_WORD = 256  # letters; both kernels keep one word in a fixed array. BERT's own bound is 100
PREFIX = "##"


@dataclass(frozen=True, slots=True)
class Normalizer:
    """The switches of BERT's normaliser; `strip_accents` includes canonical decomposition."""

    clean_text: bool
    chinese_apart: bool
    strip_accents: bool
    lowercase: bool


@dataclass(frozen=True, slots=True)
class TokenizerSpec:
    """What a tokenizer.json says. `vocab`: token → id. `added`: token → id, found in the text as it stands."""

    vocab: dict[str, int]
    added: dict[str, int]
    unknown: int
    longest_word: int
    normalizer: Normalizer

    @property
    def highest_id(self) -> int:
        """The highest id that tokenising can give; a table needs one row more than that."""
        return max(max(self.vocab.values()), max(self.added.values(), default=0))


def read_tokenizer(path: Path) -> TokenizerSpec:
    """The tokeniser described by `path`; `EmbedError` names what is wrong or not supported."""
    try:
        if path.stat().st_size > MAX_BYTES:
            raise EmbedError(f"{path} has more than {MAX_BYTES >> 20} MiB", hint="is it a tokenizer.json?")
        content = json.loads(path.read_bytes())
    except OSError as exc:
        raise EmbedError(f"{path} cannot be read: {exc.strerror}") from exc
    except (ValueError, RecursionError) as exc:
        raise EmbedError(f"{path} is not JSON: {exc}", hint="it may be truncated; fetch it again") from exc
    try:
        return parse_tokenizer(content)
    except EmbedError as exc:
        raise EmbedError(f"{path}: {exc.message}", hint=exc.hint) from exc


def parse_tokenizer(content: Any) -> TokenizerSpec:
    """The tokeniser described by a decoded tokenizer.json."""
    model = _object(content, "model")
    kind = model.get("type", "WordPiece")
    if kind != "WordPiece":
        raise EmbedError(f"the model is {kind!r}", hint="only WordPiece tokenisers (BERT's) are supported")
    if model.get("continuing_subword_prefix", PREFIX) != PREFIX:
        raise EmbedError(f"the prefix of word pieces is {model['continuing_subword_prefix']!r}, not {PREFIX!r}")
    splitter = _object(content, "pre_tokenizer").get("type")
    if splitter != "BertPreTokenizer":
        raise EmbedError(f"the pre-tokeniser is {splitter!r}", hint="only BertPreTokenizer is supported")
    vocab = _vocab(_object(model, "vocab"))
    unknown = model.get("unk_token", "[UNK]")
    if not isinstance(unknown, str) or unknown not in vocab:
        raise EmbedError(f"the token for unknown words, {unknown!r}, is not in the vocabulary")
    longest = model.get("max_input_chars_per_word", 100)
    if type(longest) is not int or not 0 < longest <= LONGEST_WORD:
        raise EmbedError(f"max_input_chars_per_word is {longest!r}, not a number from 1 to {LONGEST_WORD}")
    return TokenizerSpec(
        vocab=vocab,
        added=_added(content.get("added_tokens") or [], vocab),
        unknown=vocab[unknown],
        longest_word=longest,
        normalizer=_normalizer(_object(content, "normalizer")),
    )


def _object(content: Any, key: str) -> dict[str, Any]:
    value = content.get(key) if isinstance(content, dict) else None
    if not isinstance(value, dict):
        raise EmbedError(f"it has no {key!r} object", hint="is it a tokenizer.json of a BERT-like model?")
    return value


def _vocab(vocab: dict[str, Any]) -> dict[str, int]:
    if not 0 < len(vocab) <= MAX_TOKENS:
        raise EmbedError(f"the vocabulary has {len(vocab):,} tokens, not 1 to {MAX_TOKENS:,}")
    for token, number in vocab.items():
        if not _is_id(number):
            raise EmbedError(f"the id of {token!r} is {number!r}, not a whole number from 0 to {MAX_TOKENS:,}")
    return dict(vocab)


def _added(entries: Any, vocab: dict[str, int]) -> dict[str, int]:
    """`tokenizers` goes by the vocabulary, or counts on from it, whatever id the file has for an added token."""
    added: dict[str, int] = {}
    following = len(vocab)
    if not isinstance(entries, list) or len(entries) > MAX_TOKENS:
        raise EmbedError("added_tokens is not a list")
    for entry in entries:
        token, number = (entry.get("content"), entry.get("id")) if isinstance(entry, dict) else (None, None)
        if not isinstance(token, str) or not token or not isinstance(number, int) or not _is_id(number):
            raise EmbedError(f"an added token is {entry!r}, without content or id")
        if entry.get("single_word"):
            raise EmbedError(f"the added token {token!r} is marked single_word, which is not supported")
        if entry.get("normalized"):
            raise EmbedError(f"the added token {token!r} is marked normalized, which is not supported")
        theirs = vocab.get(token, added.get(token, following))
        if number != theirs:
            raise EmbedError(
                f"the added token {token!r} has the id {number}, where Hugging Face's `tokenizers` takes {theirs}",
                hint="the file contradicts itself: correct the id, or fetch the file again",
            )
        added[token] = number
        following = max(following, number + 1)
    return added


def _is_id(value: object) -> bool:
    return type(value) is int and 0 <= value < MAX_TOKENS


def _normalizer(content: dict[str, Any]) -> Normalizer:
    if content.get("type") != "BertNormalizer":
        raise EmbedError(f"the normaliser is {content.get('type')!r}", hint="only BertNormalizer is supported")
    lowercase = _switch(content, "lowercase")
    without_word = content.get("strip_accents") is None  # then accents go where capitals go: BERT's rule
    return Normalizer(
        clean_text=_switch(content, "clean_text"),
        chinese_apart=_switch(content, "handle_chinese_chars"),
        strip_accents=lowercase if without_word else _switch(content, "strip_accents"),
        lowercase=lowercase,
    )


def _switch(content: dict[str, Any], key: str) -> bool:
    value = content.get(key, True)
    if not isinstance(value, bool):
        raise EmbedError(f"the normaliser's {key} is {value!r}, not true or false")
    return value
