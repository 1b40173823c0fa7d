"""Bytes of KV cache per token, against numbers worked out by hand or reported by llama-server."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from onebit.models.gguf_file import inspect
from tests.support.gguf_files import Value, write_model

_F16 = 2


@pytest.mark.parametrize(
    ("arch", "blocks", "attention", "expected"),
    [
        # 2 layers, 2 heads of 8 elements, no head_count_kv: as many as heads
        ("llama", 2, {}, 2 * 2 * (8 + 8)),
        ("llama", 2, {"attention.head_count_kv": 1}, 2 * 1 * (8 + 8)),
        ("llama", 3, {"attention.head_count_kv": [2, 0, 1]}, 3 * (8 + 8)),
        ("llama", 2, {"attention.key_length": 32, "attention.value_length": 4}, 2 * 2 * (32 + 4)),
        # hybrid: of 8 layers and one MTP layer, layers 4 and 8 are attention
        ("qwen35", 9, {"full_attention_interval": 4, "nextn_predict_layers": 1}, 2 * 2 * 16),
        ("qwen35", 9, {"nextn_predict_layers": 1}, 2 * 2 * 16),  # the engine's own default is 4 too
        ("qwen3next", 4, {"full_attention_interval": 2}, 2 * 2 * 16),
        ("qwen3next", 4, {"attention.recurrent_layers": [True, True, True, False]}, 1 * 2 * 16),
        ("jamba", 4, {"attention.head_count_kv": [0, 0, 2, 0]}, 2 * 16),
        # MLA keeps one compressed row per layer and no V
        (
            "deepseek2",
            2,
            {
                "attention.head_count_kv": 1,
                "attention.key_length": 576,
                "attention.value_length": 512,
                "attention.key_length_mla": 192,
                "attention.value_length_mla": 128,
                "attention.kv_lora_rank": 512,
            },
            2 * 576,
        ),
        # an old MLA file, without the lengths, is run as plain attention
        (
            "deepseek2",
            2,
            {"attention.key_length": 192, "attention.value_length": 128, "attention.kv_lora_rank": 512},
            2 * 2 * (192 + 128),
        ),
        # sliding-window layers may have shorter heads, and count in full
        (
            "gemma4",
            3,
            {
                "attention.key_length": 16,
                "attention.value_length": 16,
                "attention.key_length_swa": 4,
                "attention.value_length_swa": 4,
                "attention.sliding_window_pattern": [True, True, False],
            },
            2 * (2 * (4 + 4) + 16 + 16),
        ),
        ("gemma4", 3, {"attention.shared_kv_layers": 1}, 2 * 2 * 16),
        ("gemma3n", 30, {}, 20 * 2 * 16),
        ("bert", 2, {}, 0),
        ("mamba", 2, {"attention.head_count": 0}, 0),
    ],
)
def test_kv_bytes_per_token(
    tmp_path: Path, arch: str, blocks: int, attention: Mapping[str, Value], expected: int
) -> None:
    extra = {f"{arch}.{key}": value for key, value in attention.items()}
    path = write_model(tmp_path / "m.gguf", arch=arch, blocks=blocks, kv_heads=None, extra=extra)
    assert inspect(path).kv_bytes_per_token == expected * _F16
