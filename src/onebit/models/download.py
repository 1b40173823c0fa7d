"""One GET, resumed by the next one: a file on its way from a web server."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit, urlunsplit

from onebit import __version__
from onebit.errors import DownloadError, ModelFileError
from onebit.models import store
from onebit.models.gguf_file import inspect
from onebit.models.gguf_open import explain_magic
from onebit.models.report import Report
from onebit.models.shards import shard_names

if TYPE_CHECKING:
    import requests

_CHUNK = 1 << 16  # a chunk that breaks off in its middle is lost
_TIMEOUTS = (15.0, 60.0)  # seconds: to connect, and without a byte
_RANGE = re.compile(r"bytes (\d+)-\d+/(\d+)")
_RESUMES = "run the same command again: it goes on where this one stopped"
_BROWSER = "open the address in a browser, and use the link of the file itself (…/resolve/…, not …/blob/…)"


def shown(url: str) -> str:
    """A URL for messages: passwords and signed queries stay out of them."""
    parts = urlsplit(url)
    return urlunsplit((parts.scheme, parts.netloc.rpartition("@")[2], parts.path, "", ""))


class _Restart(Exception):
    """The server does not go on where we stopped: begin again."""


class Download:
    """One file on its way into `.NAME.part`, with the server's mark of its version beside it."""

    def __init__(self, url: str, target: Path, report: Report) -> None:
        self.url = url
        self.name = target.name
        self.report = report
        self.part = target.with_name(f".{target.name}.part")
        self.mark = target.with_name(f".{target.name}.version")

    def forget(self) -> None:
        """Delete what came so far."""
        self.part.unlink(missing_ok=True)
        self.mark.unlink(missing_ok=True)

    def run(self) -> None:
        """Fetch until `part` is whole. Raises DownloadError; what came so far is kept for the next one."""
        try:
            self._get()
        except _Restart:
            self.forget()
            self._get()

    def _get(self) -> None:
        import requests

        have, version = 0, ""
        if self.part.is_file() and self.mark.is_file():
            have, version = self.part.stat().st_size, self.mark.read_text()
        # identity: Content-Length and ranges must count the file's own bytes
        headers = {"Accept-Encoding": "identity", "User-Agent": f"onebit/{__version__}"}
        if have:
            # the server goes on only if it still has this version, else it sends the whole
            headers |= {"Range": f"bytes={have}-", "If-Range": version}
        self.report(f"Connecting to {urlsplit(self.url).hostname}", 0, None)
        try:
            with (
                requests.Session() as session,
                session.get(self.url, headers=headers, stream=True, timeout=_TIMEOUTS) as response,
            ):
                self._receive(response, have)
        except requests.RequestException as exc:
            got = self.part.stat().st_size if self.part.is_file() else 0
            so_far = f" after {got:,} bytes" if got else ""
            raise DownloadError(
                f"{shown(self.url)}: the connection failed{so_far}: {_cause(exc)}",
                hint=_RESUMES if got else "check the address and the network (proxies: HTTPS_PROXY), and try again",
            ) from exc

    def _receive(self, response: requests.Response, have: int) -> None:
        if have and response.headers.get("Content-Range", "") == f"bytes */{have}":
            return  # 416: this version has no byte more than we have
        have, total = self._position(response, have)
        if total is not None:
            store.require_space(self.part.parent, total - have, f"downloading {self.name}")
        chunks: Iterator[bytes] = response.iter_content(_CHUNK)
        if not have:
            self._note_version(response)
            head = b""
            for chunk in chunks:
                head += chunk
                if len(head) >= 64:
                    break
            self._check_magic(head)
            self.part.write_bytes(head)
            have = len(head)
        phase = f"Downloading {self.name}"
        self.report(phase, have, total)
        with self.part.open("ab") as file:
            for chunk in chunks:
                file.write(chunk)
                have += len(chunk)
                self.report(phase, have, total)
        self._check_whole(have, total)

    def _position(self, response: requests.Response, have: int) -> tuple[int, int | None]:
        """Where the answer's bytes begin, and how many the whole file has (None: the server does not say)."""
        status = response.status_code
        if have and (status == 416 or response.headers.get("Content-Encoding", "identity") != "identity"):
            raise _Restart
        if have and status == 206:
            match = _RANGE.fullmatch(response.headers.get("Content-Range", ""))
            if match is None or int(match[1]) != have:
                raise _Restart
            return have, int(match[2])
        if status != 200:
            raise DownloadError(f"{shown(self.url)}: the server answers {status} {response.reason}", hint=_why(status))
        if response.headers.get("Content-Encoding", "identity") != "identity":
            raise DownloadError(f"{shown(self.url)}: the server sends it compressed though asked not to")
        length = response.headers.get("Content-Length", "")
        return 0, int(length) if length.isascii() and length.isdigit() else None

    def _note_version(self, response: requests.Response) -> None:
        etag = response.headers.get("ETag", "")
        # If-Range takes no weak tags; without a mark a second pull begins anew
        version = response.headers.get("Last-Modified", "") if etag.startswith("W/") or not etag else etag
        if version:
            self.mark.write_text(version)
        else:
            self.mark.unlink(missing_ok=True)

    def _check_magic(self, head: bytes) -> None:
        if not head.startswith(b"GGUF"):
            self.forget()
            what = explain_magic(head) if head else "the answer is empty"
            raise DownloadError(
                f"{shown(self.url)} is not a GGUF file: {what}",
                hint=_BROWSER,
            )

    def _check_whole(self, have: int, total: int | None) -> None:
        if total is not None and have != total:
            raise DownloadError(f"{shown(self.url)}: {have:,} of {total:,} bytes came", hint=_RESUMES)
        if total is None and shard_names(self.name) == (self.name,):
            # nobody said how long the file is: its own header does
            try:
                inspect(self.part)
            except ModelFileError as exc:
                self.forget()
                raise DownloadError(f"{shown(self.url)}: what came is not whole: {exc.message}") from exc


def _why(status: int) -> str:
    if status in (401, 403):
        return "the file is not public; download it with an account and pass the file with -m"
    if status in (404, 410):
        return "check the address"
    return "try again later"


def _cause(exc: BaseException) -> str:
    """The innermost reason: requests wraps urllib3's errors, which wrap the system's."""
    seen: BaseException = exc
    while (inner := seen.__cause__ or seen.__context__) is not None:
        seen = inner
    text = str(seen).strip() or type(seen).__name__
    return text[:200]
