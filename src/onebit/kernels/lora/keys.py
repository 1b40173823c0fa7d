"""Names of tensors in adapter files: which part of which module each is, and which are refused.

The dialects: peft writes `M.lora_A.weight` and `M.lora_B.weight`; diffusers the same, or in older versions
`M.lora.down.weight` and `M.processor.to_q_lora.down.weight`; kohya's sd-scripts `M.lora_down.weight`,
`M.lora_up.weight` and `M.alpha`, with underscores for the dots in M.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

Part = Literal["a", "b", "alpha"]


@dataclass(frozen=True, slots=True)
class Key:
    """One tensor's place."""

    module: str
    part: Part
    dialect: str  # "peft", "diffusers", "kohya"


_KEYS: tuple[tuple[str, str, Part, str], ...] = (
    # after the module's name: ends with, what it replaces there, part, dialect
    (".lora_A.weight", "", "a", "peft"),
    (".lora_B.weight", "", "b", "peft"),
    (".lora_A.default.weight", "", "a", "peft"),
    (".lora_B.default.weight", "", "b", "peft"),
    (".lora.down.weight", "", "a", "diffusers"),
    (".lora.up.weight", "", "b", "diffusers"),
    (".lora_down.weight", "", "a", "kohya"),
    (".lora_up.weight", "", "b", "kohya"),
    (".alpha", "", "alpha", "kohya"),
)
_PROCESSOR = re.compile(r"(.+)\.processor\.(to_(?:q|k|v|out))_lora\.(down|up)\.weight")

# What belongs to adapters that B @ A does not describe, and the name people know it by.
_REFUSED: tuple[tuple[str, str], ...] = (
    (".dora_scale", "DoRA (it also rescales the weight's columns)"),
    (".lora_magnitude_vector", "DoRA (it also rescales the weight's columns)"),
    (".lora_mid.", "a Tucker-decomposed convolution (LoCon with lora_mid)"),
    (".hada_w", "LoHa"),
    (".lokr_w", "LoKr"),
    (".oft_", "OFT"),
    (".vera_lambda", "VeRA"),
    (".lora_embedding_", "LoRA on an embedding"),
    (".lora_bias", "a LoRA with biases"),
    (".lora_A.bias", "a LoRA with biases"),
    (".lora_B.bias", "a LoRA with biases"),
    (".modules_to_save", "whole modules saved beside the LoRA (modules_to_save)"),
    (".ia3_l", "IA³"),
)


def parse_key(name: str) -> Key | None:
    """The place of a tensor, or None where it is no part of a LoRA."""
    for end, instead, part, dialect in _KEYS:
        if name.endswith(end):
            return Key(name.removesuffix(end) + instead, part, dialect)
    if match := _PROCESSOR.fullmatch(name):
        module, projection, direction = match.groups()
        inner = "to_out.0" if projection == "to_out" else projection  # attention puts its output in a list
        return Key(f"{module}.{inner}", "a" if direction == "down" else "b", "diffusers")
    return None


def refusal(name: str) -> str | None:
    """What kind of adapter a tensor betrays that cannot be merged exactly, or None."""
    return next((kind for mark, kind in _REFUSED if mark in name), None)
