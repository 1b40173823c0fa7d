"""Flags, environment and a YAML file become one frozen configuration, or one message that says what is wrong.

Precedence: flag > environment > file > default. Flags and environment arrive merged (Typer does that).
"""

from __future__ import annotations

from collections.abc import Mapping
from difflib import get_close_matches
from pathlib import Path
from typing import Any

import yaml
from pydantic import ValidationError

from onebit.config.schema import ServeConfig
from onebit.errors import ConfigError

_MAX_CONFIG_BYTES = 1 << 20


def load(given: Mapping[str, Any], file: Path | None = None) -> ServeConfig:
    """Build the configuration. `given`: settings from flags and environment, by name.

    Raises ConfigError: one message for all that is wrong, each with its place (flag or file:line).
    """
    settings, lines = _read(file) if file is not None else ({}, {})
    try:
        return ServeConfig.model_validate({**settings, **given})
    except ValidationError as error:
        problems = [_problem(e, given, file, lines) for e in error.errors(include_url=False, include_input=False)]
        raise ConfigError("\n".join(problems), hint="onebit serve --help lists every setting") from None


def _read(file: Path) -> tuple[dict[str, Any], dict[str, int]]:
    """The file's settings, and the line each one starts on."""
    try:
        if file.stat().st_size > _MAX_CONFIG_BYTES:
            raise ConfigError(f"{file} is over 1 MiB: not a config file")
        text = file.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise ConfigError(
            f"config file {file} does not exist", hint="docs/onebit.example.yaml is one to start from"
        ) from None
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"cannot read config file {file}: {error}") from None
    try:
        root = yaml.compose(text, Loader=yaml.SafeLoader)
        settings = yaml.safe_load(text)
    except yaml.MarkedYAMLError as error:
        line = error.problem_mark.line + 1 if error.problem_mark else 1
        raise ConfigError(f"{file}:{line}: not valid YAML: {error.problem}") from None
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise ConfigError(f"{file}: not valid YAML: {error}") from None
    if settings is None:
        return {}, {}
    if not isinstance(settings, dict) or not isinstance(root, yaml.MappingNode):
        raise ConfigError(f"{file}: a config file holds settings, one a line, like `parallel: 8`")
    lines: dict[str, int] = {}
    for key, _ in root.value:
        name, line = str(key.value), key.start_mark.line + 1
        if name in lines:
            raise ConfigError(f"{file}:{line}: {name} is set twice, first on line {lines[name]}")
        lines[name] = line
    # YAML users write what they see in --help, too: ctx-size for ctx_size.
    named = {str(k).replace("-", "_"): v for k, v in settings.items()}
    return named, {name.replace("-", "_"): line for name, line in lines.items()}


def _problem(error: Any, given: Mapping[str, Any], file: Path | None, lines: Mapping[str, int]) -> str:
    name = str(error["loc"][0]) if error["loc"] else ""
    flag = "--" + name.replace("_", "-")
    from_file = f"{file}:{lines.get(name, 1)}: {name}"
    place = f"{flag} (or ONEBIT_{name.upper()})" if name in given else from_file
    if error["type"] == "extra_forbidden":
        near = get_close_matches(name, ServeConfig.model_fields, n=1)
        return f"{place}: there is no such setting" + (f"; did you mean {near[0]}?" if near else "")
    message = error["msg"].removeprefix("Value error, ")
    return f"{place}: {message[0].lower()}{message[1:]}"
