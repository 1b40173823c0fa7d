"""What a fake engine is told to do: one frozen value, JSON in argv, changed through `POST /fake`."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace
from typing import Any, Self


@dataclass(frozen=True, slots=True)
class ExitAtStart:
    """Die before listening: write `stderr`, then exit with `code`, or die of `signal` (e.g. "SIGILL")."""

    code: int = 1
    stderr: str = ""
    signal: str | None = None


@dataclass(frozen=True, slots=True)
class FakeScript:
    """The behaviour of one fake engine. Every default is a healthy, immediate engine.

    A field `…_after_chunks = n` fires when n text chunks were made (0: after the headers, before any text;
    -1: before the headers). None: never. Times are seconds.
    """

    # --- starting
    start_delay_s: float = 0  # before it listens: connection refused
    loading_s: float = 0  # after it listens: 503 "Loading model" on every path but /fake
    exit_at_start: ExitAtStart | None = None  # after start_delay_s
    fail_first_n_starts: int | None = None  # only the first n starts do exit_at_start; needs record_dir
    record_dir: str | None = None  # one JSON file per start, read by `fake_build.starts`
    devices: tuple[str, ...] = ()  # lines of --list-devices
    refuse_flags: tuple[str, ...] = ()  # flags that end it as an unknown argument does

    # --- answering
    tokens: int = 4  # chunks of an answer; a request's max_tokens may lower it
    headers_delay_s: float = 0
    first_token_delay_s: float = 0
    token_delay_s: float = 0  # before each chunk but the first
    last_event_delay_s: float = 0  # before the last event of a stream
    error_status: int | None = None  # answer every generation with this, at once
    error_body: dict[str, Any] | None = None

    # --- failing
    die_after_chunks: int | None = None  # SIGKILL
    stop_process_after_chunks: int | None = None  # SIGSTOP: alive, silent on every connection
    close_after_chunks: int | None = None  # the connection closes without the last chunk
    garbage_after_chunks: int | None = None  # bytes that are not HTTP, then silence
    stall_after_chunks: int | None = None  # silence with an open connection, until POST /fake moves the mark
    error_event_after_chunks: int | None = None  # a `data: {"error": …}` event, the end, no [DONE]
    close_after_answer: bool = False  # a stream ends well, then its kept-alive connection closes unannounced
    hang_health_after_s: float | None = None  # counted from the start; /health then never answers
    silent_slots_free_s: float = 0  # a gone client's slot stays busy this long

    # --- stopping
    ignore_term: bool = False  # every SIGTERM and SIGINT
    term_waits_for_requests: bool = False  # as the real one: a second TERM ends it at once

    @classmethod
    def from_json(cls, text: str) -> Self:
        """Read a script. Raises ValueError or TypeError for what is not one."""
        return cls().changed(json.loads(text))

    def changed(self, values: Mapping[str, Any]) -> Self:
        """This script with some fields replaced. Raises ValueError naming a field that there is not."""
        known = {field.name for field in fields(self)}
        if unknown := sorted(set(values) - known):
            raise ValueError(f"a fake script has no {', '.join(unknown)}; it has {', '.join(sorted(known))}")
        read = dict(values)
        if isinstance(read.get("exit_at_start"), Mapping):
            read["exit_at_start"] = ExitAtStart(**read["exit_at_start"])
        for name in ("devices", "refuse_flags"):
            if name in read:
                read[name] = tuple(read[name])
        return replace(self, **read)

    def to_json(self) -> str:
        """The script as `from_json` reads it."""
        return json.dumps(asdict(self))
