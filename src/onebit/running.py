"""Which servers of this user run: each leaves a note in its run folder, for `status`, `top` and `reload`."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from onebit import paths
from onebit.engines.run_folder import LOCK

_NOTE, _OUTCOME = "server.json", "reload.json"
_MAX_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class Note:
    """What a server says of itself. `config`: its file, `started`: Unix time."""

    pid: int
    url: str
    config: str | None
    started: float


@dataclass(frozen=True, slots=True)
class Running:
    """A server that runs, and its folder."""

    note: Note
    folder: Path

    def alive(self) -> bool:
        """Does it still? Its process holds a lock in the folder; a process id alone may be somebody else's by now."""
        return _locked(self.folder)

    def outcome(self) -> dict[str, Any] | None:
        """What became of its latest reload; None: there was none."""
        return _read(self.folder / _OUTCOME)


def announce(folder: Path, note: Note) -> None:
    """Write the note of the server that lives in `folder`. Raises OSError."""
    _write(folder / _NOTE, asdict(note))


def tell_outcome(folder: Path, outcome: Mapping[str, Any]) -> None:
    """Write what became of a reload, for whoever asked for it. Raises OSError."""
    _write(folder / _OUTCOME, outcome)


def servers() -> list[Running]:
    """Those that run now, the newest first."""
    found = []
    for path in paths.run_root().glob(f"onebit-*/{_NOTE}"):
        note = _read(path)
        if note is not None and _locked(path.parent):
            with suppress(TypeError):  # another version's note
                found.append(Running(Note(**note), path.parent))
    return sorted(found, key=lambda server: server.note.started, reverse=True)


def _locked(folder: Path) -> bool:
    if not (folder / LOCK).is_file():  # a lock would make the folder again
        return False
    try:
        with FileLock(folder / LOCK, blocking=False):
            return False
    except Timeout:
        return True
    except OSError:  # the folder is gone
        return False


def _write(path: Path, value: Mapping[str, Any]) -> None:
    new = path.with_suffix(".new")
    with os.fdopen(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:
        json.dump(value, file)
    new.replace(path)


def _read(path: Path) -> dict[str, Any] | None:
    try:
        with path.open("rb") as file:
            value = json.loads(file.read(_MAX_BYTES))
    except (OSError, ValueError):
        return None
    return value if isinstance(value, dict) else None
