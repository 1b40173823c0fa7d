"""Tell a model file from another one without reading all of it."""

from __future__ import annotations

import hashlib
from pathlib import Path

from onebit.errors import ModelFileError
from onebit.models.shards import is_later_shard, shard_names

_SAMPLES = 64
_SAMPLE_BYTES = 1 << 16


def fingerprint(path: Path) -> str:
    """A hash (32 hex digits) of the size, both ends and 62 samples of each file of the model.

    Another quantisation, another training or a truncated file has another one; a 40 GB file takes milliseconds
    (its SHA-256 takes minutes from a cold disk). It is no proof against somebody who wants two files to look alike.
    Raises ModelFileError when a file cannot be read.
    """
    digest = hashlib.sha256()
    for name in (path.name,) if is_later_shard(path) else shard_names(path.name):
        file = path.with_name(name)
        try:
            size = file.stat().st_size
            digest.update(f"{size}\n".encode())
            with file.open("rb") as stream:
                for start in _starts(size):
                    stream.seek(start)
                    digest.update(stream.read(_SAMPLE_BYTES))
        except OSError as error:
            raise ModelFileError(f"cannot read {file}: {error.strerror}") from None
    return digest.hexdigest()[:32]


def _starts(size: int) -> list[int]:
    """Where the samples start: all of a small file, the first and the last bytes of a large one and evenly between."""
    if size <= _SAMPLES * _SAMPLE_BYTES:
        return list(range(0, size, _SAMPLE_BYTES))
    return [(size - _SAMPLE_BYTES) * i // (_SAMPLES - 1) for i in range(_SAMPLES)]
