"""A YAML file as plain values, with the line of every setting at any depth; what is set twice is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

from onebit.config.source import Loc, dotted
from onebit.errors import ConfigError

_MAX_BYTES = 1 << 20
_MAX_SETTINGS = 100_000  # aliases make a small file large: nine lines of ten `*x` each would be 10^9 settings
_MAX_DEPTH = 8  # the deepest there is: models.NAME.engines[0].device
_MERGE, _TEXT = "tag:yaml.org,2002:merge", "tag:yaml.org,2002:str"


class _Loader(yaml.SafeLoader):
    """Names the line of a value that is not of its tag, where PyYAML lets through what it stumbled over."""

    def construct_object(self, node: yaml.Node, deep: bool = False) -> Any:
        """The value of `node`, which is in no message: it may be a key."""
        try:
            value = super().construct_object(node, deep)
            if isinstance(value, str):
                value.encode()  # half a surrogate pair, "\ud83d", could be neither shown nor sent
        except (ArithmeticError, AttributeError, LookupError, ValueError):  # `!!bool maybe` is a KeyError
            kind = node.tag.rpartition(":")[2]
            fix = "write characters as they are, not as \\u…" if kind == "str" else "put text in quotes"
            problem = f"what stands here is no valid {kind}; {fix}"
            raise yaml.constructor.ConstructorError(None, None, problem, node.start_mark) from None
        return value


def read(file: Path) -> tuple[dict[str, Any], dict[Loc, int]]:
    """The settings of `file` and the line each stands on. Raises ConfigError with file and line."""
    text = _text(file)
    try:
        loader = _Loader(text)
        try:
            return _settings(loader, file)
        finally:
            loader.dispose()
    except yaml.reader.ReaderError as error:
        line = text.count("\n", 0, error.position) + 1
        raise ConfigError(
            f"{file}:{line}: not valid YAML: the character U+{error.character:04X} is not allowed",
            hint="a config file is plain text, like docs/onebit.example.yaml",
        ) from None
    except yaml.MarkedYAMLError as error:
        line = error.problem_mark.line + 1 if error.problem_mark else 1
        raise ConfigError(f"{file}:{line}: not valid YAML: {error.problem}") from None
    except RecursionError:
        raise ConfigError(f"{file}: not valid YAML: it is nested too deeply") from None
    except (yaml.YAMLError, ValueError) as error:
        raise ConfigError(f"{file}: not valid YAML: {error}") from None


def _settings(loader: _Loader, file: Path) -> tuple[dict[str, Any], dict[Loc, int]]:
    root = loader.get_single_node()
    if root is None:
        return {}, {}
    if not isinstance(root, yaml.MappingNode):
        raise ConfigError(f"{file}: a config file holds settings, one a line, like `parallel: 8`")
    outline = _Outline()
    outline.walk(root, ())
    if outline.wrong:
        raise ConfigError("\n".join(f"{file}:{line}: {message}" for line, message in sorted(outline.wrong)))
    return loader.construct_document(root), outline.lines


def _text(file: Path) -> str:
    try:
        with file.open("rb") as opened:
            data = opened.read(_MAX_BYTES + 1)  # it may be a pipe or a device, whose size nobody knows
        if len(data) > _MAX_BYTES:
            raise ConfigError(f"{file} is over 1 MiB: not a config file")
        return data.decode("utf-8-sig")
    except FileNotFoundError:
        raise ConfigError(
            f"config file {file} does not exist", hint="docs/onebit.example.yaml is one to start from"
        ) from None
    except UnicodeDecodeError as error:
        raise ConfigError(
            f"cannot read config file {file}: it is not UTF-8: {error.reason} at byte {error.start}"
        ) from None
    except OSError as error:
        raise ConfigError(f"cannot read config file {file}: {error.strerror or error}") from None


def _holds_names(loc: Loc) -> bool:
    """Do names that the user has made up stand there, and no settings?"""
    return loc == ("models",) or (len(loc) == 3 and loc[0] == "models" and loc[2] == "adapters")


class _Outline:
    """Walks the composed tree, before it is made into values: a dict has forgotten lines and duplicates."""

    def __init__(self) -> None:
        self.lines: dict[Loc, int] = {}
        self.wrong: list[tuple[int, str]] = []

    def walk(self, node: yaml.Node, loc: Loc) -> None:
        """Note the lines of all below `node`, and make every name text: a model may be called `on` or `70`."""
        if len(self.lines) > _MAX_SETTINGS:
            raise ValueError(f"it has over {_MAX_SETTINGS:,} settings")
        if len(loc) > _MAX_DEPTH:
            return
        if isinstance(node, yaml.SequenceNode):
            for index, item in enumerate(node.value):
                self._enter(item, (*loc, index), item.start_mark.line + 1)
        elif isinstance(node, yaml.MappingNode):
            self._mapping(node, loc)

    def _mapping(self, node: yaml.MappingNode, loc: Loc) -> None:
        own: dict[str, int] = {}
        merged: list[yaml.Node] = []
        for key, value in node.value:
            line = key.start_mark.line + 1
            if key.tag == _MERGE:
                merged += value.value if isinstance(value, yaml.SequenceNode) else [value]
                continue
            if not isinstance(key, yaml.ScalarNode):
                self.wrong.append((line, "the name of a setting is plain text"))
                continue
            if not _holds_names(loc):  # YAML users write what they see in --help, too: ctx-size for ctx_size
                key.value = key.value.replace("-", "_")
            key.tag = _TEXT
            name = key.value
            if name in own:
                self.wrong.append((line, f"{dotted((*loc, name))} is set twice, first on line {own[name]}"))
            own.setdefault(name, line)
            self._enter(value, (*loc, name), line)
        for base in merged:  # `<<: *base`; what stands here itself wins, so it came first
            self.walk(base, loc)

    def _enter(self, node: yaml.Node, loc: Loc, line: int) -> None:
        self.lines.setdefault(loc, line)
        self.walk(node, loc)
