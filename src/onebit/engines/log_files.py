"""The engines' log files: how they are named, found, and read while they grow and are rotated."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from onebit import paths
from onebit.engines.device import DeviceKind

# cpu, vulkan1, cpu-2 (as the plan names engines), and the port of a server that did not take any free one.
_NAME = re.compile(
    rf"(?P<model>.+)-(?P<engine>(?:{'|'.join(DeviceKind)})\d*(?:-[1-8])?)(?:-(?P<port>\d+))?\.log", re.ASCII
)
_MAX_LINE = 64 << 10  # one that has no end is shown in pieces
_TAIL_BLOCK = 64 << 10


def log_file(model: str, engine: str, port: int) -> Path:
    """One file an engine: two servers have two ports, and one that is started again goes on in its file.

    Those that took any free port (0) share one, or each start would leave a file behind.
    """
    return paths.log_dir() / f"{_safe(model)}-{engine}{f'-{port}' if port else ''}.log"


def _safe(model: str) -> str:
    return re.sub(r"[^\w.-]", "_", model)


@dataclass(frozen=True, slots=True)
class EngineLog:
    """A log file there is. `model` is the name as far as a file name can hold it."""

    path: Path
    model: str
    engine: str
    written: float  # Unix time

    def of(self, model: str) -> bool:
        """Is it this model's?"""
        return self.model == _safe(model)


def engine_logs() -> list[EngineLog]:
    """Of each engine the log that was written last, whichever server it belongs to; by model and engine."""
    latest: dict[tuple[str, str], EngineLog] = {}
    for path in sorted(paths.log_dir().glob("*.log")):
        if (found := _NAME.fullmatch(path.name)) is None:
            continue
        try:
            log = EngineLog(path, found["model"], found["engine"], path.stat().st_mtime)
        except OSError:  # rotated away in this moment
            continue
        known = latest.get((log.model, log.engine))
        if known is None or known.written < log.written:
            latest[log.model, log.engine] = log
    return [latest[key] for key in sorted(latest)]


class Follower:
    """Reads a log file's last lines, then what is added to it, through truncation and rotation."""

    def __init__(self, path: Path, last: int) -> None:
        """`last`: lines from before to begin with. Raises OSError when the file cannot be read."""
        self._path = path
        self._file: BinaryIO | None = path.open("rb")
        self._file.seek(_start_of_last(self._file, last))
        self._rest = b""

    def lines(self) -> Iterator[str]:
        """What has come since the last time, whole lines only. Raises OSError when it cannot be read any more."""
        yield from self._new_lines()
        if self._moved():
            yield from self._new_lines()  # what was written before the rotation, after the look above
            if self._rest:
                yield self._rest.decode("utf-8", "replace")
            self.close()
            try:
                self._file = self._path.open("rb")
            except FileNotFoundError:  # it has been rotated away, and nothing was written since
                return
            yield from self._new_lines()

    def close(self) -> None:
        """Let go of the file."""
        self._rest = b""
        if self._file is not None:
            self._file.close()
            self._file = None

    def rest(self) -> str:
        """A last line that has no end yet."""
        return self._rest.decode("utf-8", "replace")

    def _new_lines(self) -> Iterator[str]:
        if self._file is None:
            return
        if os.fstat(self._file.fileno()).st_size < self._file.tell():  # truncated: it begins anew
            self._file.seek(0)
            self._rest = b""
        while data := self._file.read(_TAIL_BLOCK):
            *whole, self._rest = (self._rest + data).split(b"\n")
            for line in whole:
                yield line.decode("utf-8", "replace")
            if len(self._rest) > _MAX_LINE:
                yield self.rest()
                self._rest = b""

    def _moved(self) -> bool:
        """Is the path another file by now?"""
        if self._file is None:
            return True
        try:
            there = self._path.stat()
        except FileNotFoundError:
            return False  # the next file will come
        return not os.path.samestat(there, os.fstat(self._file.fileno()))


def _start_of_last(file: BinaryIO, lines: int) -> int:
    """Where the last `lines` lines begin; read from the end, for a log has megabytes."""
    end = position = file.seek(0, os.SEEK_END)
    if lines <= 0:
        return end
    seen = 0
    while position > 0:
        size = min(_TAIL_BLOCK, position)
        position -= size
        file.seek(position)
        block = file.read(size)
        if position + size == end and block.endswith(b"\n"):
            seen = -1  # the last line's own end
        at = len(block)
        while (at := block.rfind(b"\n", 0, at)) >= 0:
            seen += 1
            if seen == lines:
                return position + at + 1
    return 0
