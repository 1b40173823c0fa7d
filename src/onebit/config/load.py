"""Flags, environment and a YAML file become one frozen configuration, or one message that says what is wrong.

Precedence: flag > environment > file > default. Flags and environment arrive merged (Typer does that).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from onebit.config import yaml_file
from onebit.config.adapters_section import AdapterEntry
from onebit.config.anchor import anchored
from onebit.config.keys import Key, key_warnings, read_keys
from onebit.config.keys_section import KeyEntry
from onebit.config.models_section import EngineEntry, ModelEntry
from onebit.config.schema import ServeConfig, ServedModel
from onebit.config.source import Loc, Source
from onebit.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Checked:
    """A configuration that is whole: the keys could be read, the models are known."""

    config: ServeConfig
    keys: tuple[Key, ...]
    models: tuple[ServedModel, ...]
    warnings: tuple[str, ...]


def check_config(file: Path | None, given: Mapping[str, Any] | None = None) -> Checked:
    """All that can be known of a configuration before anything starts. Raises ConfigError for all that is wrong."""
    config = load(given or {}, file)
    return Checked(config, read_keys(config), config.served(), key_warnings(config))


def load(given: Mapping[str, Any], file: Path | None = None) -> ServeConfig:
    """Build the configuration. `given`: settings from flags and environment, by name.

    Raises ConfigError: one message for all that is wrong, a line each, with its place (flag or file:line).
    """
    settings, lines = yaml_file.read(file) if file is not None else ({}, {})
    source = Source(file, lines, frozenset(given))
    if file is not None:
        settings = anchored(settings, file.parent)
    if settings.get("models") == {}:  # as if it were not there, the demo would be served
        raise ConfigError(
            f"{source.place(('models',))} is empty; name a model below it, like `chat: {{path: qwen.gguf}}`,"
            " or take the line away"
        )
    try:
        return ServeConfig.model_validate({**settings, **given}).read_from(source)
    except ValidationError as error:
        found = sorted(error.errors(include_url=False), key=lambda e: source.line(e["loc"]))
        told = [_problem(e, source) for e in found if not _follows(e, found)]
        hint = "docs/settings.md has every setting" if file else "onebit serve --help lists every setting"
        raise ConfigError("\n".join(dict.fromkeys(told)), hint=hint) from None


def _follows(error: Any, found: Sequence[Any]) -> bool:
    """Is it a list that is too short only because what stands in it is wrong?"""
    loc = error["loc"]
    return error["type"] == "too_short" and any(e["loc"][: len(loc)] == loc != e["loc"] for e in found)


_PLAINER = {
    "too_short": "there must be at least one",
    "model_type": "settings stand below it, a line each, like `path: qwen.gguf`",
    "dict_type": "settings stand below it, a line each",
    "tuple_type": "it is a list, like `[a, b]`",
    "string_pattern_mismatch": "letters, digits, `_`, `.` and `-` only, a letter or digit first",
}
_LISTS = {  # of what, where `[a, b]` would not say it
    "engine_args": 'it is a list, like `["--temp", "0.2"]`',
    **dict.fromkeys(("parallel", "n_gpu_layers", "threads"), "a whole number, or a list of them, like `[8, 16]`"),
}


def _problem(error: Any, source: Source) -> str:
    """One line: the place, what is wrong, how to fix it. `error`: one of pydantic's; its input is never shown."""
    kind: str = error["type"]
    loc: Loc = tuple(part for part in error["loc"] if part != "[key]")
    if kind == "extra_forbidden":
        return f"{source.place(loc)}: {_unknown(loc)}"
    if kind == "missing":
        return f"{source.place(loc)}: it is missing{_what(loc)}"
    # A list of one is written without brackets, and a value of the command line has none: parallel, not parallel[0].
    place = source.place(source.known(loc) or loc[:1])
    message = error["msg"].removeprefix("Value error, ")
    if kind == "string_type":
        message = "it is text: put it in quotes"
    elif kind == "literal_error":
        near = get_close_matches(str(error["input"]), error["ctx"]["expected"].replace("'", "").split(" or "), n=1)
        message += f"; did you mean {near[0]}?" if near else ""
    message = _PLAINER.get(kind, message)
    if kind == "tuple_type":
        message = _LISTS.get(str(loc[-1]), message)
    return f"{place}: {message[:1].lower()}{message[1:]}"


def _section(loc: Loc) -> type[ServeConfig | ModelEntry | KeyEntry | EngineEntry | AdapterEntry]:
    """What the setting at `loc` is a setting of."""
    if len(loc) == 1:
        return ServeConfig
    if loc[0] == "keys":
        return KeyEntry
    if "adapters" in loc[2:3] and len(loc) > 4:
        return AdapterEntry
    return EngineEntry if "engines" in loc[2:-1] else ModelEntry


def _unknown(loc: Loc) -> str:
    name, section = str(loc[-1]), _section(loc)
    if section is ModelEntry and name == "model":
        return "there is no such setting; the model's file is its `path`"
    if section is ModelEntry and name == "alias":
        return f"there is no such setting; clients call the model what stands before it, {loc[1]}"
    if section is not ServeConfig and name in ServeConfig.model_fields:
        where = f"models.{loc[1]}" if name in ModelEntry.model_fields else "the top level"
        return f"there is no such setting here; it belongs to {where}"
    near = get_close_matches(name, section.model_fields, n=1)
    return "there is no such setting" + (f"; did you mean {near[0]}?" if near else "")


def _what(loc: Loc) -> str:
    described = _section(loc).model_fields.get(str(loc[-1]))
    return f" ({described.description})" if described is not None else ""
