"""Bytes that engines were seen to hold, kept from one run to the next.

A small JSON file, newest entry last. It is only a memory: whatever is wrong with it, it counts as empty and the log
says so; the estimate is used instead.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from onebit import paths
from onebit.engines.spec import EngineSpec

_LOG = logging.getLogger(__name__)
_FORMAT = 1
_ENTRIES = 512  # some 100 bytes each
_LARGEST_FILE = 1 << 20  # bytes; a larger one is not ours
_LARGEST = 1 << 50  # bytes of memory
_LOCK_SECONDS = 5  # another server holds the lock for a millisecond


def key_of(spec: EngineSpec) -> str | None:
    """What the bytes depend on, as a hash: files (path, size, time of change), build, device and parameters.

    None when a file cannot be looked at: then nothing is known of it.
    """
    draft = spec.draft
    files = [
        spec.model,
        *(adapter.path for adapter in (*spec.adapters, *spec.choice)),
        *([draft.model] if draft and draft.model else []),
    ]
    found = spec.build.device_for(spec.device)
    try:
        identities = [(str(path.resolve()), path.stat().st_size, path.stat().st_mtime_ns) for path in files]
    except OSError:
        return None
    what: list[Any] = [
        *identities,
        (str(spec.build.path), spec.build.version, str(spec.device), found and (found.description, found.total_bytes)),
        (spec.slots, spec.context, spec.batch, spec.gpu_layers, spec.embeddings, spec.pooling),
        draft and (draft.kind, draft.length),
        spec.extra,
    ]
    return hashlib.sha256(json.dumps(what).encode()).hexdigest()[:32]


class Remembered:
    """The file. Safe to use from several servers at once; every call reads it anew (under a millisecond)."""

    def __init__(self, path: Path | None = None) -> None:
        """`path`: the file, `paths.memory_file()` when None. It need not exist."""
        self._path = path or paths.memory_file()

    def recall(self, spec: EngineSpec) -> int | None:
        """Bytes that such an engine was last seen to hold, or None."""
        key = key_of(spec)
        return None if key is None else self._read().get(key)

    def store(self, spec: EngineSpec, measured: int) -> None:
        """Note `measured` bytes for such an engine; the entries longest not written give way. Never raises."""
        key = key_of(spec)
        if key is None or not 0 < measured < _LARGEST:
            return
        try:
            with self._locked():
                entries = self._read()
                entries.pop(key, None)
                entries[key] = measured
                self._write(dict(list(entries.items())[-_ENTRIES:]))
        except (OSError, Timeout) as error:
            _LOG.warning("measured memory is not kept in %s: %s", self._path, error)

    @contextmanager
    def _locked(self) -> Iterator[None]:
        self._path.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(self._path.with_name(f".{self._path.name}.lock"), timeout=_LOCK_SECONDS):
            yield

    def _read(self) -> dict[str, int]:
        try:
            with self._path.open("rb") as file:
                data = file.read(_LARGEST_FILE + 1)
            if len(data) > _LARGEST_FILE:
                raise ValueError("it is larger than this program would write it")
            return _checked(json.loads(data))
        except FileNotFoundError:
            return {}
        except (OSError, ValueError, RecursionError) as error:
            _LOG.warning("measured memory in %s is unreadable and counts as empty: %s", self._path, error)
            return {}

    def _write(self, entries: dict[str, int]) -> None:
        handle, name = tempfile.mkstemp(dir=self._path.parent, prefix=f".{self._path.name}.")
        try:
            with os.fdopen(handle, "w") as file:
                json.dump({"format": _FORMAT, "bytes": entries}, file)
                file.flush()
                os.fsync(file.fileno())
            Path(name).replace(self._path)
        except BaseException:
            with suppress(OSError):
                Path(name).unlink()
            raise


def _checked(content: Any) -> dict[str, int]:
    """Raises ValueError for anything but what `_write` writes."""
    entries = content.get("bytes") if isinstance(content, dict) and content.get("format") == _FORMAT else None
    if not isinstance(entries, dict):
        raise ValueError(f"it is not of format {_FORMAT}")  # noqa: TRY004  damage, not a caller's mistake
    if not all(type(size) is int and 0 < size < _LARGEST for size in entries.values()):
        raise ValueError("it holds something else than sizes")
    return entries
