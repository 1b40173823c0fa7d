"""What a model's header says about the memory that an engine will take, beside its tensors and KV cache."""

from __future__ import annotations

import platform
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from onebit.models.kv_cache import AttentionShape, keeps_cache, kv_heads_of, mtp_kv_bytes_per_token

_F32 = 4  # bytes; recurrent states are kept in it
# Architectures in which every layer has a state, beside a cache or instead of one.
_ALL_RECURRENT = frozenset({"mamba", "mamba2", "falcon-h1", "rwkv6", "rwkv6qwen2", "rwkv7", "arwkv7"})
# Types whose matrices the CPU backend copies into another order (ggml-cpu/repack.cpp of llama.cpp 0c1e57098), so
# that they are there twice: in the mapped file, and reordered.
_REPACKED = frozenset({"Q4_0", "Q4_K", "Q2_K", "IQ4_NL", "MXFP4"})
if platform.machine().lower() in ("aarch64", "arm64", "riscv64"):
    _REPACKED |= {"Q5_K", "Q6_K", "Q8_0"}


@dataclass(frozen=True, slots=True)
class Sizes:
    """Bytes, unless it says otherwise. 0: the file does not say, or there is none of it."""

    mtp_tensors: int = 0  # loaded only by an engine that drafts with them
    tied_embedding: int = 0  # the embedding, where it is the output matrix too: a GPU engine loads it twice
    repacked: int = 0  # matrices that a CPU engine keeps a second copy of
    mtp_kv_per_token: int = 0  # KV cache of the MTP layers
    state_per_slot: int = 0  # states of recurrent layers, which do not grow with the context
    recurrent_layers: int = 0  # how many layers that is
    width: int = 0  # elements of the widest feed-forward, of all experts that a token is sent to
    attention_width: int = 0  # elements of all heads' queries


def sizes_of(
    shape: AttentionShape, numbers: Callable[[str], Sequence[int]], tensors: Iterable[tuple[str, str, int]]
) -> Sizes:
    """From the header's values and `tensors` (name, type, bytes). `numbers(key)`: what stands at `ARCH.key`."""

    def number(key: str) -> int:
        return next(iter(numbers(key)), 0)

    tensors = list(tensors)
    heads = {f"blk.{layer}." for layer in range(shape.layers, shape.all_layers)}
    tied = not any(name == "output.weight" for name, _, _ in tensors)
    state = _state_elements(shape, number)
    recurrent = _recurrent_layers(shape) if state else 0
    key_length = shape.key_length or shape.embedding_length // (max(shape.heads, default=0) or 1)
    experts = number("expert_used_count") * number("expert_feed_forward_length")
    return Sizes(
        mtp_tensors=sum(size for name, _, size in tensors if _block(name) in heads),
        tied_embedding=sum(size for name, _, size in tensors if tied and name == "token_embd.weight"),
        repacked=sum(size for name, kind, size in tensors if kind in _REPACKED and name != "token_embd.weight"),
        mtp_kv_per_token=mtp_kv_bytes_per_token(shape),
        state_per_slot=recurrent * state * _F32,
        recurrent_layers=recurrent,
        width=max([*numbers("feed_forward_length"), experts + number("expert_shared_feed_forward_length")]),
        attention_width=max(shape.heads, default=0) * key_length,
    )


def _block(name: str) -> str:
    """`blk.3.attn_q.weight` is in `blk.3.`."""
    return ".".join(name.split(".", 2)[:2]) + "."


def _recurrent_layers(shape: AttentionShape) -> int:
    if shape.architecture in _ALL_RECURRENT:
        return shape.layers
    return sum(not (keeps_cache(shape, layer) and kv_heads_of(shape, layer)) for layer in range(shape.layers))


def _state_elements(shape: AttentionShape, number: Callable[[str], int]) -> int:
    """Elements of one layer's state for one sequence: what its convolution remembers, and the state itself.

    As `n_embd_r` and `n_embd_s` of llama-hparams.cpp have it, for the families of recurrent layers there are.
    """
    d, heads = shape.embedding_length, max(shape.heads, default=0)
    if head_size := number("wkv.head_size"):  # RWKV
        return d * ((number("token_shift_count") or 2) + head_size)
    if kernel := number("shortconv.l_cache"):  # LFM2
        return d * (kernel - 1)
    kept = max(0, (number("ssm.conv_kernel") or 1) - 1)
    if head_dim := number("kda.head_dim"):  # Kimi
        return 3 * (kept or 3) * heads * head_dim + heads * head_dim**2
    if not (inner := number("ssm.inner_size")):
        return 0
    state = number("ssm.state_size")  # Mamba, and the delta-net of Qwen3.5
    return kept * (inner + 2 * number("ssm.group_count") * state) + state * inner
