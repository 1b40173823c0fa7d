"""`onebit status` and `onebit top`: how a running server is, once or all the time."""

from __future__ import annotations

import json
import os
import select
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Any

import typer

from onebit.commands import console

if TYPE_CHECKING:
    from rich.console import RenderableType

_EVERY_S = 1.0
_PIPE_WIDTH = 400  # columns: what is piped on must not be wrapped at 80

Url = Annotated[
    str | None,
    typer.Option("--url", help="The server's address (default: your newest running server's).", metavar="URL"),
]


def status(
    url: Url = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON, for programs.")] = False,
) -> None:
    """Show a running server: its models, what is in memory, slots in use, and who waits, by tier.

    A server with API keys wants one of them in ONEBIT_API_KEY.

    Examples:

      onebit status

      onebit status --url http://gpu-box:8080 --json
    """
    from onebit.commands import server_state
    from onebit.commands.status_view import view

    base = server_state.address(url)
    state = server_state.fetch(base)
    if as_json:
        typer.echo(json.dumps({"url": base, **state}, indent=2))
        return
    out = console.out()
    if not out.is_terminal:
        from rich.console import Console

        out = Console(width=_PIPE_WIDTH, highlight=False)
    out.print(view(base, state, screen=out.is_terminal))


def top(url: Url = None) -> None:
    """Show a running server live, once a second. q or Ctrl-C ends it.

    It goes on when the server is started again.

    Example:

      onebit top
    """
    from rich.live import Live

    from onebit.errors import NoServer

    out = console.out()
    if not out.is_terminal:
        raise NoServer("onebit top needs a terminal to draw on", hint="onebit status prints the same once")
    latest: dict[str, Any] = {}
    with _keys() as pressed, Live(console=out, screen=True, auto_refresh=False) as live:
        while True:
            live.update(_screen(url, latest), refresh=True)
            try:
                if pressed(_EVERY_S):
                    return
            except KeyboardInterrupt:
                return


def _screen(url: str | None, latest: dict[str, Any]) -> RenderableType:
    """The present state; while there is none, the reason and the last one. `latest` keeps it."""
    from rich.console import Group
    from rich.text import Text

    from onebit.commands import server_state
    from onebit.commands.status_view import view
    from onebit.errors import NoServer

    note: RenderableType = Group()  # nothing
    try:
        base = server_state.address(url)  # asked anew: one that was started again may have another port
        latest.update(base=base, state=server_state.fetch(base), at=time.strftime("%H:%M:%S"))
    except NoServer as error:
        note = Text(f"{error.message}; trying again\n", style="red")
    if not latest:
        return Group(note, Text("q ends", style="dim"))
    head = Text(f"as of {latest['at']}, q ends\n", style="dim")  # first: a small terminal cuts off what is last
    return Group(note, head, view(latest["base"], latest["state"], screen=True))


@contextmanager
def _keys() -> Iterator[Any]:
    """A function that waits up to some seconds for a key; true: it was q. Keys come unbuffered and are not shown."""
    if not sys.stdin.isatty():

        def sleep(seconds: float) -> bool:
            time.sleep(seconds)
            return False

        yield sleep
        return
    import termios
    import tty

    fd = sys.stdin.fileno()
    before = termios.tcgetattr(fd)

    def pressed(seconds: float) -> bool:
        end = time.monotonic() + seconds
        while (left := end - time.monotonic()) > 0:
            if select.select([fd], [], [], left)[0] and os.read(fd, 1) in (b"q", b"Q", b""):
                return True
        return False

    tty.setcbreak(fd)
    try:
        yield pressed
    finally:
        termios.tcsetattr(fd, termios.TCSADRAIN, before)
