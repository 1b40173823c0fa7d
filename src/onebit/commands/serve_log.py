"""Where the server's log goes: to stderr, in the format that was asked for, without ever holding the server up."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import IO, TYPE_CHECKING, cast

from onebit.commands import console

if TYPE_CHECKING:
    import logging

    from onebit.logs import Span


@contextmanager
def server_log(log_format: str) -> Iterator[None]:
    """Show what is logged, and, where stderr is no terminal, let nothing that is printed there block.

    `log_format`: human, json, or auto: human on a terminal, else json.
    """
    err = console.err()
    human = log_format == "human" or (log_format == "auto" and err.is_terminal)
    with _on_terminal(human) if err.is_terminal else _in_pipe(human):
        yield


@contextmanager
def _on_terminal(human: bool) -> Iterator[None]:
    """Through the console: it keeps the lines apart from whatever moves on the screen."""
    from rich.text import Text

    from onebit.logs import Sink, as_json, for_people, logging_to, lost_record

    def emit(spans: list[Span]) -> None:
        console.err().print(Text.assemble(*spans), soft_wrap=True)

    def line(record: logging.LogRecord) -> list[Span]:
        return for_people(record) if human else [(as_json(record), "")]

    sink = Sink(emit, lambda count: line(lost_record(count)))
    try:
        with logging_to(lambda record: sink.put(line(record))):
            yield
    finally:
        sink.end()


@contextmanager
def _in_pipe(human: bool) -> Iterator[None]:
    from onebit.logs import Sink, SinkFile, as_json, for_people, logging_to, lost_record, plain, to_pipe

    def line(record: logging.LogRecord) -> str:
        return (plain(for_people(record)) if human else as_json(record)) + "\n"

    err = console.err()
    sink = Sink(to_pipe(sys.stderr.fileno()), lambda count: line(lost_record(count)))
    err.file = cast("IO[str]", SinkFile(sink))  # the start panel, too, must not wait for a reader that never reads
    try:
        with logging_to(lambda record: sink.put(line(record))):
            yield
    finally:
        sink.end()
        err.file = sys.stderr
