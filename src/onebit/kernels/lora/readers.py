"""Reading an adapter: peft, diffusers and kohya, safetensors only. What cannot be merged exactly is refused by name."""

from __future__ import annotations

import json
import math
from collections import defaultdict
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from onebit.errors import AdapterError, ModelFileError
from onebit.kernels.lora.adapter import Adapter, Factors
from onebit.kernels.lora.keys import Key, Part, parse_key, refusal
from onebit.kernels.lora.numbers import Later, Matrix, Number
from onebit.kernels.lora.peft_config import PeftConfig, config_of, read_config
from onebit.kernels.lora.safetensors_file import (
    NUMBERS,
    SafetensorsHeader,
    TensorSpan,
    read_header,
    read_matrix,
    read_span,
)

_CONFIG = "adapter_config.json"
_WEIGHTS = "adapter_model.safetensors"
_PEFT_PREFIX = "base_model.model."
_DIFFUSERS_METADATA = "lora_adapter_metadata"  # where diffusers keeps peft's settings, by component
_MAX_ADAPTER = 16 << 30  # bytes; it may be held in memory
_PICKLED = ("adapter_model.bin", "pytorch_lora_weights.bin")


def read_adapter(path: Path, name: str | None = None, *, keep: bool = True) -> Adapter:
    """Read an adapter: a .safetensors file, or peft's folder. Its name is the file's unless given.

    All of it is checked at once. Unless `keep`, its factors are read again whenever they are wanted: then no more of it
    is in memory than one module's.

    Raises ModelFileError for a file that is missing, truncated or damaged, and AdapterError for one that is no LoRA,
    is of a kind that cannot be merged exactly, or holds ranks that disagree, NaNs or infinities. The messages name
    the module.
    """
    file = path / _WEIGHTS if path.is_dir() else path
    name = name or (path.name if path.is_dir() else path.parent.name if path.name == _WEIGHTS else path.stem)
    if path.is_dir() and not file.exists():
        raise _no_weights(path)
    header = read_header(file)
    if sum(span.size for span in header.tensors.values()) > _MAX_ADAPTER:
        raise AdapterError(f"{file} is too large for an adapter: is it a whole model?")
    modules, dialect = _modules(header)
    configs = _configs(file, header, dialect)
    factors = {}
    with file.open("rb") as data:
        for module, parts in modules.items():
            arrays = {part: read_span(data, file, span) for part, span in parts.items()}
            checked = _factors(module, arrays, configs, file)
            if not keep:
                checked = replace(checked, b=_later(file, parts["b"]), a=_later(file, parts["a"]))
            factors[module] = checked
    return Adapter(name, file, dialect, factors, header.metadata)


def _no_weights(folder: Path) -> AdapterError:
    for name in _PICKLED:
        if (folder / name).exists():
            return AdapterError(
                f"{folder} has no {_WEIGHTS}, only {name}: a pickle, which can run code and is never opened",
                hint="save the adapter as safetensors: peft's save_pretrained does",
            )
    return AdapterError(f"{folder} has no {_WEIGHTS}", hint="name an adapter's folder")


def _later(file: Path, span: TensorSpan) -> Later:
    def load() -> Matrix:
        try:
            with file.open("rb") as data:
                return read_matrix(data, file, span)
        except OSError as exc:
            raise ModelFileError(f"{file} cannot be read any more: {exc.strerror or exc}") from exc

    return Later(span.shape[0], math.prod(span.shape[1:]), NUMBERS[span.dtype], load)


def is_adapter(header: SafetensorsHeader) -> bool:
    """Whether any tensor of a file is part of an adapter of some kind, rather than of a model."""
    return any(
        refusal(name) is not None or ((key := parse_key(name)) is not None and key.part != "alpha")
        for name in header.tensors
    )


def _modules(header: SafetensorsHeader) -> tuple[dict[str, dict[Part, TensorSpan]], str]:
    """The tensors of each module, and the dialect. Every tensor must be known: none is left out in silence."""
    for tensor in header.tensors:
        if kind := refusal(tensor):
            raise AdapterError(f"{header.path}: {tensor} belongs to {kind}, which cannot be merged exactly")
    found: defaultdict[str, dict[Part, TensorSpan]] = defaultdict(dict)
    dialects: set[str] = set()
    for tensor, span in header.tensors.items():
        key = parse_key(tensor)
        if key is None:
            raise AdapterError(
                f"{header.path}: {tensor} is no part of a LoRA that onebit knows",
                hint="known are peft, diffusers and kohya: lora_A/lora_B, lora.down/lora.up, lora_down/lora_up",
            )
        if key.part in found[key.module]:
            raise AdapterError(f"{header.path}: {key.module} has its part {key.part!r} twice")
        if span.dtype not in NUMBERS:
            raise AdapterError(f"{header.path}: {tensor} is {span.dtype}; F32, F16 and BF16 can be merged")
        found[key.module][key.part] = span
        dialects.add(_dialect(key))
    if not found:
        raise AdapterError(f"{header.path} holds no tensors")
    for module, parts in found.items():
        missing = [{"a": "A (down)", "b": "B (up)"}[part] for part in ("a", "b") if part not in parts]
        if missing:
            raise AdapterError(f"{header.path}: {module} has no {' and no '.join(missing)}")
    return dict(found), "kohya" if "kohya" in dialects else min(dialects, key=("peft", "diffusers").index)


