"""Small GGUF models that really run in llama-server and whose answers are known beforehand.

A chain model is a Markov chain: the next token is a fixed permutation of the current one. The embedding has
random rows of rms 1 and the output matrix has the row of `x` at `perm[x]`; attention and feed-forward run for
real on random weights, but their output projections are zero, so the residual stream keeps the embedding and
greedy decoding is the permutation exactly. The MTP (multi-token prediction) head gets the embedding of the
next token and the hidden state, keeps the former (`eh_proj` = [I 0]), and so drafts `perm` of it: right
always, or wrong after every token whose id is a multiple of `miss`, through an output matrix of its own.

A newline starts `reply` words that end in <|im_end|>: chat answers of a known length. All other tokens lie on
one endless cycle.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Literal, cast

import numpy as np
import numpy.typing as npt
from gguf import GGMLQuantizationType, GGUFReader, GGUFValueType, GGUFWriter, LlamaFileType
from gguf.quants import dequantize, quantize

from onebit.models.gguf_reader import HeaderReader

_F32 = GGMLQuantizationType.F32
Floats = npt.NDArray[np.float32]
Arch = Literal["mimo2", "qwen35"]  # plain attention, and a hybrid with delta-net layers
Quant = Literal["f32", "f16", "bf16", "q8_0", "q4_0", "q4_1"]

_SPECIAL = 17  # SmolLM2's control tokens come first
_NEWLINE, _END = "Ċ", "<|im_end|>"
_QUANTS: dict[str, tuple[GGMLQuantizationType, LlamaFileType]] = {
    "f32": (GGMLQuantizationType.F32, LlamaFileType.ALL_F32),
    "f16": (GGMLQuantizationType.F16, LlamaFileType.MOSTLY_F16),
    "bf16": (GGMLQuantizationType.BF16, LlamaFileType.MOSTLY_BF16),
    "q8_0": (GGMLQuantizationType.Q8_0, LlamaFileType.MOSTLY_Q8_0),
    "q4_0": (GGMLQuantizationType.Q4_0, LlamaFileType.MOSTLY_Q4_0),
    "q4_1": (GGMLQuantizationType.Q4_1, LlamaFileType.MOSTLY_Q4_1),
}


@dataclass(frozen=True, slots=True)
class Chain:
    """A chain model's file and its language."""

    path: Path
    perm: tuple[int, ...]  # the token after each token
    drafts: tuple[int, ...]  # the token that the MTP head drafts after each token
    tokens: tuple[str, ...]  # as the tokenizer writes them: Ġ is a space, Ċ a newline
    ids: Mapping[str, int]
    reply: tuple[int, ...]  # the words after a newline, without the end token

    def follow(self, token: int, count: int) -> list[int]:
        """The `count` tokens that greedy decoding gives after `token`."""
        answer = []
        for _ in range(count):
            token = self.perm[token]
            answer.append(token)
        return answer

    def endless_tokens(self) -> list[int]:
        """The tokens on the endless cycle, in its order: an answer that starts there never ends by itself."""
        words = set(self.reply) | {self.ids[_NEWLINE], self.ids[_END]}
        start = next(i for i in range(_SPECIAL, len(self.perm)) if i not in words)
        cycle = [start]
        while (token := self.perm[cycle[-1]]) != start:
            cycle.append(token)
        return cycle

    def reply_text(self) -> str:
        """What a chat request is answered with."""
        return "".join(self.tokens[i].replace("Ġ", " ") for i in self.reply)


@dataclass(frozen=True, slots=True)
class _Shape:
    vocab: int
    d: int  # embedding length
    ff: int
    layers: int  # without the MTP layers
    nextn: int  # MTP layers
    head_dim: int
    heads: int
    kv_heads: int
    ctx: int
    full_every: int = 4  # qwen35: every n-th layer is attention
    ssm_state: int = 64
    ssm_heads: int = 4
    ssm_groups: int = 2


