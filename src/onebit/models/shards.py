"""Names of split GGUF files: `NAME-00001-of-00003.gguf`, counted from one; the first part stands for all."""

from __future__ import annotations

import re
from pathlib import PurePath

_SHARD = re.compile(r"(?P<stem>.*)-(?P<number>\d{5})-of-(?P<count>\d{5})(?P<ext>\.gguf)", re.DOTALL)

MAX_SHARDS = 1000  # the largest public models come in some 30 parts


def shard_names(name: str) -> tuple[str, ...]:
    """All names of the set that `name` (a file name or a path) is part of, in order; itself if not split."""
    match = _SHARD.fullmatch(name)
    if match is None or not 1 <= int(match["count"]) <= MAX_SHARDS:
        return (name,)
    count = int(match["count"])
    return tuple(f"{match['stem']}-{i:05d}-of-{count:05d}{match['ext']}" for i in range(1, count + 1))


def is_later_shard(path: PurePath) -> bool:
    """Is this part 2, 3, … of a split model?"""
    return shard_names(path.name)[0] != path.name
