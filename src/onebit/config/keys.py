"""API keys: from where they are kept to their bytes. A key itself is in no message, no log and no repr."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from onebit.config.keys_section import KeyEntry
from onebit.config.schema import ServeConfig
from onebit.config.source import Loc
from onebit.errors import ConfigError
from onebit.tiers import Tier

_MAX_FILE = 1 << 20
_OTHERS = stat.S_IRWXG | stat.S_IRWXO
_LOOPBACK = ("127.0.0.1", "::1", "localhost")


@dataclass(frozen=True, slots=True)
class Key:
    """A key that lets requests in, with the tier they get."""

    name: str  # in metrics and logs
    secret: bytes = field(repr=False)
    tier: Tier
    max_in_flight: int | None = None


class _Unreadable(Exception):
    """Why a key cannot be had."""


def read_keys(config: ServeConfig, environ: Mapping[str, str] | None = None) -> tuple[Key, ...]:
    """All keys. Raises ConfigError, a line for each that is missing, empty, open to others, or there twice."""
    environ = os.environ if environ is None else environ
    keys: list[tuple[str, Key]] = []  # with its place
    wrong: list[str] = []
    for index, entry in enumerate(config.keys):
        place = config.source.place(("keys", index, entry.way))
        try:
            keys.append((place, Key(entry.name, _secret(entry, environ), entry.tier, entry.max_in_flight)))
        except _Unreadable as why:
            wrong.append(f"{place}: {why}")
    number = 0
    for name in ("api_key", "api_key_file"):
        place = config.source.place((name,))
        try:
            for secret in _plain(config, name):
                number += 1
                keys.append((place, Key(f"api-key-{number}", secret, Tier.PAID)))
        except _Unreadable as why:
            wrong.append(f"{place}: {why}")
    hint = "keys are kept in variables (key_env, ONEBIT_API_KEY) or in files of mode 0600 (key_file, --api-key-file)"
    if not wrong and _given_again(config, keys):
        hint = (
            "`onebit serve` takes ONEBIT_API_KEY as one more key, while status, top and reload send it:"
            " unset ONEBIT_API_KEY before you serve, or give the new key another value"
        )
    wrong += _twice(keys)
    if wrong:
        raise ConfigError("\n".join(wrong), hint=hint)
    return tuple(key for _, key in keys)


def key_warnings(config: ServeConfig) -> tuple[str, ...]:
    """What is allowed, but should be known: keys in a file that others can read, a server open to a network."""
    warnings = []
    file = config.source.file
    if file is not None and _mode(file) & (stat.S_IRGRP | stat.S_IROTH):
        plain: list[Loc] = [("keys", i, "key") for i, entry in enumerate(config.keys) if entry.key is not None]
        plain += [("api_key",)] if config.source.from_file("api_key") else []
        fix = f"chmod 600 {file}, or put the key into a variable (key_env) or a file (key_file)"
        warnings += [f"{config.source.place(loc)}: a key stands in a file that others can read; {fix}" for loc in plain]
    if config.host not in _LOOPBACK and not config.has_keys and config.default_tier is None:
        warnings.append(f"anyone who can reach {config.host} can use this server: set ONEBIT_API_KEY or --api-key-file")
    return tuple(warnings)


def _secret(entry: KeyEntry, environ: Mapping[str, str]) -> bytes:
    if entry.key_env is not None:
        # Somebody may have written the key itself here: what does not look like a variable is not repeated.
        name = entry.key_env if entry.key_env.isupper() else "named here"
        if entry.key_env not in environ:
            raise _Unreadable(f"the environment variable {name} is not set; set it before onebit starts")
        return _checked(environ[entry.key_env], f"the environment variable {name}")
    if entry.key_file is not None:
        found = list(_lines(entry.key_file))
        if len(found) > 1:
            raise _Unreadable(f"{entry.key_file} holds {len(found)} keys; one a name: use a file for each")
        return _checked(found[0] if found else "", str(entry.key_file))
    return _checked(entry.key.get_secret_value() if entry.key else "", "it")


def _plain(config: ServeConfig, name: str) -> list[bytes]:
    """The keys of --api-key or of --api-key-file, all of tier paid."""
    if name == "api_key":
        if config.api_key is None:
            return []
        texts = [text.strip() for text in config.api_key.get_secret_value().split(",") if text.strip()]
    elif config.api_key_file is None:
        return []
    else:
        texts = list(_lines(config.api_key_file))
    if not texts:
        raise _Unreadable(
            "an API key was asked for, but it is empty; set ONEBIT_API_KEY or put one key a line into the key file;"
            " without either the server is open"
        )
    return [_checked(text, "it") for text in texts]


def _checked(text: str, where: str) -> bytes:
    text = text.strip()
    if not text:
        raise _Unreadable(f"{where} is empty; a key like the output of `openssl rand -hex 32` will do")
    if not text.isprintable() or " " in text:
        raise _Unreadable(f"{where} holds spaces or control characters; clients could not send such a key")
    return text.encode()


def _lines(file: Path) -> Iterator[str]:
    """The lines of a key file that are not comments. It may be a pipe, so it is opened and read once."""
    try:
        with file.open("rb") as opened:
            mode = os.fstat(opened.fileno()).st_mode
            if stat.S_ISREG(mode) and mode & _OTHERS:
                raise _Unreadable(
                    f"{file} can be read by others (mode {stat.S_IMODE(mode):04o}); run: chmod 600 {file}"
                )
            data = opened.read(_MAX_FILE + 1)
        text = data.decode("utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise _Unreadable(f"cannot read the key file {file}: {_reason(error)}") from None
    if len(data) > _MAX_FILE:
        raise _Unreadable(f"{file} is over 1 MiB: not a key file")
    return (line.strip() for line in text.splitlines() if line.strip() and not line.lstrip().startswith("#"))


def _reason(error: OSError | UnicodeDecodeError) -> str:
    """Without the bytes that could not be decoded: they are part of a key."""
    return "it is not text" if isinstance(error, UnicodeDecodeError) else error.strerror or type(error).__name__


def _mode(file: Path) -> int:
    try:
        return file.stat().st_mode
    except OSError:
        return 0


def _given_again(config: ServeConfig, keys: list[tuple[str, Key]]) -> bool:
    """Does ONEBIT_API_KEY (or --api-key) hold a key that stands elsewhere too? It may be set for `onebit status`."""
    if config.source.from_file("api_key"):
        return False
    flag = config.source.place(("api_key",))
    given = {key.secret for place, key in keys if place == flag}
    return any(key.secret in given for place, key in keys if place != flag)


def _twice(keys: list[tuple[str, Key]]) -> list[str]:
    """Two names for one key, or two keys of one name: whose request would it be?"""
    wrong = []
    secrets: dict[bytes, Key] = {}
    names: set[str] = set()
    for place, key in keys:
        other = secrets.setdefault(key.secret, key)
        if other is not key:
            wrong.append(f"{place}: {key.name} has the same key as {other.name}; a key belongs to one name")
        if key.name in names:
            wrong.append(f"{place}: {key.name} is the name of two keys; choose another")
        names.add(key.name)
    return wrong
