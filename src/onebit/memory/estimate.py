"""How many bytes an engine will need, before it has ever been loaded. Pure.

The constants were measured with llama.cpp 0c1e57098 (inside llama-cpp-python 0.3.36) on two Zen 4 cores, with the
CPU build and with Vulkan on Mesa's llvmpipe, as llama-server prints its buffers at `-lv 4`, against the demo model
(135M, Q4_1), chain models of 4.8 MB (plain and hybrid) and one of 123 MB (Q4_0). No graphics card was at hand: what
a driver takes there is a guess on the high side. An estimate only has to be right once: afterwards the measured bytes
count (remembered.py).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from onebit.engines.llama_server import slot_context
from onebit.engines.spec import DraftKind, EngineSpec
from onebit.memory.pools import on_host
from onebit.models.gguf_file import ModelInfo, ModelKind

_F32 = 4  # bytes
_MIB = 1 << 20

# Intermediate results of a token: 9 × d (d 256, ff 2d), 12 × d (d 576, ff 2.67d), 15 × d (d 1024, ff 4d) were
# measured. 2 ff + 7 d is at or above all three; the margin is for what other architectures keep beside.
_WIDTHS, _LENGTHS, _MARGIN = 2, 7, 1.25
_MASK = 4  # bytes per batch row and cached token: f16, and once more in main memory when the model is on a GPU

# The process itself: 16 to 31 MiB with the CPU build (24 to 38 MiB with a hybrid model), 240 bytes more per token of
# the vocabulary (49,152 against 2,048).
_BASE_CPU, _BASE_PER_TOKEN = 40 * _MIB, 512
# 134 to 286 MiB were measured for llvmpipe, which compiles its shaders in the process. For a real card's driver this
# is a guess: CUDA contexts are known to take 250 to 500 MiB.
_BASE_SOFTWARE, _BASE_GPU = 320 * _MIB, 512 * _MIB


@dataclass(frozen=True, slots=True)
class Estimate:
    """Bytes, by what they are for."""

    weights: int  # tensors of the model, its adapters and its head, and copies of them that the backend makes
    cache: int  # KV cache and recurrent states of all slots
    compute: int  # intermediate results of the largest batch, and logits
    base: int  # what the process needs without any model

    @property
    def total(self) -> int:
        """Bytes to reserve."""
        return self.weights + self.cache + self.compute + self.base


def estimate(info: ModelInfo, spec: EngineSpec, extra: Sequence[ModelInfo] = ()) -> Estimate:
    """What the engine `spec` will need for the model `info`; `extra`: adapters, a head-only file, a projector.

    Exact for tensors and for the cache of plain and hybrid models. Too high on purpose: for sliding-window models
    (counted as if they kept every token), for quantised KV caches, and for layers left on the host
    (`--n-gpu-layers`); all bytes count as the pool's, also the part of a GPU engine that lies in main memory.
    Not counted: attention matrices where flash attention is off, and what llama-server collects later in main
    memory: its prompt cache (`--cache-ram`, up to 8 GiB) and the checkpoints of hybrid models.
    """
    return Estimate(_weights(info, spec, extra), _cache(info, spec, extra), _compute(info, spec), _base(info, spec))


def corrected(guess: Estimate, measured: int | None, *, host: bool) -> int:
    """The bytes to reserve when `measured` were seen after an earlier load; None: never measured.

    On a card an allocation is there at once, so the measured figure is the truth. In main memory (`host`) pages
    count from their first use: an engine with a compute buffer of 401 MiB held none of it after its first request
    (embeddings, batch 2048). So the buffer still comes on top, and less than weights and cache is not believed.
    """
    if measured is None:
        return guess.total
    if not host:
        return measured
    return max(measured, guess.weights + guess.cache) + guess.compute


def _drafts_with_own_head(spec: EngineSpec) -> bool:
    return spec.draft is not None and spec.draft.kind is DraftKind.MTP and spec.draft.model is None


def _weights(info: ModelInfo, spec: EngineSpec, extra: Sequence[ModelInfo]) -> int:
    own = info.tensor_bytes - (0 if _drafts_with_own_head(spec) else info.sizes.mtp_tensors)
    total = own + sum(other.tensor_bytes for other in extra)
    models = [info, *(other for other in extra if other.kind is ModelKind.MTP_HEAD)]
    if _on_cpu(spec):
        # The file stays mapped beside the reordered copy: 100 MiB mapped and 90 MiB copied for a Q4_0 file of 117.
        return total + (0 if {"--no-repack", "-nr"} & set(spec.extra) else sum(m.sizes.repacked for m in models))
    # The embedding is read on the host, so one that is the output matrix too is there twice (29 of 92 MiB, demo).
    return total + sum(m.sizes.tied_embedding for m in models)


def _cache(info: ModelInfo, spec: EngineSpec, extra: Sequence[ModelInfo]) -> int:
    per_token = info.kv_bytes_per_token
    if _drafts_with_own_head(spec):
        per_token += info.sizes.mtp_kv_per_token
    per_token += sum(other.sizes.mtp_kv_per_token for other in extra if other.kind is ModelKind.MTP_HEAD)
    # A draft is taken back by returning to the state before it: one more state per drafted token.
    states = info.sizes.state_per_slot * spec.rows_per_sequence
    return spec.slots * (slot_context(spec) * per_token + states)


def _compute(info: ModelInfo, spec: EngineSpec) -> int:
    """Buffers of the context that answers, and of the one that drafts beside it."""
    context, sizes = slot_context(spec), info.sizes
    rows = min(spec.batch, spec.slots * context)
    length = max(info.embedding_length, sizes.attention_width)
    width = sizes.width or 4 * info.embedding_length  # the usual ratio, where the file does not say
    token = int((_WIDTHS * width + _LENGTHS * length) * _F32 * _MARGIN)
    answers = spec.slots * spec.rows_per_sequence
    # An engine for embeddings keeps logits for every token of the batch: 384 MiB for 2048 × 49,152.
    logits = (max(answers, rows) if spec.embeddings else answers) + answers
    contexts = [logits]
    if spec.draft is not None and spec.draft.kind is DraftKind.MTP:
        contexts.append(2 * spec.slots)
    total = sum(rows * (token + context * _MASK) + outputs * info.vocab_size * _F32 for outputs in contexts)
    if sizes.recurrent_layers:  # one layer's states are gathered into the graph
        total += answers * sizes.state_per_slot // sizes.recurrent_layers
    return total


def _base(info: ModelInfo, spec: EngineSpec) -> int:
    vocabulary = _BASE_PER_TOKEN * info.vocab_size * (2 if spec.draft is not None and spec.draft.model else 1)
    if _on_cpu(spec):
        return _BASE_CPU + vocabulary
    return vocabulary + (_BASE_SOFTWARE if on_host(spec.device, spec.build) else _BASE_GPU)


def _on_cpu(spec: EngineSpec) -> bool:
    """On the CPU backend itself, not on Vulkan in software."""
    return spec.build.device_for(spec.device) is None
