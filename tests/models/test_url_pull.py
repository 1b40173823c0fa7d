"""Pulling from a real web server: whole, resumed, cut short, wrong, and twice at once."""

from __future__ import annotations

import errno
import hashlib
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from onebit import paths
from onebit.errors import DownloadError, OnebitError
from onebit.models import store
from onebit.models.fetch import parse_url
from onebit.models.pull import locate, pull, resolve
from onebit.models.report import silent
from tests.models.web import Served, WebServer
from tests.support.gguf_files import header, model_metadata, write_gguf


@pytest.fixture
def body(tmp_path: Path) -> bytes:
    """A model of some 200 kB: more than arrives in one piece."""
    metadata = model_metadata()
    tensors = {"token_embd.weight": (24, 16), "x": (100, 512)}
    return write_gguf(tmp_path / "source.gguf", arch="llama", metadata=metadata, tensors=tensors).read_bytes()


def _files(folder: Path) -> list[str]:
    """What lies in the models folder, but for the locks."""
    return sorted(p.name for p in folder.rglob("*") if p.is_file() and not p.name.endswith(".lock"))


def test_a_file_is_fetched_once(web: WebServer, models_dir: Path, body: bytes) -> None:
    web.files["/a/model.gguf"] = Served(body)
    seen: list[tuple[str, int, int | None]] = []
    path = pull(web.url("/a/model.gguf"), lambda *args: seen.append(args))
    assert path.read_bytes() == body
    assert path.is_relative_to(models_dir)
    assert seen[-1] == ("Downloading model.gguf", len(body), len(body))
    assert pull(web.url("/a/model.gguf"), silent) == resolve(web.url("/a/model.gguf"), silent) == path
    assert resolve("model", silent) == path
    assert len(web.seen) == 1
    assert _files(models_dir) == ["model.gguf"]


def _break_off(web: WebServer, served: Served) -> str:
    """Pull a file whose connection breaks; it must say that a second pull goes on."""
    url = web.url("/model.gguf")
    web.files["/model.gguf"] = served
    with pytest.raises(DownloadError, match="connection failed") as caught:
        pull(url, silent)
    assert "run the same command again" in (caught.value.hint or "")
    assert locate(url) is None
    served.cut_after = None
    return url


def test_a_broken_download_is_resumed(web: WebServer, models_dir: Path, body: bytes) -> None:
    url = _break_off(web, Served(body, cut_after=100_000))
    assert pull(url, silent).read_bytes() == body
    assert web.seen[1][1]["Range"] == "bytes=65536-"
    assert web.seen[1][1]["If-Range"] == '"v1"'
    assert _files(models_dir) == ["model.gguf"]


def test_last_modified_marks_a_version_too(web: WebServer, models_dir: Path, body: bytes) -> None:
    date = "Tue, 04 Nov 2025 10:00:00 GMT"
    url = _break_off(web, Served(body, cut_after=100_000, headers={"ETag": 'W/"weak"', "Last-Modified": date}))
    assert pull(url, silent).read_bytes() == body
    assert web.seen[1][1]["If-Range"] == date


def _changed(served: Served) -> None:
    served.body = header() + bytes(100)
    served.headers = {"ETag": '"v2"'}


def _no_ranges(served: Served) -> None:
    served.ranges = False


def _lying(served: Served) -> None:
    served.lie_about_range = True


@pytest.mark.parametrize("change", [_changed, _no_ranges, _lying])
def test_what_cannot_be_resumed_begins_again(
    web: WebServer, models_dir: Path, body: bytes, change: Callable[[Served], None]
) -> None:
    served = Served(body, cut_after=100_000)
    url = _break_off(web, served)
    change(served)
    assert pull(url, silent).read_bytes() == served.body


def test_without_a_version_nothing_is_resumed(web: WebServer, models_dir: Path, body: bytes) -> None:
    url = _break_off(web, Served(body, cut_after=100_000, headers={}))
    assert pull(url, silent).read_bytes() == body
    assert web.seen[1][1]["Range"] is None


