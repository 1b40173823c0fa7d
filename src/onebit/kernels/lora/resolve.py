"""Which weight of a model a module of an adapter means. Pure: names in, names out."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping

# Prefixes by which adapters name the model or the part of a pipeline they are for.
_ADAPTER_PREFIXES = (
    "base_model.model.",
    "base_model.",
    "unet.",
    "transformer.",
    "text_encoder.",
    "text_encoder_2.",
    "diffusion_model.",
    "model.diffusion_model.",
    "model.",
)
# Prefixes that checkpoints have and adapters may lack.
_MODEL_PREFIXES = ("", "model.", "transformer.", "model.diffusion_model.", "model.language_model.", "language_model.")
_KOHYA_PREFIXES = ("lora_unet_", "lora_transformer_", "lora_te1_", "lora_te2_", "lora_te_", "lycoris_", "lora_")


def resolve(modules: Iterable[str], weights: Iterable[str]) -> dict[str, tuple[str, ...]]:
    """The weights ("….weight") each module may mean: one where all is well, none or several where it is not.

    A name that fits as it stands wins over one that fits without a prefix, and that over one with another prefix.
    kohya writes underscores for the dots, so names are compared without the difference, last of all.
    """
    by_name = {name.removesuffix(".weight"): name for name in weights}
    flat: defaultdict[str, list[str]] = defaultdict(list)
    for module, name in by_name.items():
        for prefix in _MODEL_PREFIXES:
            if module.startswith(prefix):
                flat[module.removeprefix(prefix).replace(".", "_")].append(name)
    return {module: _candidates(module, by_name, flat) for module in modules}


def _candidates(module: str, by_name: Mapping[str, str], flat: Mapping[str, list[str]]) -> tuple[str, ...]:
    stripped = [module]
    for prefix in _ADAPTER_PREFIXES:  # one after the other: base_model.model.model.layers…
        stripped.append(stripped[-1].removeprefix(prefix))
    for name in stripped:
        found = {by_name[prefix + name] for prefix in _MODEL_PREFIXES if prefix + name in by_name}
        if name in by_name:
            return (by_name[name],)
        if found:
            return tuple(sorted(found))
    for prefix in _KOHYA_PREFIXES:
        if module.startswith(prefix):
            return tuple(sorted(set(flat.get(module.removeprefix(prefix), ()))))
    return ()
