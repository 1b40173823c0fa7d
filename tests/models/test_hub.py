"""The hub: choosing files, which is pure, and the calls into its library, which is replaced here."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest

from onebit.errors import DownloadError
from onebit.models.hub import choose_files, parse_hub
from onebit.models.pull import locate, pull
from onebit.models.report import silent

_REPO = [
    ".gitattributes",
    "README.md",
    "mmproj-F16.gguf",
    "mtp-model.gguf",
    "model-F16.gguf",
    "model-Q4_K.gguf",
    "model-Q4_K_M.gguf",
    "model-q8_0.gguf",
    "UD/model-UD-Q8_0.gguf",
    "big/model-IQ4_XS-00001-of-00002.gguf",
    "big/model-IQ4_XS-00002-of-00002.gguf",
]


@pytest.mark.parametrize(
    ("quant", "files"),
    [
        (None, ("model-Q4_K_M.gguf",)),
        ("q4_k_m", ("model-Q4_K_M.gguf",)),
        ("Q4_K", ("model-Q4_K.gguf",)),
        ("F16", ("model-F16.gguf",)),  # not the projector
        ("model-q8_0.gguf", ("model-q8_0.gguf",)),
        ("UD-Q8_0", ("UD/model-UD-Q8_0.gguf",)),
        ("UD/model-UD-Q8_0.gguf", ("UD/model-UD-Q8_0.gguf",)),
        ("IQ4_XS", ("big/model-IQ4_XS-00001-of-00002.gguf", "big/model-IQ4_XS-00002-of-00002.gguf")),
    ],
)
def test_choosing(quant: str | None, files: tuple[str, ...]) -> None:
    assert choose_files(_REPO, quant, "o/r") == files


def test_the_only_model_needs_no_name() -> None:
    assert choose_files(["README.md", "only-Q2_K.gguf"], None, "o/r") == ("only-Q2_K.gguf",)


@pytest.mark.parametrize(
    ("names", "quant", "words", "hint"),
    [
        (_REPO, "Q8_0", "2 models named Q8_0", "UD/model-UD-Q8_0.gguf, model-q8_0.gguf"),
        (_REPO, "Q5_K", "no model named Q5_K", "model-F16.gguf"),
        (["a-Q2_K.gguf", "b-Q3_K.gguf"], None, "no model named Q4_K_M", "a-Q2_K.gguf, b-Q3_K.gguf"),
        (["only-Q2_K.gguf"], "Q4_0", "no model named Q4_0", "only-Q2_K.gguf"),
        (["README.md"], None, "holds no GGUF", "-GGUF"),
        (["m-Q4_0-00001-of-00002.gguf"], "Q4_0", "lacks 1 of the 2 parts", ""),
    ],
)
def test_no_choice(names: list[str], quant: str | None, words: str, hint: str) -> None:
    with pytest.raises(DownloadError, match=words) as caught:
        choose_files(names, quant, "o/r")
    assert hint in (caught.value.hint or "")


def test_parsing() -> None:
    assert (parse_hub("hf:o/r").repo, parse_hub("hf:o/r").quant) == ("o/r", None)
    assert parse_hub("hf:o-1/r.x:Q4_0").quant == "Q4_0"


@pytest.mark.parametrize("text", ["hf:", "hf:o", "hf:o/r/x", "hf:../r", "hf:o/..", "hf:o/r:", "hf:o/r:a b"])
def test_what_names_no_repository(text: str) -> None:
    with pytest.raises(DownloadError, match="names no model"):
        parse_hub(text)


def test_without_the_extra(models_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)  # makes the import fail
    with pytest.raises(DownloadError, match="huggingface_hub") as caught:
        pull("hf:o/r", silent)
    assert "onebit[hub]" in (caught.value.hint or "")


class _Library(ModuleType):
    """As much of huggingface_hub as is called, with a repository in memory."""

    def __init__(self) -> None:
        super().__init__("huggingface_hub")
        self.files: dict[str, bytes] = {}
        self.fail: type[Exception] | None = None
        self.downloads: list[str] = []
        self.errors = ModuleType("huggingface_hub.errors")
        for name in ("HTTPError", "HFValidationError", "LocalEntryNotFoundError"):
            setattr(self.errors, name, type(name, (Exception,), {}))
        http_error = self.errors.HTTPError
        self.errors.RepositoryNotFoundError = type("RepositoryNotFoundError", (http_error,), {})  # type: ignore[attr-defined]
        self.errors.GatedRepoError = type("GatedRepoError", (self.errors.RepositoryNotFoundError,), {})  # type: ignore[attr-defined]

    def HfApi(self) -> _Library:
        return self

    def model_info(self, repo: str, *, files_metadata: bool) -> SimpleNamespace:
        if self.fail:
            raise self.fail("first line\nsecond line")
        return SimpleNamespace(siblings=[SimpleNamespace(rfilename=n, size=len(b)) for n, b in self.files.items()])

    def hf_hub_download(self, repo: str, name: str, *, local_dir: Path, tqdm_class: type) -> str:
        self.downloads.append(name)
        content = self.files[name]
        with tqdm_class(total=len(content), desc=name) as bar:
            bar.update(len(content))
        (local_dir / name).parent.mkdir(parents=True, exist_ok=True)
        (local_dir / name).write_bytes(content)
        return str(local_dir / name)


@pytest.fixture
def library(models_dir: Path, monkeypatch: pytest.MonkeyPatch) -> _Library:
    library = _Library()
    monkeypatch.setitem(sys.modules, "huggingface_hub", library)
    monkeypatch.setitem(sys.modules, "huggingface_hub.errors", library.errors)
    return library


def test_a_pull_is_reported_and_done_once(library: _Library, models_dir: Path) -> None:
    library.files = dict.fromkeys(_REPO, b"x" * 10)
    seen: list[tuple[str, int, int | None]] = []
    path = pull("hf:o/r:IQ4_XS", lambda *args: seen.append(args))
    assert path == models_dir / "hf/o/r/big/model-IQ4_XS-00001-of-00002.gguf"
    assert seen[-1] == ("Downloading model-IQ4_XS-00002-of-00002.gguf", 10, 10)
    assert pull("hf:o/r:IQ4_XS", silent) == path
    assert len(library.downloads) == 2
    assert locate("hf:o/r") is None  # another file of the repository was not pulled
    path.unlink()
    assert locate("hf:o/r:IQ4_XS") is None


@pytest.mark.parametrize(
    ("error", "words"),
    [
        ("GatedRepoError", "is gated"),
        ("RepositoryNotFoundError", "does not exist"),
        ("HTTPError", "could not be fetched: first line$"),
    ],
)
def test_errors_of_the_library(library: _Library, error: str, words: str) -> None:
    library.fail = getattr(library.errors, error)
    with pytest.raises(DownloadError, match=words):
        pull("hf:o/r", silent)
