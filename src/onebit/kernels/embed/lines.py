"""Lines of a file, part by part, in bounded memory."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from onebit.errors import EmbedError

LONGEST = 16 << 20  # bytes of a line: a book has 1 to 2 MB
_LINES = 8192  # a part; at 256 dimensions their vectors take 8 MB
_BYTES = 32 << 20  # and no part has many more bytes than that


@dataclass(frozen=True, slots=True)
class Part:
    """`lines`: as they stand in the file, without their ends. `texts`: what to embed of each."""

    lines: list[bytes]
    texts: list[str | bytes]
    done: int  # bytes of the file read so far
    total: int  # bytes of the file, 0 for a pipe


def read_lines(path: Path, field: str | None) -> Iterator[Part]:
    """The lines of `path` that are not blank; of JSON objects, if `field` is given, with that field as the text."""
    lines: list[bytes] = []
    texts: list[str | bytes] = []
    number = done = size = 0
    try:
        with path.open("rb") as file:
            total = os.fstat(file.fileno()).st_size
            while line := file.readline(LONGEST + 1):
                number += 1
                done += len(line)
                if len(line) > LONGEST:
                    raise EmbedError(f"line {number:,} of {path} has more than {LONGEST >> 20} MiB")
                line = line.strip()
                if not line:
                    continue
                lines.append(line)
                texts.append(line if field is None else _field(line, field, f"line {number:,} of {path}"))
                size += len(line)
                if len(lines) == _LINES or size >= _BYTES:
                    yield Part(lines, texts, done, total)
                    lines, texts, size = [], [], 0
    except OSError as exc:
        raise EmbedError(f"{path} cannot be read: {exc.strerror}") from exc
    if lines:
        yield Part(lines, texts, done, total)


def _field(line: bytes, field: str, place: str) -> str:
    try:
        value = json.loads(line)[field]
    except (ValueError, RecursionError) as exc:
        raise EmbedError(f"{place} is no JSON: {exc}") from exc
    except (KeyError, TypeError) as exc:
        raise EmbedError(f"{place} is no JSON object with a field {field!r}") from exc
    if not isinstance(value, str):
        raise EmbedError(f"{place}: the field {field!r} is no text")
    return value
