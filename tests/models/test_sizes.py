"""What an engine needs memory for beside tensors and KV cache, against numbers worked out by hand."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from onebit.models.gguf_file import inspect
from onebit.models.sizes import Sizes
from tests.support.gguf_files import Value, model_metadata, write_gguf, write_model

_F16, _F32 = 2, 4


def sizes(path: Path, arch: str, keys: Mapping[str, Value], *, blocks: int = 2, head: bool = False) -> Sizes:
    """Of a model with 2 heads and an embedding of 16, and `keys` at `ARCH.KEY`."""
    extra = {f"{arch}.{key}": value for key, value in keys.items()}
    return inspect(write_model(path / "m.gguf", arch=arch, blocks=blocks, head=head, extra=extra)).sizes


@pytest.mark.parametrize(
    ("arch", "blocks", "keys", "layers", "elements"),
    [
        ("llama", 2, {}, 0, 0),
        # convolution: (4 - 1) × (32 + 2 × 1 × 8); state: 8 × 32
        (
            "mamba",
            2,
            {"ssm.conv_kernel": 4, "ssm.inner_size": 32, "ssm.state_size": 8, "ssm.group_count": 1},
            2,
            3 * 48 + 256,
        ),
        # of 8 layers, two are attention
        (
            "qwen35",
            9,
            {
                "ssm.conv_kernel": 4,
                "ssm.inner_size": 32,
                "ssm.state_size": 8,
                "ssm.group_count": 2,
                "nextn_predict_layers": 1,
            },
            6,
            3 * 64 + 256,
        ),
        # both in each layer
        ("falcon-h1", 3, {"ssm.conv_kernel": 4, "ssm.inner_size": 32, "ssm.state_size": 8}, 3, 3 * 32 + 256),
        (
            "jamba",
            3,
            {
                "attention.head_count_kv": [0, 1, 0],
                "ssm.conv_kernel": 4,
                "ssm.inner_size": 32,
                "ssm.state_size": 8,
            },
            2,
            3 * 32 + 256,
        ),
        ("lfm2", 3, {"attention.head_count_kv": [0, 0, 1], "shortconv.l_cache": 3}, 2, 2 * 16),
        ("rwkv7", 2, {"wkv.head_size": 8}, 2, 16 * (2 + 8)),
        # 3 × (4 - 1) × 2 heads × 8, and 2 heads of 8 × 8
        (
            "kimi-linear",
            2,
            {"attention.head_count_kv": [0, 1], "kda.head_dim": 8, "ssm.conv_kernel": 4},
            1,
            144 + 128,
        ),
    ],
)
def test_recurrent_states(
    tmp_path: Path, arch: str, blocks: int, keys: Mapping[str, Value], layers: int, elements: int
) -> None:
    found = sizes(tmp_path, arch, keys, blocks=blocks)
    assert (found.recurrent_layers, found.state_per_slot) == (layers, layers * elements * _F32)


def test_the_mtp_head_is_counted_apart(tmp_path: Path) -> None:
    found = sizes(tmp_path, "mimo2", {"nextn_predict_layers": 1}, blocks=3, head=True)
    assert found.mtp_tensors == (16 + 16 * 32) * _F32
    assert found.mtp_kv_per_token == 1 * (8 + 8) * _F16
    assert sizes(tmp_path, "mimo2", {}, blocks=3).mtp_tensors == 0


@pytest.mark.parametrize(
    ("keys", "width"),
    [
        ({"feed_forward_length": 64}, 64),
        ({"feed_forward_length": [64, 96]}, 96),
        ({"feed_forward_length": 64, "expert_used_count": 8, "expert_feed_forward_length": 24}, 192),
        (
            {
                "expert_used_count": 2,
                "expert_feed_forward_length": 24,
                "expert_shared_feed_forward_length": 10,
            },
            58,
        ),
        ({}, 0),
    ],
)
def test_the_widest_feed_forward_is_that_of_all_experts_used(
    tmp_path: Path, keys: Mapping[str, Value], width: int
) -> None:
    assert sizes(tmp_path, "llama", keys).width == width


def test_heads_may_be_wider_than_the_model(tmp_path: Path) -> None:
    assert sizes(tmp_path, "qwen3", {"attention.key_length": 32}).attention_width == 2 * 32


def test_an_embedding_is_tied_when_there_is_no_output_matrix(tmp_path: Path) -> None:
    tensors = {"token_embd.weight": (24, 16), "blk.0.attn_norm.weight": (16,)}
    for more, tied in (({}, 24 * 16 * _F32), ({"output.weight": (24, 16)}, 0)):
        path = write_gguf(tmp_path / "m.gguf", arch="llama", metadata=model_metadata(), tensors=tensors | more)
        assert inspect(path).sizes.tied_embedding == tied
