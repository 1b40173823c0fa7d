"""A web server that serves files as told: with and without ranges, marks, lengths, or cut short."""

from __future__ import annotations

import re
import threading
from dataclasses import dataclass, field
from email.message import Message
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


@dataclass
class Served:
    """One path, and how it is answered."""

    body: bytes
    status: int = 200
    headers: dict[str, str] = field(default_factory=lambda: {"ETag": '"v1"'})
    ranges: bool = True
    say_length: bool = True
    cut_after: int | None = None  # bytes of the body after which the connection breaks
    lie_about_range: bool = False
    open: threading.Event | None = None  # answer only when it is set


class WebServer(ThreadingHTTPServer):
    """`files` by path; `seen` has the headers of all requests, in order."""

    daemon_threads = False
    block_on_close = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.files: dict[str, Served] = {}
        self.seen: list[tuple[str, Message]] = []

    def url(self, path: str) -> str:
        return f"http://127.0.0.1:{self.server_port}{path}"


class _Handler(BaseHTTPRequestHandler):
    server: WebServer

    def log_message(self, format: str, *args: object) -> None:
        pass

    def do_GET(self) -> None:
        path = self.path.partition("?")[0]
        self.server.seen.append((path, self.headers))
        served = self.server.files.get(path)
        if served is None:
            self.send_error(404)
            return
        if served.open is not None:
            served.open.wait()
        status, headers, body = self._answer(served)
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        if served.say_length:
            self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body[: served.cut_after])

    def _answer(self, served: Served) -> tuple[int, dict[str, str], bytes]:
        size = len(served.body)
        wanted = re.fullmatch(r"bytes=(\d+)-", self.headers.get("Range", ""))
        versions = (served.headers.get("ETag"), served.headers.get("Last-Modified"))
        if not served.ranges or wanted is None or self.headers.get("If-Range") not in versions:
            return served.status, served.headers, served.body
        start = int(wanted[1])
        if start >= size:
            return 416, {"Content-Range": f"bytes */{size}"}, b""
        said = start - 1 if served.lie_about_range else start
        return 206, {**served.headers, "Content-Range": f"bytes {said}-{size - 1}/{size}"}, served.body[start:]
