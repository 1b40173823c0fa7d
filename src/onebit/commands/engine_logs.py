"""`onebit logs`: what a model's engines print."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Annotated

import typer

from onebit.commands import console

if TYPE_CHECKING:
    from onebit.engines.log_files import EngineLog, Follower

_LOOK_S = 0.25


def _complete(incomplete: str) -> list[str]:
    from onebit.engines.log_files import engine_logs

    return sorted({log.model for log in engine_logs() if log.model.startswith(incomplete)})


def logs(
    model: Annotated[
        str, typer.Argument(metavar="MODEL", help="The model's name, as clients use it.", autocompletion=_complete)
    ],
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on with what comes; Ctrl-C ends.")] = False,
    engine: Annotated[
        str | None, typer.Option("--engine", help="One of its engines only (cpu, vulkan, cpu-2…).", metavar="NAME")
    ] = None,
    last: Annotated[int, typer.Option("--last", "-n", min=0, help="Begin with so many lines.", metavar="N")] = 50,
) -> None:
    """Show the log of a model's engines, whether the server still runs or not.

    Requests are not in it: those are in the server's own log. Of several engines each line names its own.

    Examples:

      onebit logs demo

      onebit logs chat -f --engine vulkan
    """
    from onebit.errors import OnebitError

    chosen = _chosen(model, engine)
    try:
        _show(chosen, follow, last)
    except BrokenPipeError:
        raise
    except OSError as error:
        raise OnebitError(f"cannot read {error.filename or chosen[0].path}: {error.strerror}") from None


def _show(chosen: list[EngineLog], follow: bool, last: int) -> None:
    from onebit.engines.log_files import Follower

    followers = [(log.engine if len(chosen) > 1 else "", Follower(log.path, last)) for log in chosen]
    while True:
        for name, follower in followers:
            _print_new(name, follower)
        if not follow:
            break
        time.sleep(_LOOK_S)
    for name, follower in followers:
        if rest := follower.rest():
            _print(name, rest)


def _chosen(model: str, engine: str | None) -> list[EngineLog]:
    from onebit import paths
    from onebit.engines.log_files import engine_logs
    from onebit.errors import UnknownModel

    there = engine_logs()
    of_model = [log for log in there if log.of(model)]
    if not of_model:
        names = ", ".join(sorted({log.model for log in there}))
        raise UnknownModel(
            f"no engine of a model {model!r} has a log in {paths.log_dir()}",
            hint=f"there are: {names}" if names else "a model has one when it was loaded for the first time",
        )
    chosen = [log for log in of_model if engine in (None, log.engine)]
    if not chosen:
        names = ", ".join(log.engine for log in of_model)
        raise UnknownModel(f"{model} has no engine {engine!r} with a log", hint=f"there are: {names}")
    return chosen


def _print_new(name: str, follower: Follower) -> None:
    for line in follower.lines():
        _print(name, line)


def _print(name: str, line: str) -> None:
    """As it stands, but without what could steer a terminal: prompts and file names may end up in a log."""
    if console.out().is_terminal:
        line = "".join(c for c in line if c.isprintable() or c == "\t")
    typer.echo(f"{name} | {line}" if name else line)