def test_a_whole_part_that_was_not_renamed_is_not_fetched_again(
    web: WebServer, models_dir: Path, body: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    def killed(*args: object) -> None:
        raise KeyboardInterrupt

    web.files["/model.gguf"] = Served(body)
    with monkeypatch.context() as patch:
        patch.setattr(store, "install", killed)
        with pytest.raises(KeyboardInterrupt):
            pull(web.url("/model.gguf"), silent)
    web.files["/model.gguf"].cut_after = 0  # not one byte more is needed
    assert pull(web.url("/model.gguf"), silent).read_bytes() == body


def test_checksums(web: WebServer, models_dir: Path, body: bytes) -> None:
    web.files["/model.gguf"] = Served(body)
    url, right, wrong = web.url("/model.gguf"), hashlib.sha256(body).hexdigest(), "0" * 64
    with pytest.raises(DownloadError, match=f"{right}, expected {wrong}"):
        pull(f"{url}#sha256={wrong}", silent)
    assert _files(models_dir) == []  # nothing to resume from
    path = pull(f"{url}#sha256={right.upper()}", silent)
    assert path.read_bytes() == body
    assert pull(f"{url}#sha256={right}", silent) == path
    with pytest.raises(DownloadError, match="expected") as caught:
        pull(f"{url}#sha256={wrong}", silent)
    assert "onebit models rm" in (caught.value.hint or "")
    assert path.exists()
    assert len(web.seen) == 2


@pytest.mark.parametrize(
    ("content", "words"),
    [(b"<!DOCTYPE html><html>Please log in</html>" * 50, "web page"), (b"", "empty"), (b"short", "starts with")],
)
def test_what_is_no_model_is_not_kept(web: WebServer, models_dir: Path, content: bytes, words: str) -> None:
    web.files["/model.gguf"] = Served(content)
    with pytest.raises(DownloadError, match=words):
        pull(web.url("/model.gguf"), silent)
    assert _files(models_dir) == []


def test_a_web_page_is_refused_before_all_of_it_came(web: WebServer, models_dir: Path) -> None:
    web.files["/model.gguf"] = Served(b"<html>" + bytes(50 << 20), cut_after=2 << 20)
    with pytest.raises(DownloadError, match="web page"):
        pull(web.url("/model.gguf"), silent)


def test_a_file_of_unknown_length_is_checked_by_its_header(web: WebServer, models_dir: Path, body: bytes) -> None:
    served = Served(body, say_length=False, cut_after=len(body) - 40)
    web.files["/model.gguf"] = served
    with pytest.raises(DownloadError, match=r"not whole.*truncated"):
        pull(web.url("/model.gguf"), silent)
    served.cut_after = None
    assert pull(web.url("/model.gguf"), silent).read_bytes() == body


@pytest.mark.parametrize(
    ("status", "words"), [(401, "not public"), (403, "not public"), (404, "check the address"), (500, "later")]
)
def test_refusals(web: WebServer, models_dir: Path, status: int, words: str) -> None:
    web.files["/model.gguf"] = Served(b"no", status=status)
    with pytest.raises(DownloadError, match=str(status)) as caught:
        pull(web.url("/model.gguf"), silent)
    assert words in (caught.value.hint or "")


def test_nobody_listens(web: WebServer, models_dir: Path) -> None:
    url = web.url("/model.gguf").replace("127.0.0.1", "127.0.0.2")  # bound to .1 only
    with pytest.raises(DownloadError, match="refused") as caught:
        pull(url, silent)
    assert "network" in (caught.value.hint or "")


def test_redirects_keep_the_name_of_the_address(web: WebServer, models_dir: Path, body: bytes) -> None:
    web.files["/model.gguf"] = Served(b"", status=302, headers={"Location": "/cdn/0123"})
    web.files["/cdn/0123"] = Served(body)
    path = pull(web.url("/model.gguf"), silent)
    assert (path.name, path.read_bytes()) == ("model.gguf", body)


def test_a_full_disk(web: WebServer, models_dir: Path, body: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store, "free_bytes", lambda _: 1000)
    web.files["/model.gguf"] = Served(body)
    with pytest.raises(DownloadError, match="0 MB free") as caught:
        pull(web.url("/model.gguf"), silent)
    assert "XDG_CACHE_HOME" in (caught.value.hint or "")


@pytest.mark.parametrize(("number", "words"), [(errno.ENOSPC, "disk is full"), (errno.EACCES, "permissions")])
def test_what_the_disk_refuses(tmp_path: Path, number: int, words: str) -> None:
    with pytest.raises(DownloadError) as caught, store.disk_errors(tmp_path):
        raise OSError(number, "refused", str(tmp_path / "x"))
    assert words in f"{caught.value.message} {caught.value.hint}"
    assert str(tmp_path / "x") in caught.value.message


def test_a_cache_that_is_no_folder(web: WebServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    with pytest.raises(DownloadError, match="cannot write"):
        pull(web.url("/model.gguf"), silent)


def test_of_two_pulls_at_once_one_does_the_work(web: WebServer, models_dir: Path, body: bytes) -> None:
    go_on = threading.Event()
    web.files["/model.gguf"] = Served(body, open=go_on)
    phases: list[str] = []

    def report(phase: str, done: int, total: int | None, /) -> None:
        phases.append(phase)
        if phase.startswith("Waiting"):  # the other one is inside, and the server may answer it
            go_on.set()

    with ThreadPoolExecutor(2) as pool:
        found = list(pool.map(lambda _: pull(web.url("/model.gguf"), report), range(2)))
    assert found[0] == found[1]
    assert found[0].read_bytes() == body
    assert len(web.seen) == 1
    assert "Waiting for another pull of model.gguf" in phases


def test_a_split_model_is_fetched_whole(web: WebServer, models_dir: Path, body: bytes) -> None:
    names = [f"/m-{i:05d}-of-00003.gguf" for i in (1, 2, 3)]
    for number, name in enumerate(names):
        web.files[name] = Served(body + bytes([number]))
    path = pull(web.url(names[1]), silent)  # whichever part is named
    assert path.name == "m-00001-of-00003.gguf"
    assert [path.with_name(n[1:]).read_bytes()[-1] for n in names] == [0, 1, 2]
    assert store.stored() == [path]
    assert pull(web.url(names[0]), silent) == path
    assert len(web.seen) == 3
    store.remove(path)
    assert _files(models_dir) == []


def test_secrets_stay_out_of_messages(web: WebServer, models_dir: Path) -> None:
    url = web.url("/model.gguf?signature=SECRET1").replace("//", "//user:SECRET2@")
    with pytest.raises(DownloadError, match="404") as caught:
        pull(url, silent)
    assert "SECRET" not in f"{caught.value.message} {caught.value.hint}"


@pytest.mark.parametrize(
    ("url", "name"),
    [
        ("http://h/a/model.gguf?download=true", "model.gguf"),
        ("http://h/a/model", "model.gguf"),
        ("http://h", "model.gguf"),
        ("http://h/..%2f..%2fetc%2fpasswd", "passwd.gguf"),
        ("http://h/a/..", "model.gguf"),
        ("http://h/%2e%2e%5cx.gguf", "x.gguf"),
        ("http://h/.hidden.gguf", "hidden.gguf"),
        ("http://h/my%20model%00%0a.gguf", "my_model_.gguf"),
        (f"http://h/{'x' * 500}.gguf", "x" * 150 + ".gguf"),
    ],
)
def test_names_from_urls(models_dir: Path, url: str, name: str) -> None:
    assert parse_url(url).target.name == name


@given(st.text())
def test_no_url_leads_out_of_the_models_folder(path: str) -> None:
    try:
        target = parse_url(f"https://example.com/{path}").target
    except OnebitError:
        return
    root = paths.models_dir()
    assert target.resolve().parent.parent == root.resolve()
    assert target.name == target.name.strip()
    assert not target.name.startswith(".")


def test_different_addresses_are_different_files(models_dir: Path) -> None:
    urls = ["http://h/a/m.gguf", "http://h/b/m.gguf", "http://h/a/m.gguf?v=2", "https://h/a/m.gguf"]
    assert len({parse_url(url).target for url in urls}) == len(urls)


@pytest.mark.parametrize("url", ["ftp://h/m.gguf", "file:///etc/passwd", "http://", "http://[::1/m.gguf"])
def test_addresses_that_are_not_fetched(models_dir: Path, url: str) -> None:
    with pytest.raises(DownloadError):
        pull(url, silent)


@pytest.mark.parametrize("fragment", ["sha256=12", "md5=" + "0" * 32, "top"])
def test_fragments_that_are_no_checksum(models_dir: Path, fragment: str) -> None:
    with pytest.raises(DownloadError, match="checksum"):
        pull(f"http://h/m.gguf#{fragment}", silent)
