"""The kinds of values a setting may have: times, sizes, files, devices, names; each says what it should look like."""

from __future__ import annotations

import re
from difflib import get_close_matches
from pathlib import Path
from typing import Annotated

from pydantic import AfterValidator, BeforeValidator, Field

from onebit.tiers import TIERS, Tier

DEVICE_KINDS = ("cpu", "vulkan", "rocm", "cuda", "metal")
"""What may stand in a `device` setting; the engines' own list of them lies above this layer, a test compares them."""

_SIZES = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}
_TIMES = {"": 1, "s": 1, "m": 60, "h": 3600}


def _bytes(value: object) -> object:
    """`64MiB`, `64M` or a number of bytes. A unit is a power of 1024, however it is written: memory is sold so."""
    if not isinstance(value, str):
        return value
    number, unit = _number_and_unit(value)
    if number is None or not re.fullmatch(r"[kmgt]?(i?b)?", unit):
        like = f"{number}{unit[0].upper()}iB" if number and unit[:1] in ("k", "m", "g", "t") else "64MiB, 512K or 24GiB"
        raise ValueError(f"{value!r} is not a size: a size is a number with an optional unit, like {like}")
    try:
        return int(float(number) * _SIZES[unit.rstrip("ib")])
    except OverflowError:
        raise ValueError(f"{value!r} is no size: a size is a number with an optional unit, like 24GiB") from None


def _seconds(value: object) -> object:
    """`90`, `90s`, `2m` or `1h`."""
    if not isinstance(value, str):
        return value
    number, unit = _number_and_unit(value)
    if number is None or unit not in _TIMES:
        like = f"{number}{unit[0]}" if number and unit[0] in _TIMES and unit != "ms" else "90, 90s, 2m or 1h"
        raise ValueError(f"{value!r} is not a time: a time is a number with an optional unit, like {like}")
    return float(number) * _TIMES[unit]


def _number_and_unit(text: str) -> tuple[str | None, str]:
    """`24 GiB` as ("24", "gib"); (None, "") when it does not begin with a number."""
    found = re.fullmatch(r"\s*(\d+(?:\.\d*)?(?:e\d+)?|\.\d+)\s*([a-z]*)\s*", text.lower())
    return (found[1], found[2]) if found else (None, "")


def split(value: object) -> object:
    """`a,b` on a command line is `[a, b]` in YAML; a single value is a list of one."""
    if isinstance(value, str):
        return [part.strip() for part in value.split(",") if part.strip()]
    if isinstance(value, int):
        return [value]
    return value


def _home(value: object) -> object:
    return _path(value) if isinstance(value, str) else value


def _path(text: str) -> Path:
    try:
        return Path(text).expanduser()
    except RuntimeError:  # of pathlib, for `~name`; pydantic knows ValueErrors
        raise ValueError(f"{text} is in the home of a user that there is not") from None


def _is_file(path: Path) -> Path:
    if not path.exists():
        raise ValueError(missing_file(path))
    return path


def missing_file(path: Path, pattern: str = "*") -> str:
    """That `path` is not there, and which files of its folder (by `pattern`) it may have meant."""
    try:
        there = sorted(p.name for p in path.parent.glob(pattern))
    except OSError:
        there = []
    near = get_close_matches(path.name, there, cutoff=0.5)
    message = f"{path} does not exist"
    if near:
        message += f"; did you mean {near[0]}?"
    elif not path.parent.is_dir():
        message += f", there is no folder {path.parent} either"
    return message.encode(errors="backslashreplace").decode()  # a name of any bytes: pydantic takes UTF-8 only


def _model_file(text: str) -> str:
    """Names and addresses are looked up later; what can only be a file must be there now."""
    if text.startswith("hf:") or "://" in text or not ("/" in text or text.lower().endswith(".gguf")):
        return text
    path = _path(text)
    if path.is_dir():
        raise ValueError(f"{path} is a folder, not a model file")
    if not path.exists():
        raise ValueError(missing_file(path, "*.gguf"))
    return text


def lora_parts(text: str) -> tuple[Path, float]:
    """`FILE` or `FILE:SCALE`, the scale 1 by default."""
    scaled = re.fullmatch(r"(.+):(-?\d+(?:\.\d+)?)", text)
    return _path(scaled[1] if scaled else text), float(scaled[2]) if scaled else 1.0


def _lora(text: str) -> str:
    _is_file(lora_parts(text)[0])
    return text


def _device(text: str) -> str:
    kind, colon, index = text.strip().lower().partition(":")
    if kind in DEVICE_KINDS and (not colon or (index.isascii() and index.isdigit())):
        return kind + colon + index
    near = get_close_matches(kind, DEVICE_KINDS, n=1)
    meant = f"did you mean {near[0]}? " if near and near[0] != kind else ""
    raise ValueError(
        f"unknown device {text.strip()!r}; {meant}devices are {', '.join(DEVICE_KINDS)},"
        " optionally with an index among their kind, e.g. vulkan:0"
    )


def tier_of(value: object) -> object:
    """A tier by its label. Raises ValueError with the four there are, and the one that may have been meant."""
    if isinstance(value, Tier):
        return value
    tier = TIERS.get(value.strip().lower()) if isinstance(value, str) else None
    if tier is None:
        raise ValueError(_unknown_tier(value, list(TIERS)))
    return tier


def _tier_or_none(value: object) -> object:
    label = value.strip().lower() if isinstance(value, str) else value
    if label is not None and label not in (*TIERS, "none"):
        raise ValueError(_unknown_tier(value, [*TIERS, "none"]))
    return label


def _unknown_tier(value: object, labels: list[str]) -> str:
    near = get_close_matches(str(value).lower(), labels, n=1)
    meant = f", did you mean {near[0]}?" if near else ";"
    return f"there is no tier {value!r}{meant} tiers are {', '.join(labels[:-1])} and {labels[-1]}"


def _model_name(name: str) -> str:
    if not name.isprintable() or name != name.strip():
        raise ValueError("a model's name is printable text without spaces around it")
    if ":" in name:
        raise ValueError("a model's name has no colon: NAME:ADAPTER is the model with one of its adapters")
    return name


Seconds = Annotated[float, BeforeValidator(_seconds), Field(ge=0, le=86_400)]
Size = Annotated[int, BeforeValidator(_bytes), Field(ge=1024, le=1 << 44)]
File = Annotated[Path, BeforeValidator(_home), AfterValidator(_is_file)]
LoraFile = Annotated[str, AfterValidator(_lora)]
DeviceName = Annotated[str, AfterValidator(_device)]
ModelName = Annotated[str, Field(min_length=1, max_length=128), AfterValidator(_model_name)]
ModelPath = Annotated[str, Field(min_length=1), AfterValidator(_model_file)]
TierName = Annotated[Tier, BeforeValidator(tier_of)]
TierOrNone = Annotated[str, BeforeValidator(_tier_or_none)]
