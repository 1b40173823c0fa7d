"""Relative paths in a config file mean files beside it, wherever `onebit` was started."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

_FILES = ("mtp_model", "llama_server", "api_key_file", "key_file")
_MODELS = ("model", "path")


def anchored(settings: Mapping[str, Any], folder: Path) -> dict[str, Any]:
    """`settings` of a file in `folder`, with every relative path below it. What is no path stays as it is."""
    fixed = _anchor(settings, folder)
    if isinstance(keys := settings.get("keys"), list):
        fixed["keys"] = [_anchor(key, folder) if isinstance(key, dict) else key for key in keys]
    if isinstance(models := settings.get("models"), dict):
        fixed["models"] = {
            n: _anchor_model(model, folder) if isinstance(model, dict) else model for n, model in models.items()
        }
    return fixed


def _anchor_model(settings: Mapping[str, Any], folder: Path) -> dict[str, Any]:
    fixed = _anchor(settings, folder)
    if isinstance(adapters := settings.get("adapters"), dict):
        fixed["adapters"] = {
            name: {**entry, "path": _below(entry["path"], folder)}
            if isinstance(entry, dict) and isinstance(entry.get("path"), str)
            else entry
            for name, entry in adapters.items()
        }
    return fixed


def _anchor(settings: Mapping[str, Any], folder: Path) -> dict[str, Any]:
    fixed = dict(settings)
    for name in _FILES:
        _change(fixed, name, lambda text: _below(text, folder))
    for name in _MODELS:
        _change(fixed, name, lambda text: _below(text, folder) if _is_path(text, folder) else text)
    if isinstance(lora := fixed.get("lora"), list):
        fixed["lora"] = [_below(text, folder) if isinstance(text, str) else text for text in lora]
    else:
        _change(fixed, "lora", lambda text: ",".join(_below(part.strip(), folder) for part in text.split(",")))
    return fixed


def _change(settings: dict[str, Any], name: str, change: Callable[[str], str]) -> None:
    if isinstance(text := settings.get(name), str) and text:
        settings[name] = change(text)


def _is_path(model: str, folder: Path) -> bool:
    """A model may be a name or an address; as everywhere, a file comes before a name."""
    if model.startswith("hf:") or "://" in model:
        return False
    return "/" in model or model.lower().endswith(".gguf") or _below_is_file(model, folder)


def _below_is_file(text: str, folder: Path) -> bool:
    try:
        return (folder / text).is_file()
    except (OSError, ValueError):  # too long, a NUL character
        return False


def _below(text: str, folder: Path) -> str:
    return text if text.startswith("~") else str(folder / text)
