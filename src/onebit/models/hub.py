"""Models from the Hugging Face hub, `hf:OWNER/REPO[:QUANT]`, through its own library (the extra `hub`).

The library resumes, verifies and renames. What to fetch is chosen here, by a pure function. Tried with version
1.33 of the library against a server that imitates the hub's answers; never against the hub itself.
"""

from __future__ import annotations

import importlib
import io
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from onebit import paths
from onebit.errors import DownloadError
from onebit.models import store
from onebit.models.report import Report
from onebit.models.shards import shard_names

_DEFAULT_QUANT = "Q4_K_M"
_HELPERS = re.compile(r"(^|/)(mmproj|mtp-|imatrix)", re.IGNORECASE)  # lie beside a model, are none


@dataclass(frozen=True, slots=True)
class HubModel:
    """What a user wrote: a repository, and which of its files."""

    repo: str  # OWNER/REPO
    quant: str | None  # part of a file's name, or a whole file name

    @property
    def folder(self) -> Path:
        """Where its files are kept."""
        return paths.models_dir() / "hf" / self.repo

    @property
    def note(self) -> Path:
        """Remembers which files were chosen: their names, one a line. It exists when all are there."""
        return self.folder / f".chosen-{re.sub(r'[^A-Za-z0-9._-]', '_', self.quant or 'default').lower()}"


def parse_hub(text: str) -> HubModel:
    """Read `hf:OWNER/REPO[:QUANT]`. Raises DownloadError."""
    word = r"[A-Za-z0-9_][A-Za-z0-9._-]*"  # no leading dot: the name becomes a path
    match = re.fullmatch(rf"hf:({word}/{word})(?::([A-Za-z0-9._/-]+))?", text)
    if match is None:
        raise DownloadError(f"{text!r} names no model on the hub", hint="write hf:OWNER/REPO or hf:OWNER/REPO:QUANT")
    return HubModel(match[1], match[2])


def choose_files(names: Sequence[str], quant: str | None, repo: str) -> tuple[str, ...]:
    """Which files of a repository to fetch: one GGUF, or all parts of a split one.

    `quant` is compared, ignoring case, with whole words of the names: Q4_K is not Q4_K_M. It may also be a
    whole file name. Without it: Q4_K_M, else the only model there is. Raises DownloadError with the choices.
    """
    models: dict[str, tuple[str, ...]] = {}
    for name in sorted(names):
        if name.lower().endswith(".gguf") and not _HELPERS.search(name):
            models.setdefault(shard_names(name)[0], shard_names(name))
    if not models:
        raise DownloadError(f"hf:{repo} holds no GGUF model", hint="look for a repository whose name ends in -GGUF")
    wanted = quant or _DEFAULT_QUANT
    exact = [first for first in models if wanted.lower() in (first.lower(), first.lower().rpartition("/")[2])]
    word = re.compile(rf"(?<![A-Za-z0-9]){re.escape(wanted)}(?![A-Za-z0-9_])", re.IGNORECASE)
    found = exact or [first for first in models if word.search(first)]
    if not found and quant is None and len(models) == 1:
        found = list(models)
    if len(found) != 1:
        what, choices = (f"{len(found)} models", found) if found else ("no model", list(models))
        raise DownloadError(
            f"hf:{repo} has {what} named {wanted}",
            hint=f"there is: {', '.join(choices)}; write e.g. hf:{repo}:{choices[0]}",
        )
    files = models[found[0]]
    missing = set(files) - set(names)
    if missing:
        raise DownloadError(f"hf:{repo} lacks {len(missing)} of the {len(files)} parts of {found[0]}")
    return files


def local_hub_model(model: HubModel) -> Path | None:
    """Where the model is, if it was pulled before: of a split one the first part."""
    if not model.note.is_file():
        return None
    files = [model.folder / name for name in model.note.read_text().splitlines()]
    return files[0] if files and all(file.is_file() for file in files) else None


def pull_hub(model: HubModel, report: Report) -> Path:
    """Choose and download. Raises DownloadError."""
    with store.disk_errors(model.folder):
        model.folder.mkdir(parents=True, exist_ok=True)
        with store.locked(model.note, report):
            if (there := local_hub_model(model)) is not None:
                return there
            report(f"Looking at hf:{model.repo}", 0, None)
            sizes = _list_files(model.repo)
            files = choose_files(list(sizes), model.quant, model.repo)
            store.require_space(model.folder, sum(sizes[name] for name in files), f"pulling hf:{model.repo}")
            for name in files:
                _download(model, name, report)
            model.note.write_text("\n".join(files) + "\n")
            return model.folder / files[0]


def _library() -> Any:
    try:
        import huggingface_hub
    except ImportError as exc:
        raise DownloadError(
            "models from the hub (hf:…) need the package huggingface_hub",
            hint="pip install 'onebit[hub]'; or pass the https:// address of the file",
        ) from exc
    return huggingface_hub


@contextmanager
def _hub_errors(repo: str) -> Iterator[None]:
    from huggingface_hub import errors

    try:
        yield
    except errors.GatedRepoError as exc:
        raise DownloadError(
            f"hf:{repo} is gated",
            hint="accept its terms on the hub's web page, then `hf auth login` or set HF_TOKEN",
        ) from exc
    except errors.RepositoryNotFoundError as exc:
        raise DownloadError(
            f"hf:{repo} does not exist, or is private", hint="check the name; for a private one set HF_TOKEN"
        ) from exc
    # HTTPError: the base of what the library's HTTP client raises; OSErrors of the disk are not ours here
    except (errors.HTTPError, errors.HFValidationError, errors.LocalEntryNotFoundError) as exc:
        lines = str(exc).strip().splitlines() or [type(exc).__name__]
        raise DownloadError(
            f"hf:{repo} could not be fetched: {lines[0]}",
            hint="check the network; a second pull goes on from here",
        ) from exc


def _list_files(repo: str) -> Mapping[str, int]:
    """Names and sizes of the files of a repository."""
    library = _library()
    with _hub_errors(repo):
        info = library.HfApi().model_info(repo, files_metadata=True)
    return {file.rfilename: file.size or 0 for file in info.siblings or ()}


def _download(model: HubModel, name: str, report: Report) -> None:
    tqdm: Any = importlib.import_module("tqdm").tqdm  # comes with the library, without types
    phase = f"Downloading {name.rpartition('/')[2]}"

    class Bar(tqdm):  # type: ignore[misc]
        """Passes the library's progress on instead of drawing it."""

        monitor_interval = 0  # no thread

        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__(*args, **{**kwargs, "file": io.StringIO(), "disable": False})

        def update(self, n: float | None = 1) -> bool | None:
            shown: bool | None = super().update(n)
            report(phase, int(self.n), int(self.total) if self.total else None)
            return shown

    with _hub_errors(model.repo):
        _library().hf_hub_download(model.repo, name, local_dir=model.folder, tqdm_class=Bar)
