"""The address to listen on, bound before anything slow is started."""

from __future__ import annotations

import socket
from dataclasses import dataclass

from onebit.errors import PortTaken

_BACKLOG = 2048


@dataclass(frozen=True, slots=True)
class Listener:
    """A bound address."""

    socket: socket.socket
    url: str


def listen(host: str, port: int) -> Listener:
    """Bind the address, before anything slow is started. Raises PortTaken."""
    try:
        family, kind, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[
            0
        ]
        sock = socket.socket(family, kind)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        _notice_vanished(sock)
        sock.bind(address)
        sock.listen(_BACKLOG)
    except socket.gaierror as error:
        raise PortTaken(
            f"--host {host}: {error.strerror}", hint="use 127.0.0.1, 0.0.0.0 or an address of this machine"
        ) from None
    except OSError as error:
        raise PortTaken(
            f"cannot listen on {host}:{port}: {error.strerror}",
            hint=f"another program may use it; choose another with --port {port + 1 if port < 65535 else 0}",
        ) from None
    shown = f"[{host}]" if ":" in host else host
    return Listener(sock, f"http://{shown}:{sock.getsockname()[1]}")


def _notice_vanished(sock: socket.socket) -> None:
    """Connections inherit this: a client that is gone without a word (a laptop asleep, a cable) is one after a minute.

    Otherwise it would hold its slot for as long as TCP waits, hours when nothing is sent to it.
    """
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in (("TCP_KEEPIDLE", 30), ("TCP_KEEPINTVL", 10), ("TCP_KEEPCNT", 3), ("TCP_USER_TIMEOUT", 60_000)):
        if hasattr(socket, name):  # Linux has them all
            sock.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
