"""Adapter and model files for tests, written with the `safetensors` and `gguf` libraries."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

Tensors = dict[str, torch.Tensor]

LAYERS = 2
SHAPES = {"q_proj": (24, 16), "k_proj": (8, 16), "down_proj": (16, 40)}


def model_weights(dtype: torch.dtype = torch.float32, seed: int = 0) -> Tensors:
    """A tiny model: two layers of three matrices with a norm, and an embedding."""
    generator = torch.Generator().manual_seed(seed)
    weights = {"model.embed_tokens.weight": torch.randn(32, 16, generator=generator)}
    for layer in range(LAYERS):
        for name, shape in SHAPES.items():
            weights[f"model.layers.{layer}.{_block(name)}.{name}.weight"] = torch.randn(shape, generator=generator)
        weights[f"model.layers.{layer}.input_layernorm.weight"] = torch.ones(16)
    return {name: weight.to(dtype) for name, weight in weights.items()}


def factors(
    rank: int = 4, dtype: torch.dtype = torch.float32, seed: int = 1, layers: int = LAYERS
) -> dict[str, tuple[torch.Tensor, torch.Tensor]]:
    """B (out × rank) and A (rank × in) for each matrix of `model_weights`, by the module's name."""
    generator = torch.Generator().manual_seed(seed)
    found = {}
    for layer in range(layers):
        for name, (rows, cols) in SHAPES.items():
            b, a = torch.randn(rows, rank, generator=generator), torch.randn(rank, cols, generator=generator)
            found[f"model.layers.{layer}.{_block(name)}.{name}"] = ((0.1 * b).to(dtype), (0.1 * a).to(dtype))
    return found


def write_peft(
    folder: Path, *, rank: int = 4, dtype: torch.dtype = torch.float32, seed: int = 1, **config: Any
) -> Path:
    """A folder as peft's `save_pretrained` writes it."""
    folder.mkdir(parents=True)
    tensors = {}
    for module, (b, a) in factors(rank, dtype, seed).items():
        tensors[f"base_model.model.{module}.lora_A.weight"] = a
        tensors[f"base_model.model.{module}.lora_B.weight"] = b
    save_file(tensors, folder / "adapter_model.safetensors")
    settings = {"peft_type": "LORA", "r": rank, "lora_alpha": 8, "target_modules": list(SHAPES)} | config
    (folder / "adapter_config.json").write_text(json.dumps(settings))
    return folder


def write_kohya(
    path: Path, *, rank: int = 4, alpha: float | None = 2.0, seed: int = 1, extra: Tensors | None = None
) -> Path:
    """A file as kohya's sd-scripts write it: underscores for dots, an alpha for each module."""
    tensors: Tensors = {}
    for module, (b, a) in factors(rank, seed=seed).items():
        flat = "lora_unet_" + module.removeprefix("model.").replace(".", "_")
        tensors |= {f"{flat}.lora_down.weight": a, f"{flat}.lora_up.weight": b}
        if alpha is not None:
            tensors[f"{flat}.alpha"] = torch.tensor(alpha)
    save_file(tensors | (extra or {}), path, metadata={"ss_network_module": "networks.lora"})
    return path


def stock_loop(weights: Tensors, *adapters: tuple[Mapping[str, tuple[torch.Tensor, torch.Tensor]], float]) -> Tensors:
    """`W += scale * (B @ A)`, an adapter at a time, in torch, with peft's roundings; on copies."""
    merged = {name: weight.clone() for name, weight in weights.items()}
    for some, scale in adapters:
        for module, (b, a) in some.items():
            delta = ((b.float() @ a.float()) * scale).to(b.dtype)
            weight = merged[f"{module}.weight"]
            weight += delta.reshape(weight.shape)
    return merged


def _block(name: str) -> str:
    return "mlp" if name == "down_proj" else "self_attn"
