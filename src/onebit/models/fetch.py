"""Models from a plain URL: one GET per file, which a second pull resumes."""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import unquote, urlsplit, urlunsplit

from onebit import paths
from onebit.errors import DownloadError
from onebit.models import store
from onebit.models.download import Download, shown
from onebit.models.report import Report
from onebit.models.shards import shard_names


@dataclass(frozen=True, slots=True)
class Source:
    """A URL taken apart, and the file it is kept in."""

    url: str  # without the fragment
    sha256: str | None  # from the fragment
    target: Path


def is_url(text: str) -> bool:
    """Is it written like a URL, of whatever scheme?"""
    return re.match(r"[A-Za-z][A-Za-z0-9+.-]*://", text) is not None


def parse_url(text: str) -> Source:
    """Read `http(s)://…/FILE.gguf[#sha256=HEX]`. Raises DownloadError.

    The name of the file comes from the URL alone: no header of the server can choose it.
    """
    try:
        parts = urlsplit(text)
        host = parts.hostname
    except ValueError as exc:
        raise DownloadError(f"{text!r} is not a URL: {exc}") from exc
    if parts.scheme.lower() not in ("http", "https") or not host:
        raise DownloadError(
            f"{text!r} is not a web address onebit can fetch",
            hint="http:// and https:// addresses are, and hf:OWNER/REPO:QUANT",
        )
    sha256 = None
    if parts.fragment:
        match = re.fullmatch(r"sha256=([0-9a-fA-F]{64})", parts.fragment)
        if match is None:
            raise DownloadError(
                f"{parts.fragment!r} after the # is not a checksum",
                hint="write #sha256= and 64 hex digits, or nothing",
            )
        sha256 = match[1].lower()
    url = urlunsplit(parts._replace(fragment=""))
    name = re.sub(r"[^A-Za-z0-9._+-]+", "_", unquote(parts.path).replace("\\", "/").rpartition("/")[2])
    name = (name.lstrip(".").removesuffix(".gguf")[:150] or "model") + ".gguf"
    # all parts of a split model go to the folder of the first
    first = urlunsplit(parts._replace(fragment="", path=shard_names(parts.path)[0]))
    folder = f"{re.sub(r'[^a-z0-9.-]+', '_', host.lower())}-{hashlib.sha256(first.encode()).hexdigest()[:8]}"
    return Source(url, sha256, paths.models_dir() / folder / name)


def local_url_model(source: Source) -> Path | None:
    """Where the model is, if it was pulled before (and checked, if a checksum is asked for); of a split one
    the first part.
    """
    files = [source.target.with_name(name) for name in shard_names(source.target.name)]
    if not all(file.is_file() for file in files):
        return None
    return files[0] if source.sha256 in (None, _checked_sha256(source.target)) else None


def pull_url(source: Source, report: Report) -> Path:
    """Download the file, or all parts of a split one. Raises DownloadError; what came so far is kept."""
    parts = urlsplit(source.url)
    for path in shard_names(parts.path):
        url = urlunsplit(parts._replace(path=path))
        # a checksum in the URL is that of the part it names
        _pull_file(source if url == source.url else parse_url(url), report)
    return source.target.with_name(shard_names(source.target.name)[0])


def _pull_file(source: Source, report: Report) -> None:
    target = source.target
    with store.disk_errors(target):
        target.parent.mkdir(parents=True, exist_ok=True)
        with store.locked(target, report):
            if target.is_file():
                _check(source, target, report, "`onebit models rm` it to fetch it again")
                return
            download = Download(source.url, target, report)
            download.run()
            try:
                _check(source, download.part, report, "it was deleted; check the checksum")
            except DownloadError:
                download.forget()
                raise
            store.install(download.part, target)
            download.forget()


def _check(source: Source, file: Path, report: Report, hint: str) -> None:
    """Compare with the checksum in the URL, and note that it was right: hashing 40 GB takes a minute."""
    if source.sha256 in (None, _checked_sha256(source.target)):
        return
    report(f"Verifying {source.target.name}", 0, None)
    digest = store.sha256_of(file)
    if digest != source.sha256:
        raise DownloadError(f"{shown(source.url)} has the sha256 {digest}, expected {source.sha256}", hint=hint)
    _note(source.target).write_text(digest)


def _note(target: Path) -> Path:
    return target.with_name(f".{target.name}.sha256")


def _checked_sha256(target: Path) -> str | None:
    note = _note(target)
    return note.read_text() if target.is_file() and note.is_file() else None