def _dialect(key: Key) -> str:
    if key.dialect == "peft" and not key.module.startswith(_PEFT_PREFIX):
        return "diffusers"  # the same keys without peft's prefix
    return key.dialect


def _configs(file: Path, header: SafetensorsHeader, dialect: str) -> dict[str, PeftConfig]:
    """peft's settings by the component they are for; "" is all."""
    if _DIFFUSERS_METADATA in header.metadata:
        return _diffusers_configs(header)
    beside = file.with_name(_CONFIG)
    if dialect != "kohya" and file.name == _WEIGHTS and beside.exists():
        return {"": read_config(beside)}
    if dialect == "peft":
        raise AdapterError(
            f"{file} has no {_CONFIG} beside it, which says its alpha",
            hint=f"put the {_CONFIG} that peft saved with it into the same folder, and name it {_WEIGHTS}",
        )
    return {}


def _diffusers_configs(header: SafetensorsHeader) -> dict[str, PeftConfig]:
    where = f"{header.path} (metadata {_DIFFUSERS_METADATA})"
    try:
        settings: dict[str, Any] = json.loads(header.metadata[_DIFFUSERS_METADATA])
        by_component: defaultdict[str, dict[str, Any]] = defaultdict(dict)
        for key, value in settings.items():
            component, _, setting = key.partition(".")
            by_component[component][setting] = value
    except (ValueError, AttributeError, RecursionError) as exc:
        raise AdapterError(f"{where} is damaged: {exc}") from exc
    return {component: config_of(values, where) for component, values in by_component.items()}


def _factors(module: str, parts: dict[Part, NDArray[Any]], configs: dict[str, PeftConfig], file: Path) -> Factors:
    a, b = parts["a"], parts["b"]
    shapes = f"A {_times(a.shape)}, B {_times(b.shape)}"
    if a.ndim < 2 or b.ndim < 2 or 0 in (*a.shape, *b.shape):
        raise AdapterError(f"{file}: {module} has rank 0 or no matrices ({shapes})")
    if math.prod(b.shape[2:]) != 1:
        raise AdapterError(f"{file}: {module} has an up convolution larger than 1×1 ({shapes}), which is no B @ A")
    matrices = {}
    for part in ("a", "b"):
        array = parts[part]
        number = {"uint16": Number.BF16, "float16": Number.F16}.get(array.dtype.name, Number.F32)
        matrices[part] = Matrix(array.reshape(array.shape[0], -1), number)
        if not np.isfinite(matrices[part].as_float32()).all():
            raise AdapterError(f"{file}: {module} has NaNs or infinities in {part.upper()} ({shapes}): it is broken")
    if matrices["b"].cols != matrices["a"].rows:
        raise AdapterError(f"{file}: the ranks of {module} disagree ({shapes})")
    plain = module.removeprefix(_PEFT_PREFIX)
    component, _, inner = plain.partition(".")
    config = configs.get("")
    if component in configs:
        config, plain = configs[component], inner
    alpha = float(matrices["a"].rows) if config is None else config.alpha_of(plain)
    if "alpha" in parts:
        alpha = float(_scalar(parts["alpha"], module, file))
    if not math.isfinite(alpha):
        raise AdapterError(f"{file}: the alpha of {module} is {alpha}")
    return Factors(
        module=module,
        b=matrices["b"],
        a=matrices["a"],
        alpha=alpha,
        kernel=tuple(a.shape[2:]),
        rslora=config is not None and config.rslora,
        transposed=config is not None and config.transposed,
    )


def _scalar(array: NDArray[Any], module: str, file: Path) -> np.float32:
    if array.size != 1:
        raise AdapterError(f"{file}: the alpha of {module} is not one number")
    flat = array.reshape(1, 1)
    number = {"uint16": Number.BF16, "float16": Number.F16}.get(array.dtype.name, Number.F32)
    return np.float32(Matrix(flat, number).as_float32()[0, 0])


def _times(shape: tuple[int, ...]) -> str:
    return "×".join(str(n) for n in shape)