def build_chain_model(
    path: Path,
    *,
    tokenizer: Path,
    arch: Arch = "mimo2",
    vocab: int = 2048,
    d: int = 256,
    ff: int = 512,
    layers: int = 4,
    nextn: int = 1,
    miss: int = 0,
    reply: int = 64,
    head_dim: int = 64,
    heads: int = 0,
    kv_heads: int = 0,
    quant: Quant = "q8_0",
    logit: float = 60.0,
    ctx: int = 8192,
    seed: int = 1,
    random_weights: bool = False,
) -> Chain:
    """Write a chain model to `path`: 4.8 MB with the defaults.

    `tokenizer` is a SmolLM2 GGUF to borrow that from, cut to the first `vocab` tokens; `nextn` 0 leaves the
    MTP head out; `logit` is that of the right token. With `random_weights` nothing is zeroed: the answers are
    not the chain's, and drafts are never right.
    """
    rng = np.random.default_rng(seed)
    words = _read_tokenizer(tokenizer)
    tokens = words.tokens[:vocab]
    perm, reply_ids = _permutation(tokens, reply, rng)
    heads = heads or d // head_dim
    shape = _Shape(len(tokens), d, ff, layers, nextn, head_dim, heads, kv_heads or heads, ctx)
    writer = _Writer(path, arch, shape, rng, quant, zero=not random_weights)
    writer.metadata()
    writer.tensors(perm, _wrong(perm, miss) if miss and not random_weights else None, logit)
    _add_tokenizer(writer.gguf, words, tokens)
    writer.finish()
    drafts = _wrong(perm, miss) if miss else perm
    return Chain(
        path=path,
        perm=tuple(perm.tolist()),
        drafts=tuple(drafts.tolist()),
        tokens=tuple(tokens),
        ids={token: i for i, token in enumerate(tokens)},
        reply=tuple(reply_ids),
    )


def simulate(perm: Sequence[int], drafts: Sequence[int], last: int, n_predict: int, n_max: int) -> tuple[int, int]:
    """The exact (draft_n, draft_n_accepted) that llama-server reports for a greedy request of one slot.

    `last` is the prompt's last token; the request makes `n_predict` tokens and never meets an end token.
    """
    token, made = perm[last], 1  # the first comes from the prompt, without a draft
    drafted = accepted = 0
    while made < n_predict:
        draft = []
        guess = token
        for _ in range(min(n_max, n_predict - made - 1)):
            guess = drafts[guess]
            draft.append(guess)
        drafted += len(draft)
        for guess in draft:  # verified in one batch; the first wrong one is replaced, and the rest dropped
            token = perm[token]
            made += 1
            if guess != token:
                break
            accepted += 1
        else:
            token = perm[token]
            made += 1
    return drafted, accepted


def split(model: Path, trunk: Path, head: Path) -> None:
    """Split a model with an MTP head into one without, and a file with only the head (for `--mtp-model`)."""
    reader = GGUFReader(model)
    arch = reader.fields["general.architecture"].contents()
    blocks = reader.fields[f"{arch}.block_count"].contents()
    layers = blocks - reader.fields[f"{arch}.nextn_predict_layers"].contents()

    def block_of(name: str) -> int | None:
        match = re.match(r"blk\.(\d+)\.", name)
        return int(match[1]) if match else None

    for path, is_trunk in ((trunk, True), (head, False)):
        writer = GGUFWriter(path, arch)
        for key, field in reader.fields.items():
            if key.startswith("GGUF.") or key == "general.architecture":
                continue
            value, kind = field.contents(), field.types[0]
            if is_trunk and key.endswith(".nextn_predict_layers"):
                continue
            if is_trunk and key.endswith(".block_count"):
                value = layers
            if is_trunk and key.endswith(".sliding_window_pattern"):
                value = value[:layers]
            if kind == GGUFValueType.ARRAY:
                writer.add_array(key, value)
            else:
                writer.add_key_value(key, value, kind)
        for tensor in reader.tensors:
            block = block_of(tensor.name)
            if block is None or (block < layers) == is_trunk:
                writer.add_tensor(tensor.name, tensor.data, raw_dtype=tensor.tensor_type)
        _write(writer)


