"""An adapter of a Hugging Face model, told in the names and the row order of its GGUF file.

llama.cpp's converter renames every tensor, and for some architectures changes some: llama's query and key rows are
reordered for its rotary embedding. Only architectures whose changes are known here are translated; merging into the
others would give a model that is wrong without looking it.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace

import numpy as np

from onebit.checkpoints.gguf_spans import GgufFacts
from onebit.errors import AdapterError
from onebit.kernels.lora.adapter import Adapter, Factors
from onebit.kernels.lora.numbers import Later, Matrix

_ROTARY_PAIRS = frozenset({"llama"})  # query and key rows are reordered (convert_hf_to_gguf.py: LlamaModel.permute)
_PLAIN = frozenset({"gemma", "gemma2", "gemma3", "qwen2", "qwen3"})  # linear weights are taken over as they are
_QUERY_OR_KEY = re.compile(r"blk\.\d+\.attn_([qk])")


def translate(adapter: Adapter, facts: GgufFacts) -> Adapter:
    """The adapter with its modules named as in the GGUF file; modules that have no name there keep theirs.

    Raises AdapterError for an architecture that is not known, or whose numbers of heads are not.
    """
    if all(module.startswith(("blk.", "output", "token_embd")) for module in adapter.factors):
        return adapter
    if facts.architecture not in _ROTARY_PAIRS | _PLAIN:
        raise AdapterError(
            f"adapter {adapter.name}: how llama.cpp's converter changed the weights of {facts.architecture} models "
            "is not known to onebit",
            hint=f"merge into the model's safetensors files and convert the result; known are "
            f"{', '.join(sorted(_ROTARY_PAIRS | _PLAIN))}",
        )
    rename = _renamer(facts)
    factors: dict[str, Factors] = {}
    for module, part in adapter.factors.items():
        name = rename(module) or module
        if name in factors:
            raise AdapterError(f"adapter {adapter.name}: {factors[name].module} and {module} are both {name}")
        match = _QUERY_OR_KEY.fullmatch(name)
        if match and facts.architecture in _ROTARY_PAIRS:
            heads = facts.heads if match[1] == "q" else facts.kv_heads
            part = _reordered(adapter, part, heads)
        factors[name] = part
    return replace(adapter, factors=factors)


def _renamer(facts: GgufFacts) -> Callable[[str], str | None]:
    from gguf import MODEL_ARCH_NAMES, get_tensor_name_map

    arch = next(arch for arch, name in MODEL_ARCH_NAMES.items() if name == facts.architecture)
    names = get_tensor_name_map(arch, facts.blocks)

    def rename(module: str) -> str | None:
        plain = module.removeprefix("base_model.model.")
        for candidate in (plain, f"model.{plain}"):
            found: str | None = names.get_name(candidate)
            if found is not None:
                return found
        return None

    return rename


def _reordered(adapter: Adapter, part: Factors, heads: int) -> Factors:
    """B's rows as the converter orders the weight's: of each head, first and second half by turns."""
    rows, rank = part.b.rows, part.rank
    if heads < 1 or rows % (2 * heads):
        raise AdapterError(f"adapter {adapter.name}: {part.module} has {rows} rows, which {heads} heads cannot share")

    def reordered() -> Matrix:
        b = part.b.load().array.reshape(heads, 2, rows // heads // 2, rank).swapaxes(1, 2).reshape(rows, rank)
        return Matrix(np.ascontiguousarray(b), part.b.number)

    return replace(part, b=Later(rows, rank, part.b.number, reordered))
