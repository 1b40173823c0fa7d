"""LoRA adapters as GGUF for tests: random ones of rank 1 that change what every layer above the first computes.

So they change the prompt's keys and values too: an answer from a prompt that was computed with another adapter is a
different one, which an adapter on the output matrix alone (`mtp.make_adapter`) would not show.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
from gguf import GGUFReader, GGUFWriter

_TENSOR = "blk.0.ffn_down.weight"


def write_adapter(model: Path, path: Path, *, seed: int = 1, strength: float = 1.0, description: str = "") -> Path:
    """Write an adapter for `model`: B (out × 1) @ A (1 × in) on the first layer's `ffn_down`."""
    reader = GGUFReader(model)
    width, out = (int(n) for n in next(t for t in reader.tensors if t.name == _TENSOR).shape)
    rng = np.random.default_rng(seed)
    writer = GGUFWriter(path, reader.fields["general.architecture"].contents())
    writer.add_type("adapter")
    writer.add_string("adapter.type", "lora")
    writer.add_float32("adapter.lora.alpha", 1.0)
    writer.add_name(path.stem)
    if description:
        writer.add_description(description)
    writer.add_tensor(f"{_TENSOR}.lora_a", rng.standard_normal((1, width)).astype(np.float32))
    writer.add_tensor(f"{_TENSOR}.lora_b", strength * rng.standard_normal((out, 1)).astype(np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path
