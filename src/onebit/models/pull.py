"""From what a user writes after `-m` to a file: `resolve`, and `pull`, which fetches."""

from __future__ import annotations

import difflib
from pathlib import Path

from onebit.errors import ModelFileError
from onebit.models import store
from onebit.models.catalog import CATALOG
from onebit.models.report import Report

_LISTED = 8  # names in one message


def resolve(model: str, report: Report) -> Path:
    """The file that `model` means; what can be fetched is fetched, unless it was pulled before.

    `model` is a path, a catalog name, the name of a pulled model, `hf:OWNER/REPO[:QUANT]` or a URL; a file
    comes before a name. Raises ModelFileError (there is no such model) or DownloadError.
    """
    found = locate(model)
    return pull(model, report) if found is None else found


def locate(model: str) -> Path | None:
    """Like `resolve`, without fetching: None if it can be pulled, but was not yet."""
    if (path := _existing(model)) is not None:
        return path
    if model in CATALOG:
        from onebit.models.wheel import local_wheel_model

        return local_wheel_model(CATALOG[model])
    if model.startswith("hf:"):
        from onebit.models.hub import local_hub_model, parse_hub

        return local_hub_model(parse_hub(model))
    from onebit.models.fetch import is_url, local_url_model, parse_url

    if is_url(model):
        return local_url_model(parse_url(model))
    if (path := store.find_stored(model)) is not None:
        return path
    raise _unknown(model)


def pull(name_or_url: str, report: Report) -> Path:
    """Fetch a model into the models folder, verify it, and return its file (of a split one the first part).

    Done at once, without the network, if it is there. Interrupted downloads of URLs and from the hub are
    resumed. Raises DownloadError, or ModelFileError for a name that nothing is known of.
    """
    if (there := locate(name_or_url)) is not None:
        return there
    if name_or_url in CATALOG:
        from onebit.models.wheel import pull_wheel_model

        return pull_wheel_model(CATALOG[name_or_url], report)
    if name_or_url.startswith("hf:"):
        from onebit.models.hub import parse_hub, pull_hub

        return pull_hub(parse_hub(name_or_url), report)
    from onebit.models.fetch import parse_url, pull_url

    return pull_url(parse_url(name_or_url), report)


def known_names() -> list[str]:
    """Everything that can be named without a path: the catalog, then the pulled models."""
    return [*CATALOG, *(store.name_of(path) for path in store.stored())]


def _existing(model: str) -> Path | None:
    path = Path(model)
    try:
        path = path.expanduser()
        return path if path.is_file() else None
    except (OSError, ValueError, RuntimeError):  # too long, a NUL character, ~ of an unknown user
        return None


def _unknown(model: str) -> ModelFileError:
    """Say what was looked for, and what there is instead."""
    if "/" in model or "\\" in model or model.lower().endswith(".gguf"):
        path = Path(model)
        try:
            if path.is_dir():
                what, folder = f"{model} is a folder, not a model file", path
            else:
                what, folder = f"{model} does not exist", path.parent
            names = sorted(p.name for p in folder.glob("*.gguf"))
        except (OSError, ValueError) as exc:
            return ModelFileError(f"{model[:200]!r} is not the name of a file: {exc}")
        if not folder.is_dir():
            return ModelFileError(what, hint=f"there is no folder {folder} either")
        close = difflib.get_close_matches(path.name, names, cutoff=0.5)
        if not names:
            hint = f"{folder.resolve()} holds no .gguf files; `onebit models list` shows what there is"
        else:
            hint = f"in {folder} there is: {', '.join((close or names)[:_LISTED])}"
        return ModelFileError(what, hint=hint)
    names = known_names()
    close = difflib.get_close_matches(model, names)
    there_is = f"there is: {', '.join(names[:_LISTED])}"
    hint = f"did you mean {' or '.join(close)}?" if close else there_is
    return ModelFileError(
        f"no model is named {model[:200]!r}",
        hint=f"{hint}; a path, hf:OWNER/REPO:QUANT or an https:// address will do too",
    )
