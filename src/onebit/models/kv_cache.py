"""How many bytes of KV cache one token of context takes: plain arithmetic on a file's metadata."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from onebit.models.architectures import BERT_LIKE

_F16 = 2  # bytes

# These have no KV cache at all in llama.cpp: BERT-like encoders and diffusion language models.
_NO_CACHE = BERT_LIKE | {"wavtokenizer-dec", "dream", "llada", "llada-moe", "rnd1"}
# Hybrid architectures whose files may leave the interval out: every n-th layer is attention, the others keep
# a state of fixed size instead of a cache.
_DEFAULT_INTERVAL = {"qwen35": 4, "qwen35moe": 4, "qwen3next": 4, "qwen4exp": 4, "minimax-01": 8}
_GEMMA3N_LAYERS_WITH_KV = 20  # fixed in the engine, not written in the files


@dataclass(frozen=True, slots=True)
class AttentionShape:
    """What the metadata says about attention. Lengths are elements per head; 0 or empty: not given."""

    architecture: str
    layers: int  # without the MTP layers
    all_layers: int  # with them
    embedding_length: int
    heads: Sequence[int]  # one number for all layers, or one per layer
    kv_heads: Sequence[int]
    key_length: int
    value_length: int
    key_length_swa: int
    value_length_swa: int
    swa_layers: Sequence[bool]  # per layer: does it see a sliding window only?
    recurrent_layers: Sequence[bool]  # per layer: has it a state instead of a cache?
    full_attention_interval: int
    shared_kv_layers: int  # the last layers that read the cache of an earlier one
    kv_lora_rank: int
    rope_dimensions: int
    mla: bool  # multi-head latent attention: one compressed row per token, and no V


def _at(values: Sequence[int], layer: int) -> int:
    if not values:
        return 0
    return values[layer] if 1 < len(values) > layer else values[0]


def kv_bytes_per_token(shape: AttentionShape) -> int:
    """Bytes of f16 KV cache for one token in one slot, over all layers that keep a cache.

    K and V of a layer are `kv_heads × key_length` and `kv_heads × value_length` elements of 2 bytes; with MLA
    one row of `kv_lora_rank + rope_dimensions`. Approximate in three ways: sliding-window layers are counted
    as if they kept every token (so it is an upper bound for gemma, gpt-oss, …); the fixed states of recurrent
    layers are not counted; nor is the cache of an MTP head, which is one more layer per head while drafting.
    """
    return sum(_elements(shape, layer) for layer in range(shape.layers) if keeps_cache(shape, layer)) * _F16


def mtp_kv_bytes_per_token(shape: AttentionShape) -> int:
    """The same for the MTP layers: the second context that drafts keeps them, and no others."""
    return sum(_elements(shape, layer) for layer in range(shape.layers, shape.all_layers)) * _F16


def _elements(shape: AttentionShape, layer: int) -> int:
    """Elements of K and V for one token in one layer."""
    if shape.architecture in _NO_CACHE:
        return 0
    per_head = shape.embedding_length // _at(shape.heads, 0) if _at(shape.heads, 0) else 0
    key, value = shape.key_length or per_head, shape.value_length or per_head
    if shape.mla:
        key, value = shape.key_length or shape.kv_lora_rank + shape.rope_dimensions, 0
    if layer < len(shape.swa_layers) and shape.swa_layers[layer]:
        key, value = shape.key_length_swa or key, shape.value_length_swa or value
    return kv_heads_of(shape, layer) * (key + value)


def kv_heads_of(shape: AttentionShape, layer: int) -> int:
    """Key-value heads of a layer; 0 in the layers of a hybrid that have a state instead."""
    return _at(shape.kv_heads or shape.heads, layer)


def keeps_cache(shape: AttentionShape, layer: int) -> bool:
    """Has this layer a KV cache of its own?"""
    with_kv = shape.all_layers - shape.shared_kv_layers
    if shape.architecture == "gemma3n":
        with_kv = _GEMMA3N_LAYERS_WITH_KV
    if layer >= with_kv:
        return False
    if shape.recurrent_layers:
        return not (layer < len(shape.recurrent_layers) and shape.recurrent_layers[layer])
    interval = shape.full_attention_interval or _DEFAULT_INTERVAL.get(shape.architecture, 1)
    return (layer + 1) % interval == 0
