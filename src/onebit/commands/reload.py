"""`onebit reload`: a running server reads its config again."""

from __future__ import annotations

import os
import signal
import time
from typing import TYPE_CHECKING, Annotated, Any

import typer

from onebit.commands import console

if TYPE_CHECKING:
    from onebit.running import Running

_LOOK_S = 0.05


def reload(
    url: Annotated[
        str | None,
        typer.Option("--url", help="Which of your servers (default: the newest).", metavar="URL"),
    ] = None,
) -> None:
    """Let a running server apply its edited config, and say what became of it.

    Models that did not change are not touched; one that did is loaded anew when its running requests are done. A
    config with a mistake changes nothing. The same happens on SIGHUP, unseen.

    Example:

      onebit reload
    """
    from onebit.commands import server_state
    from onebit.errors import ConfigError

    server = server_state.find(url)
    began = time.monotonic()  # of the whole machine: the server's clock is the same
    os.kill(server.note.pid, signal.SIGHUP)
    with console.err().status(f"{server.note.url} reads its config…"):
        outcome = _outcome(server, began)
    if not outcome.get("ok"):
        raise ConfigError(f"nothing has changed: {outcome.get('message')}", hint=outcome.get("hint"))
    typer.echo(f"applied: {outcome.get('message')}")


def _outcome(server: Running, began: float) -> dict[str, Any]:
    """Wait for that of a reload which began after `began`: a model that is new may have to be fetched."""
    from onebit.errors import NoServer

    while True:
        alive = server.alive()  # before the look: its last outcome is not to be missed
        outcome = server.outcome()
        if outcome is not None and outcome.get("began", 0) >= began:
            return outcome
        if not alive:
            raise NoServer(f"{server.note.url} has ended, and did not read its config")
        time.sleep(_LOOK_S)