def make_adapter(model: Path, path: Path, *, after: int, say: int, strength: float = 3.0) -> None:
    """Write a LoRA adapter (rank 1, on the output matrix) for a chain model: after `after` comes `say`."""
    reader = GGUFReader(model)
    arch = reader.fields["general.architecture"].contents()
    weights = {t.name: dequantize(t.data, t.tensor_type) for t in reader.tensors if "blk." not in t.name}
    output = weights["output.weight"]  # (vocab, d)
    row = weights["token_embd.weight"][after]
    row = row / np.sqrt(np.mean(row * row))  # what the norm before the output makes of it
    lora_b = np.zeros((output.shape[0], 1), np.float32)
    lora_b[say] = strength * float((output @ row).max())
    writer = GGUFWriter(path, arch)
    writer.add_type("adapter")
    writer.add_string("adapter.type", "lora")
    writer.add_float32("adapter.lora.alpha", 1.0)
    writer.add_name(path.stem)
    writer.add_tensor("output.weight.lora_a", (row / (row @ row)).reshape(1, -1).astype(np.float32))  # (1, d)
    writer.add_tensor("output.weight.lora_b", lora_b)
    _write(writer)


# --- the language -------------------------------------------------------------------------------------------


def _permutation(
    tokens: Sequence[str], reply: int, rng: np.random.Generator
) -> tuple[npt.NDArray[np.int64], list[int]]:
    """Newline → `reply` words → end token → newline; the special tokens in a ring; the rest on one cycle."""
    ids = {token: i for i, token in enumerate(tokens)}
    word = re.compile(r"Ġ[A-Za-z]{2,}")
    words = [i for i, token in enumerate(tokens) if word.fullmatch(token)][:reply]
    if len(words) < reply:
        raise ValueError(f"only {len(words)} of {len(tokens)} tokens are words; {reply} are wanted")
    perm = np.full(len(tokens), -1)
    chain = [ids[_NEWLINE], *words, ids[_END]]
    perm[chain] = np.roll(chain, -1)
    free = np.flatnonzero(perm < 0)
    special, rest = free[free < _SPECIAL], free[free >= _SPECIAL]
    rng.shuffle(rest)
    perm[rest] = np.roll(rest, -1)
    perm[special] = np.roll(special, -1)
    return perm, words


def _wrong(perm: npt.NDArray[np.int64], miss: int) -> npt.NDArray[np.int64]:
    """`perm`, wrong after the tokens whose id is a multiple of `miss`."""
    wrong = perm.copy()
    wrong[::miss] = np.roll(perm[::miss], 1)
    return wrong


# --- the file -----------------------------------------------------------------------------------------------


