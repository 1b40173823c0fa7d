"""`onebit models`: list, pull, show, rm."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from onebit.commands import console
from onebit.commands.progress import progress, size_text
from onebit.commands.tables import plain_table as _table
from onebit.commands.tables import plain_text as _text
from onebit.commands.tables import print_table as _print

if TYPE_CHECKING:
    from onebit.models.gguf_file import ModelInfo

app = typer.Typer(help="Model files: what there is, fetching more, and what is in one.", no_args_is_help=True)


def _complete_stored(incomplete: str) -> list[str]:
    from onebit.models import store

    return [name for path in store.stored() if (name := store.name_of(path)).startswith(incomplete)]


def _complete_known(incomplete: str) -> list[str]:
    from onebit.models.pull import known_names

    return [name for name in known_names() if name.startswith(incomplete)]


Json = Annotated[bool, typer.Option("--json", help="Print JSON, for programs.")]


@app.command("list")
def list_models(as_json: Json = False) -> None:
    """List the models onebit has pulled, and those it knows by name.

    Examples:

      onebit models list

      onebit models list --json
    """
    rows = _rows()
    if as_json:
        typer.echo(json.dumps(rows, indent=2))
        return
    table = _table("NAME", "ARCHITECTURE", "QUANT", "SIZE", "STATE")
    for row in rows:
        size = size_text(row["size_bytes"])
        cells = (row["name"], row["architecture"] or "", row["quantization"] or "", size, row["state"])
        table.add_row(*(_text(cell) for cell in cells))
    _print(table)
    if console.out().is_terminal:
        from onebit import paths

        console.err().print(_text(f"\nin {paths.models_dir()}", style="dim"))


@app.command()
def pull(
    name_or_url: Annotated[
        str,
        typer.Argument(
            metavar="NAME_OR_URL",
            help="A name from `onebit models list`, hf:OWNER/REPO:QUANT, or the http(s) address of a .gguf "
            "file, with #sha256=HEX after it to have it verified.",
            autocompletion=_complete_known,
        ),
    ],
) -> None:
    """Fetch a model, verify it and keep it. What is there already is not fetched again.

    An interrupted download goes on where it stopped. The path of the file is printed.

    Examples:

      onebit models pull demo

      onebit models pull hf:ggml-org/Qwen3-0.6B-GGUF:Q4_0

      onebit models pull https://example.com/model.gguf
    """
    from onebit.models.pull import pull as pull_model

    with progress() as report:
        path = pull_model(name_or_url, report)
    typer.echo(path)


@app.command()
def show(
    model: Annotated[
        str,
        typer.Argument(metavar="FILE_OR_NAME", help="A GGUF file, or a name.", autocompletion=_complete_stored),
    ],
    as_json: Json = False,
) -> None:
    """Show what a model file is: architecture, context, bytes of KV cache per token, has it an MTP head?

    Only the header is read; nothing is fetched.

    Examples:

      onebit models show demo

      onebit models show ./qwen.gguf --json
    """
    from onebit.errors import ModelFileError
    from onebit.models.gguf_file import inspect
    from onebit.models.pull import locate

    path = locate(model)
    if path is None:
        raise ModelFileError(f"{model} was not pulled yet", hint=f"onebit models pull {model}")
    info = inspect(path)
    if as_json:
        typer.echo(json.dumps(_as_dict(info), indent=2))
        return
    table = _table()
    for label, value in _facts(info):
        table.add_row(_text(label, style="bold"), _text(value))
    _print(table)


@app.command("rm")
def remove(
    names: Annotated[
        list[str],
        typer.Argument(metavar="NAME...", help="Names of pulled models.", autocompletion=_complete_stored),
    ],
) -> None:
    """Delete pulled models. Files that onebit did not pull are never touched.

    Example:

      onebit models rm SmolLM2-135M-Instruct.Q4_1
    """
    from onebit.errors import ModelFileError
    from onebit.models import store
    from onebit.models.catalog import CATALOG
    from onebit.models.pull import locate

    paths = []
    for name in names:  # all are looked up before the first is deleted
        path = locate(name) if name in CATALOG or "/" not in name else store.find_stored(name)
        if path not in store.stored():
            pulled = ", ".join(store.name_of(p) for p in store.stored()) or "none"
            raise ModelFileError(f"{name} is no model that onebit has pulled", hint=f"pulled models: {pulled}")
        paths.append(path)
    for path in paths:
        freed = store.remove(path)
        console.err().print(_text(f"removed {path.name}, {size_text(freed)}"))


# --- words and tables ---------------------------------------------------------------------------------------


def _rows() -> list[dict[str, Any]]:
    from onebit.errors import ModelFileError
    from onebit.models import store
    from onebit.models.catalog import CATALOG
    from onebit.models.gguf_file import inspect
    from onebit.models.wheel import local_wheel_model

    names = {local_wheel_model(entry): entry.name for entry in CATALOG.values()}
    rows: list[dict[str, Any]] = []
    for path in store.stored():
        row: dict[str, Any] = {"name": names.get(path) or store.name_of(path), "path": str(path)}
        row |= {
            "architecture": None,
            "quantization": None,
            "size_bytes": path.stat().st_size,
            "state": "pulled",
        }
        try:
            info = inspect(path)
        except ModelFileError as exc:
            row["state"] = "broken: " + exc.message.removeprefix(f"{path} ")
        else:
            row |= {"architecture": info.architecture, "quantization": info.quantization}
            row |= {"size_bytes": info.size_bytes}
        rows.append(row)
    for entry in CATALOG.values():
        if local_wheel_model(entry) is None:
            row = {"name": entry.name, "path": None, "architecture": None, "quantization": None}
            rows.append(row | {"size_bytes": entry.gguf_bytes, "state": f"can be pulled: {entry.title}"})
    return rows


def _as_dict(info: ModelInfo) -> dict[str, Any]:
    from dataclasses import asdict

    return {key: str(value) if isinstance(value, Path) else value for key, value in asdict(info).items()}


def _facts(info: ModelInfo) -> list[tuple[str, str]]:
    kinds = {
        "mtp_head": "MTP head of another model",
        "adapter": "adapter (LoRA)",
        "other": "not a model to serve",
    }
    kind = "embedding model" if info.embedding and info.kind == "model" else kinds.get(info.kind, info.kind)
    facts = [
        ("File", str(info.path)),
        ("Name", info.name or "–"),
        ("Kind", kind),
        ("Architecture", info.architecture),
        ("Size", size_text(info.size_bytes) + (f" in {info.split_count} files" if info.split_count > 1 else "")),
        ("Parameters", _count(info.parameters)),
        ("Quantization", info.quantization),
    ]
    if info.kind in ("adapter", "other"):
        return facts
    heads = f"yes, {info.mtp_layers} layer{'s' if info.mtp_layers > 1 else ''}" if info.has_mtp_head else "no"
    kv = "none"
    if info.kv_bytes_per_token:
        kv = f"{info.kv_bytes_per_token / 1024:,.1f} KiB per token (f16)"
        if info.context_length:
            kv += f", {size_text(info.kv_bytes_per_token * info.context_length)} for the whole context"
    return [
        *facts,
        ("Context", f"{info.context_length:,} tokens" if info.context_length else "–"),
        ("KV cache", kv),
        ("Layers", str(info.block_count)),
        ("Embedding", f"{info.embedding_length:,}"),
        ("Vocabulary", f"{info.vocab_size:,}"),
        ("MTP head", heads),
        ("Chat template", "yes" if info.has_chat_template else "no"),
    ]


def _count(number: int) -> str:
    for unit, step in (("B", 1e9), ("M", 1e6), ("k", 1e3)):
        if number >= step:
            return f"{number / step:,.1f} {unit}"
    return str(number)
