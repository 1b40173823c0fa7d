"""What `bench`, `bench profile` and `tune` share: reading lists, finding model and builds, the machine's facts."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from onebit.errors import ConfigError

if TYPE_CHECKING:
    from onebit.bench.setups import Planner, Wish
    from onebit.engines.device import Build, Device

MOST_REQUESTS = 1024
_MOST_TOKENS = 1 << 20


def numbers(flag: str, text: str, least: int, most: int) -> tuple[int, ...]:
    """`1,2,4` as ascending numbers without repeats. Raises ConfigError."""
    try:
        found = sorted({int(part) for part in text.split(",") if part.strip()})
    except ValueError:
        found = []
    if not found or found[0] < least or found[-1] > most:
        raise ConfigError(
            f"{flag} {text}: not numbers from {least} to {most:,}", hint=f"like {flag} {max(1, least)},2,4,8"
        )
    return tuple(found)


def within(flag: str, value: float, least: float, most: float) -> None:
    """Raises ConfigError for a value out of bounds, or one that is no number."""
    if not least <= value <= most:
        raise ConfigError(f"{flag} {value:g}: it goes from {least:g} to {most:,g}")


def check_lengths(tokens: int, prompt_tokens: int, shared_prefix: int, repeats: int, answers: int) -> None:
    """Refuse absurd lengths and counts. Raises ConfigError."""
    within("--tokens", tokens, 4, _MOST_TOKENS)
    within("--prompt-tokens", prompt_tokens, 1, _MOST_TOKENS)
    within("--shared-prefix", shared_prefix, 0, _MOST_TOKENS)
    within("--repeats", repeats, 1, 1000)
    within("--answers", answers, 1, 10_000)
    if shared_prefix >= prompt_tokens:
        raise ConfigError(
            f"--shared-prefix {shared_prefix} leaves nothing of a prompt of {prompt_tokens} tokens",
            hint="prompts must differ in at least one token: raise --prompt-tokens",
        )


def devices_of(text: str | None) -> tuple[str, ...]:
    """The devices of a comma-separated list, checked. Raises ConfigError."""
    from onebit.engines.device import Device

    return tuple(str(Device.parse(part)) for part in (text or "").split(",") if part.strip())


def builds(explicit: Path | None) -> Callable[[Device], Build]:
    """Finds a build for a device, each device once."""
    from onebit.engines.builds import find_build

    @cache
    def find(device: Device) -> Build:
        return find_build(device, explicit)

    return find


def prepare(model: str, llama_server: Path | None, wish: Wish) -> tuple[Planner, dict[str, Any]]:
    """A planner for this model, and what the figures will be measured on."""
    from onebit.bench.machine import cores, machine
    from onebit.bench.setups import Planner
    from onebit.commands.progress import progress
    from onebit.models.fingerprint import fingerprint
    from onebit.models.gguf_file import inspect
    from onebit.models.pull import resolve

    with progress() as report:
        path = resolve(model, report)
    info = inspect(path)
    planner = Planner(wish, info, builds(llama_server), inspect, cores())
    facts = {"model": path.name, "model_bytes": info.size_bytes, "model_fingerprint": fingerprint(path)}
    return planner, {**machine(), **facts}


def key_from(variable: str | None) -> str | None:
    """The API key in this environment variable. Raises ConfigError when it is not there."""
    if variable is None:
        return None
    key = os.environ.get(variable, "").strip()
    if not key:
        raise ConfigError(f"--api-key-env {variable}: that variable is not set", hint=f"export {variable}=…")
    if not key.isascii() or not key.isprintable():
        raise ConfigError(f"--api-key-env {variable}: the key holds characters that no header can carry")
    return key


def engine_settings(**given: Any) -> Mapping[str, Any]:
    """Settings of `onebit serve` that were given, by name."""
    return {name: value for name, value in given.items() if value is not None and value != ()}