class _Writer:
    """Writes metadata and tensors of one architecture. Matrices are (out, in)."""

    def __init__(
        self, path: Path, arch: Arch, shape: _Shape, rng: np.random.Generator, quant: Quant, *, zero: bool
    ) -> None:
        self.gguf = GGUFWriter(path, arch)
        self.arch = arch
        self.shape = shape
        self.rng = rng
        self.quant = quant
        self.zero = zero
        self.pool: dict[tuple[int, int], Floats] = {}

    def metadata(self) -> None:
        s, w, arch = self.shape, self.gguf, self.arch
        blocks = s.layers + s.nextn
        w.add_name(f"tiny {arch} {'chain' if self.zero else 'noise'}")
        w.add_context_length(s.ctx)
        w.add_embedding_length(s.d)
        w.add_block_count(blocks)
        w.add_feed_forward_length(s.ff)
        w.add_head_count(s.heads)
        w.add_head_count_kv(s.kv_heads)
        w.add_key_length(s.head_dim)
        w.add_value_length(s.head_dim)
        w.add_layer_norm_rms_eps(1e-5)
        w.add_rope_freq_base(10000.0)
        w.add_rope_dimension_count(s.head_dim)
        w.add_vocab_size(s.vocab)
        w.add_file_type(_QUANTS[self.quant][1])
        w.add_quantization_version(2)
        if s.nextn:
            w.add_nextn_predict_layers(s.nextn)
        if arch == "mimo2":
            w.add_sliding_window(s.ctx)
            w.add_array("mimo2.attention.sliding_window_pattern", [True] * blocks)
            w.add_float32("mimo2.rope.freq_base_swa", 10000.0)
            w.add_expert_feed_forward_length(s.ff)
        else:
            w.add_rope_dimension_sections([s.head_dim // 8, s.head_dim // 8, s.head_dim // 4, 0])
            w.add_ssm_conv_kernel(4)
            w.add_ssm_state_size(s.ssm_state)
            w.add_ssm_time_step_rank(s.ssm_heads)
            w.add_ssm_group_count(s.ssm_groups)
            w.add_ssm_inner_size(s.ssm_state * s.ssm_heads)
            w.add_uint32("qwen35.full_attention_interval", s.full_every)

    def tensors(self, perm: npt.NDArray[np.int64], wrong: npt.NDArray[np.int64] | None, logit: float) -> None:
        """The embedding, the blocks, the MTP head (with an output matrix of its own for `wrong`)."""
        s = self.shape
        embedding = self.rng.standard_normal((s.vocab, s.d), dtype=np.float32)
        embedding /= np.linalg.norm(embedding, axis=1, keepdims=True) / np.sqrt(s.d)  # rows of rms 1

        def output(order: npt.NDArray[np.int64]) -> Floats:
            matrix = np.empty_like(embedding)
            matrix[order] = embedding * (logit / s.d)
            return matrix

        self._put("token_embd.weight", embedding)
        self._ones("output_norm.weight", s.d)
        if self.zero:
            self._put("output.weight", output(perm))
        else:
            self._put("output.weight", self._random(s.vocab, s.d) * (logit / 4))
        for block in range(s.layers + s.nextn):
            self._block(block)
        for block in range(s.layers, s.layers + s.nextn):
            self._head(f"blk.{block}.nextn.", None if wrong is None else output(wrong))

    def finish(self) -> None:
        _write(self.gguf)

    def _put(self, name: str, array: npt.NDArray[Any], kind: GGMLQuantizationType | None = None) -> None:
        array = np.ascontiguousarray(array, dtype=np.float32)
        if kind is None:
            kind = _QUANTS[self.quant][0] if array.ndim == 2 else _F32
        if kind == _F32:
            self.gguf.add_tensor(name, array)
        else:
            self.gguf.add_tensor(name, quantize(array, kind), raw_dtype=kind)

    def _ones(self, name: str, length: int) -> None:
        self._put(name, np.ones(length, np.float32))

    def _random(self, rows: int, columns: int) -> Floats:
        """Layers of one shape share their random matrices: the file is made in half the time."""
        if (rows, columns) not in self.pool:
            values = self.rng.standard_normal((rows, columns), dtype=np.float32)
            self.pool[rows, columns] = values / np.float32(np.sqrt(columns))
        return self.pool[rows, columns]

    def _into_residual(self, rows: int, columns: int) -> Floats:
        return np.zeros((rows, columns), np.float32) if self.zero else self._random(rows, columns)

    def _block(self, block: int) -> None:
        s, p = self.shape, f"blk.{block}."
        hybrid = self.arch == "qwen35"
        self._ones(p + "attn_norm.weight", s.d)
        if hybrid and block < s.layers and (block + 1) % s.full_every:
            self._delta_net(p)
        else:
            self._attention(p)
        self._ones(p + ("post_attention_norm.weight" if hybrid else "ffn_norm.weight"), s.d)
        self._put(p + "ffn_gate.weight", self._random(s.ff, s.d))
        self._put(p + "ffn_up.weight", self._random(s.ff, s.d))
        self._put(p + "ffn_down.weight", self._into_residual(s.d, s.ff))

    def _attention(self, p: str) -> None:
        s = self.shape
        queries, keys = s.heads * s.head_dim, s.kv_heads * s.head_dim
        if self.arch == "mimo2":  # fused
            self._put(p + "attn_qkv.weight", self._random(queries + 2 * keys, s.d))
        else:  # the queries carry an output gate
            self._put(p + "attn_q.weight", self._random(2 * queries, s.d))
            self._put(p + "attn_k.weight", self._random(keys, s.d))
            self._put(p + "attn_v.weight", self._random(keys, s.d))
            self._ones(p + "attn_q_norm.weight", s.head_dim)
            self._ones(p + "attn_k_norm.weight", s.head_dim)
        self._put(p + "attn_output.weight", self._into_residual(s.d, queries))

    def _delta_net(self, p: str) -> None:
        s = self.shape
        keys, values = s.ssm_state * s.ssm_groups, s.ssm_state * s.ssm_heads
        self._put(p + "attn_qkv.weight", self._random(2 * keys + values, s.d))
        self._put(p + "attn_gate.weight", self._random(values, s.d))
        self._put(p + "ssm_conv1d.weight", self._random(2 * keys + values, 4), _F32)
        self._put(p + "ssm_dt.bias", np.zeros(s.ssm_heads))
        self._put(p + "ssm_a", -np.ones(s.ssm_heads))
        self._put(p + "ssm_beta.weight", self._random(s.ssm_heads, s.d))
        self._put(p + "ssm_alpha.weight", self._random(s.ssm_heads, s.d))
        self._ones(p + "ssm_norm.weight", s.ssm_state)
        self._put(p + "ssm_out.weight", self._into_residual(s.d, values))

    def _head(self, p: str, own_output: Floats | None) -> None:
        d = self.shape.d
        keep_first = np.concatenate([np.eye(d, dtype=np.float32), np.zeros((d, d), np.float32)], axis=1)
        self._put(p + "eh_proj.weight", keep_first if self.zero else self._random(d, 2 * d))
        self._ones(p + "enorm.weight", d)
        self._ones(p + "hnorm.weight", d)
        self._ones(p + "shared_head_norm.weight", d)
        if own_output is not None:
            self._put(p + "shared_head_head.weight", own_output)


def _write(writer: GGUFWriter) -> None:
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


# --- the tokenizer ------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Tokenizer:
    tokens: list[str]
    types: list[int]
    merges: list[str]
    template: str


@cache
def _read_tokenizer(path: Path) -> _Tokenizer:
    """Read the long arrays by hand: the library takes seconds for them (see onebit.models.gguf_reader)."""
    reader = HeaderReader(path)
    data = memoryview(cast(Any, reader.data))  # numpy tells mypy so from Python 3.12 on

    def start(key: str) -> int:
        return int(reader.fields[key].offset) + 8 + len(key) + 4 + 12  # key length, key, type; item type, length

    def strings(key: str) -> list[str]:
        offset, found = start(key), []
        for _ in range(reader.array_length(key)):
            (length,) = struct.unpack_from("<Q", data, offset)
            found.append(str(data[offset + 8 : offset + 8 + length], "utf-8"))
            offset += 8 + length
        return found

    types_key = "tokenizer.ggml.token_type"
    types = np.frombuffer(data, "<i4", reader.array_length(types_key), start(types_key))
    template = reader.fields["tokenizer.chat_template"].contents()
    return _Tokenizer(strings("tokenizer.ggml.tokens"), types.tolist(), strings("tokenizer.ggml.merges"), template)


def _add_tokenizer(writer: GGUFWriter, words: _Tokenizer, tokens: Sequence[str]) -> None:
    """The first tokens, and the merges that stay among them."""
    keep = set(tokens)
    merges = [merge for merge in words.merges if keep.issuperset((*merge.split(" "), merge.replace(" ", "", 1)))]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("smollm")
    writer.add_token_list(list(tokens))
    writer.add_token_types(words.types[: len(tokens)])
    writer.add_token_merges(merges)
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_unk_token_id(0)
    writer.add_pad_token_id(2)
    writer.add_add_bos_token(False)
    writer.add_add_space_prefix(False)
    writer.add_chat_template(words.template)
