"""Results on disk: one JSON object a line, appended as each is measured, so that an interrupted run loses nothing."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

from onebit.bench.row import Figures
from onebit.bench.stats import Percentiles
from onebit.errors import BenchError

VERSION = 1
_MAX_BYTES = 256 << 20


@dataclass(frozen=True, slots=True)
class Cell:
    """What was measured: a setup (`vulkan`, `adaptive`, a URL…) under a load. `load` is `closed` or `open`."""

    setup: str
    requests: int  # at once; 0 in an open loop
    repeat: int
    load: str = "closed"


@dataclass(frozen=True, slots=True)
class Result:
    """A row of a results file: the cell, the figures, and all that they were measured on."""

    cell: Cell
    figures: Figures
    settings: Mapping[str, Any] = field(
        default_factory=dict
    )  # of the load: lengths, API; what a resumed run must share
    measured_on: Mapping[str, Any] = field(default_factory=dict)  # machine, model, build, device, flags, commit
    conditions: Mapping[str, Any] = field(default_factory=dict)  # time, load of the machine, the generator's own CPU

    def line(self) -> str:
        """One line of a results file."""
        return json.dumps(
            {
                "version": VERSION,
                **asdict(self.cell),
                "figures": asdict(self.figures),
                "settings": dict(self.settings),
                "conditions": dict(self.conditions),
                "measured_on": dict(self.measured_on),
            },
            separators=(",", ":"),
        )


class ResultsFile:
    """A results file that is being written."""

    def __init__(self, path: Path, *, resume: bool) -> None:
        """Open for appending. Raises BenchError: it exists and `resume` is not set, or cannot be written."""
        self.path = path
        self.known: list[Result] = []
        if path.exists() and path.stat().st_size:
            if not resume:
                raise BenchError(
                    f"{path} holds results already", hint="--resume goes on with them; or name another file"
                )
            self.known = list(read(path, torn_end=True))
            _cut_torn_end(path)
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.open("ab").close()
        except OSError as error:
            raise BenchError(f"cannot write {path}: {error.strerror}") from None

    def add(self, result: Result) -> None:
        """Append a row, on disk when this returns. Raises BenchError; the rows before are kept."""
        data = result.line().encode() + b"\n"
        try:
            with self.path.open("ab", buffering=0) as stream:
                written = stream.write(data)
                if written != len(data):
                    raise OSError(28, os.strerror(28))
                os.fsync(stream.fileno())
        except OSError as error:
            raise BenchError(
                f"cannot write {self.path}: {error.strerror}",
                hint="the rows before are kept; --resume goes on with them",
            ) from None


def _cut_torn_end(path: Path) -> None:
    """A line without its end was being written when the power went."""
    data = path.read_bytes()
    whole = data.rfind(b"\n") + 1
    if whole < len(data):
        os.truncate(path, whole)


def read(path: Path, *, torn_end: bool = False) -> Iterator[Result]:
    """The rows of a results file. Raises BenchError with file and line: unreadable, not results, another version.

    `torn_end`: a last line without its end is left out instead.
    """
    try:
        if path.stat().st_size > _MAX_BYTES:
            raise BenchError(f"{path} is over 256 MiB: not a results file")
        data = path.read_bytes()
    except OSError as error:
        raise BenchError(f"cannot read {path}: {error.strerror}") from None
    lines = data.split(b"\n")
    last = lines.pop()
    if last.strip() and not torn_end:
        lines.append(last)
    if not any(line.strip() for line in lines) and not torn_end:
        raise BenchError(f"{path} holds no results", hint="`onebit bench --json FILE` writes them")
    for number, line in enumerate(lines, 1):
        if line.strip():
            yield _parse(line, f"{path}:{number}")


def _parse(line: bytes, place: str) -> Result:
    try:
        row = json.loads(line)
        version = row["version"]
        if version != VERSION:
            raise BenchError(
                f"{place}: results of format version {version!r}; this onebit reads {VERSION}",
                hint="measure again, or use the onebit that wrote them",
            )
        cell = Cell(str(row["setup"]), int(row["requests"]), int(row["repeat"]), str(row["load"]))
        return Result(
            cell, _figures(row["figures"]), dict(row["settings"]), dict(row["measured_on"]), dict(row["conditions"])
        )
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        raise BenchError(f"{place}: not a row of results", hint="`onebit bench --json FILE` writes them") from None


def _figures(data: Mapping[str, Any]) -> Figures:
    known = {f.name: data[f.name] for f in fields(Figures) if f.name in data}
    for name in ("ttft_ms", "gap_ms"):
        if known.get(name) is not None:
            known[name] = Percentiles(**{key: float(value) for key, value in known[name].items()})
    for name in ("total_tok_s", "user_tok_s", "prompt_tok_s", "acceptance", "engine_tok_s", "agreement"):
        if known.get(name) is not None:
            known[name] = float(known[name])
    return Figures(**known)


_SAME = ("model_fingerprint", "device", "build", "flags")


def done(
    known: Sequence[Result], settings: Mapping[str, Any], facts: Mapping[str, Mapping[str, Any]]
) -> dict[Cell, Result]:
    """The cells that a run with these settings need not measure again; `facts` is what it measures on, by setup.

    Raises BenchError when the file's rows were measured with other settings, or on something else.
    """
    for result in known:
        here = facts.get(result.cell.setup, {})
        wanted = {**settings, **{name: here[name] for name in _SAME if name in here}}
        for name, value in wanted.items():
            before = (result.settings if name in settings else result.measured_on).get(name)
            if before != value:
                raise BenchError(
                    f"its rows of {result.cell.setup} were measured with {name} {before!r}, this run has {value!r}",
                    hint="give the same settings, or name another file",
                )
    return {result.cell: result for result in known if result.figures.total_tok_s is not None}
