"""peft's settings: `adapter_config.json`, or what diffusers puts into the file's metadata.

Settings that change what is merged are honoured or refused by name; those of training are ignored.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from onebit.errors import AdapterError

_MAX_CONFIG = 1 << 20  # bytes; they are of some 1,000

# Settings under which base + scale · B @ A is not what the adapter means.
_REFUSED = {
    "use_dora": "DoRA (it also rescales the weight's columns)",
    "use_qalora": "QALoRA (its A works on pooled inputs)",
    "lora_bias": "a LoRA with biases",
    "modules_to_save": "whole modules saved beside the LoRA (modules_to_save)",
    "layer_replication": "replicated layers",
    "target_parameters": "LoRA on bare parameters (target_parameters)",
    "trainable_token_indices": "trained tokens beside the LoRA",
    "alora_invocation_tokens": "activated LoRA, which is only on after certain tokens",
    "use_bdlora": "block-diagonal LoRA",
    "arrow_config": "an Arrow router",
    "kasa_config": "KaSA",
    "monteclora_config": "MonteCLoRA",
}
# Ways to begin that take the adapter's first value out of the base weights: B @ A fits only the base changed so.
_CHANGED_BASES = ("pissa", "olora", "corda", "loftq", "lora_ga")


@dataclass(frozen=True, slots=True)
class PeftConfig:
    """What a merge needs to know."""

    alpha: float
    rslora: bool = False
    transposed: bool = False  # fan_in_fan_out
    alpha_pattern: Mapping[str, float] = field(default_factory=dict)

    def alpha_of(self, module: str) -> float:
        """The alpha of a module: of the first pattern that ends its name (with ^: that is its name), or the general."""
        for pattern, alpha in self.alpha_pattern.items():
            if module == pattern.removeprefix("^") or f".{module}".endswith(f".{pattern}"):
                return alpha
        return self.alpha


def read_config(path: Path) -> PeftConfig:
    """Read an adapter_config.json. Raises AdapterError where it is damaged, or says what cannot be merged."""
    try:
        if path.stat().st_size > _MAX_CONFIG:
            raise AdapterError(f"{path} is too large for an adapter_config.json")
        settings = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError) as exc:
        raise AdapterError(f"{path} cannot be read: {exc}", hint="save the adapter again with peft") from exc
    return config_of(settings, str(path))


def config_of(settings: Any, where: str) -> PeftConfig:
    """Check settings already read. `where` names them in messages."""
    if not isinstance(settings, dict):
        raise AdapterError(f"{where} is not a JSON object")
    kind = settings.get("peft_type", "LORA")
    if kind != "LORA":
        raise AdapterError(f"{where} describes an adapter of type {kind}; LORA can be merged")
    for key, what in _REFUSED.items():
        if settings.get(key):
            raise AdapterError(f"{where}: {key} is set. This is {what}, which cannot be merged exactly")
    start = settings.get("init_lora_weights")
    if isinstance(start, str) and start.lower().startswith(_CHANGED_BASES):
        raise AdapterError(
            f"{where}: init_lora_weights is {start!r}: training has changed the base weights, so this adapter does "
            "not fit the original ones",
            hint="convert it to a plain LoRA: save_pretrained(…, path_initial_model_for_weight_conversion=…)",
        )
    pattern = settings.get("alpha_pattern") or {}
    try:
        alphas = {_literal(key, where): float(value) for key, value in pattern.items()}
        alpha = float(settings["lora_alpha"])
    except (KeyError, TypeError, ValueError, AttributeError) as exc:
        raise AdapterError(f"{where}: lora_alpha or alpha_pattern is missing or no number") from exc
    return PeftConfig(alpha, bool(settings.get("use_rslora")), bool(settings.get("fan_in_fan_out")), alphas)


def _literal(pattern: str, where: str) -> str:
    """A pattern is a regular expression to peft. One that is a plain name is taken; others could cost hours."""
    name = pattern.removesuffix("$").replace(r"\.", ".")
    if not all(c.isalnum() or c in "._-" for c in name.removeprefix("^")):
        raise AdapterError(
            f"{where}: alpha_pattern has the expression {pattern!r}; names of modules can be read, expressions not"
        )
    return name
