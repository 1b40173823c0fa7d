"""What a GGUF file is, from its header alone: `inspect`."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any

from onebit.errors import ModelFileError
from onebit.models.architectures import BERT_LIKE
from onebit.models.gguf_open import FETCH_AGAIN, NEED_GGUF, open_header, parts_of, plain
from onebit.models.kv_cache import AttentionShape, kv_bytes_per_token
from onebit.models.sizes import Sizes, sizes_of

if TYPE_CHECKING:
    from onebit.models.gguf_reader import HeaderReader

_MAX_LAYERS = 512  # llama.cpp's limit

# Files with blocks that llama-server loads beside a model, never as one: projectors and drafters.
_HELPERS = frozenset({"clip", "gemma4-assistant", "eagle3", "dflash"})
# Encoders whose older files carry no pooling type.
_ENCODERS = BERT_LIKE | {"t5encoder"}


class ModelKind(StrEnum):
    """What a GGUF file can be used for."""

    MODEL = "model"  # can be served
    ADAPTER = "adapter"  # a LoRA: goes on top of a model
    MTP_HEAD = "mtp_head"  # only the multi-token prediction head of a model, for `--mtp-model`
    OTHER = "other"  # a projector, a drafter of another kind, an importance matrix, an image model…


@dataclass(frozen=True, slots=True)
class ModelInfo:
    """What the header says. Numbers are 0 where the file does not say; sizes are bytes, over all parts."""

    path: Path
    architecture: str
    name: str | None
    kind: ModelKind
    size_bytes: int
    tensor_bytes: int
    parameters: int
    quantization: str  # "Q4_1", "Q4_K_M", "F16"
    context_length: int  # tokens the model was trained for
    block_count: int  # layers, the MTP layers included
    embedding_length: int
    vocab_size: int
    kv_bytes_per_token: int  # f16; what is approximate about it: kv_cache.kv_bytes_per_token
    has_mtp_head: bool
    mtp_layers: int
    has_chat_template: bool
    embedding: bool  # answers /v1/embeddings rather than chat
    split_count: int  # files it consists of
    sizes: Sizes = field(default_factory=Sizes)  # the rest of what its engine will need memory for
    description: str | None = None  # what its maker says of it
    invoked: bool = False  # an adapter that begins at some words of the prompt (aLoRA), not at its first token


@dataclass(frozen=True, slots=True)
class _Tensor:
    name: str
    type_name: str
    elements: int
    bytes: int
    rows: int  # the last dimension


def inspect(path: Path) -> ModelInfo:
    """Read the header of `path` (and of its other parts, if it is split); never the tensor data.

    Takes some 50 ms for a vocabulary of 49k. Raises ModelFileError with one sentence naming the file and what
    is wrong with it: missing, unreadable, not GGUF, truncated, damaged.
    """
    try:
        return _inspect(path)
    except ModelFileError:
        raise
    except OSError as exc:
        raise ModelFileError(
            f"{path} cannot be read: {exc.strerror or exc}", hint="check the path and its permissions"
        ) from exc
    # the library says KeyError for duplicate keys, ValueError for unknown types and bad UTF-8, and so on
    except (ValueError, KeyError, IndexError, TypeError, OverflowError) as exc:
        from onebit.models.gguf_reader import TooShortError

        what = str(exc.args[0]) if exc.args else type(exc).__name__
        if isinstance(exc, TooShortError):
            raise ModelFileError(f"{path} is truncated: {what}", hint=FETCH_AGAIN) from exc
        raise ModelFileError(f"{path} has a damaged or unknown header: {plain(what)}", hint=FETCH_AGAIN) from exc


def _inspect(path: Path) -> ModelInfo:
    first = open_header(path)
    split_count = _int(first, "split.count") or 1
    paths = [path]
    if split_count > 1:
        paths = parts_of(path, split_count)
    readers = [first, *(open_header(part) for part in paths[1:])]
    tensors = [_tensor(t) for reader in readers for t in reader.tensors]
    if not tensors:
        raise ModelFileError(f"{path} holds no tensors: it is only a vocabulary or a template", hint=NEED_GGUF)
    architecture = _text(first, "general.architecture")
    if not architecture:
        raise ModelFileError(f"{path} does not say its architecture (general.architecture)", hint=FETCH_AGAIN)

    def number(key: str) -> int:
        return _int(first, f"{architecture}.{key}")

    block_count = number("block_count")
    if block_count > _MAX_LAYERS:
        raise ModelFileError(f"{path} claims {block_count:,} layers, over the limit of {_MAX_LAYERS}", hint=FETCH_AGAIN)
    names = {tensor.name for tensor in tensors}
    # llama.cpp's own test; the key nextn_predict_layers alone stays behind in files whose head was cut off
    has_head = block_count > 0 and f"blk.{block_count - 1}.nextn.eh_proj.weight" in names
    nextn = number("nextn_predict_layers")
    pooling = number("pooling_type")
    shape = _attention(first, architecture, block_count, nextn)
    return ModelInfo(
        path=path,
        architecture=plain(architecture),
        name=plain(_text(first, "general.name")) or None,
        kind=_kind(_text(first, "general.type"), architecture, block_count, has_head, names),
        size_bytes=sum(part.stat().st_size for part in paths),
        tensor_bytes=sum(tensor.bytes for tensor in tensors),
        parameters=sum(tensor.elements for tensor in tensors),
        quantization=_quantization(first, tensors),
        context_length=number("context_length"),
        block_count=block_count,
        embedding_length=number("embedding_length"),
        vocab_size=_vocab_size(first, number("vocab_size"), tensors),
        kv_bytes_per_token=kv_bytes_per_token(shape),
        has_mtp_head=has_head,
        mtp_layers=max(nextn, 1) if has_head else 0,
        has_chat_template="tokenizer.chat_template" in first.fields,
        embedding=pooling > 0 or architecture in _ENCODERS,
        split_count=split_count,
        sizes=sizes_of(
            shape,
            lambda key: _numbers(first, f"{architecture}.{key}"),
            ((tensor.name, tensor.type_name, tensor.bytes) for tensor in tensors),
        ),
        description=plain(" ".join(_text(first, "general.description").split())) or None,
        invoked="adapter.alora.invocation_tokens" in first.fields,
    )


# --- reading values -----------------------------------------------------------------------------------------


def _value(reader: HeaderReader, key: str) -> Any:
    field = reader.fields.get(key)
    return None if field is None else field.contents()


def _text(reader: HeaderReader, key: str) -> str:
    value = _value(reader, key)
    if value is not None and not isinstance(value, str):
        raise ValueError(f"{key} is not a text")
    return value or ""


def _numbers(reader: HeaderReader, key: str) -> tuple[int, ...]:
    """A number, or a number per layer. Too long an array counts as absent: its elements were skipped."""
    value = _value(reader, key)
    if value is None:
        return ()
    values = value if isinstance(value, list) else [value]
    if any(isinstance(v, str | float) or v < 0 for v in values):
        raise ValueError(f"{key} is not a count")
    return tuple(int(v) for v in values)


def _int(reader: HeaderReader, key: str) -> int:
    values = _numbers(reader, key)
    return values[0] if values else 0


def _tensor(tensor: Any) -> _Tensor:
    return _Tensor(
        name=tensor.name,
        type_name=tensor.tensor_type.name,
        elements=int(tensor.n_elements),
        bytes=int(tensor.n_bytes),
        rows=int(tensor.shape[-1]) if len(tensor.shape) else 1,
    )


def _kind(general_type: str, architecture: str, blocks: int, has_head: bool, names: set[str]) -> ModelKind:
    if general_type == "adapter":
        return ModelKind.ADAPTER
    if general_type not in ("", "model") or architecture in _HELPERS or not blocks:
        return ModelKind.OTHER
    if has_head and not any(name.startswith("blk.0.") for name in names):
        return ModelKind.MTP_HEAD
    return ModelKind.MODEL


def _quantization(reader: HeaderReader, tensors: list[_Tensor]) -> str:
    from gguf import LlamaFileType

    if "general.file_type" in reader.fields:
        try:
            file_type = LlamaFileType(_int(reader, "general.file_type"))
        except ValueError:
            pass  # a newer type than this library knows: count instead
        else:
            if file_type is not LlamaFileType.GUESSED:
                return file_type.name.removeprefix("MOSTLY_").removeprefix("ALL_")
    elements: Counter[str] = Counter()
    for tensor in tensors:
        elements[tensor.type_name] += tensor.elements
    return elements.most_common(1)[0][0]


def _vocab_size(reader: HeaderReader, said: int, tensors: list[_Tensor]) -> int:
    if said:
        return said
    tokens = reader.array_length("tokenizer.ggml.tokens")
    if tokens:
        return tokens
    return next((tensor.rows for tensor in tensors if tensor.name == "token_embd.weight"), 0)


def _attention(reader: HeaderReader, architecture: str, blocks: int, nextn: int) -> AttentionShape:
    def numbers(key: str) -> tuple[int, ...]:
        return _numbers(reader, f"{architecture}.{key}")

    def number(key: str) -> int:
        return next(iter(numbers(key)), 0)

    return AttentionShape(
        architecture=architecture,
        layers=max(blocks - nextn, 0),
        all_layers=blocks,
        embedding_length=number("embedding_length"),
        heads=numbers("attention.head_count"),
        kv_heads=numbers("attention.head_count_kv"),
        key_length=number("attention.key_length"),
        value_length=number("attention.value_length"),
        key_length_swa=number("attention.key_length_swa"),
        value_length_swa=number("attention.value_length_swa"),
        swa_layers=[bool(v) for v in numbers("attention.sliding_window_pattern")],
        recurrent_layers=[bool(v) for v in numbers("attention.recurrent_layers")],
        full_attention_interval=number("full_attention_interval"),
        shared_kv_layers=number("attention.shared_kv_layers"),
        kv_lora_rank=number("attention.kv_lora_rank"),
        rope_dimensions=number("rope.dimension_count"),
        mla=number("attention.key_length_mla") > 0 and number("attention.value_length_mla") > 0,
    )
