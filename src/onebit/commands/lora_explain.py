"""`onebit lora explain`: which adapter `"lora": "auto"` would choose for a message, and why."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from onebit.commands import console
from onebit.errors import ConfigError

if TYPE_CHECKING:
    from onebit.config.schema import ServedModel
    from onebit.router.suit import Score


def explain(
    prompt: Annotated[str, typer.Argument(metavar="PROMPT", help="What a user might say.")],
    config: Annotated[
        Path | None,
        typer.Option(
            "--config",
            metavar="FILE",
            envvar="ONEBIT_CONFIG",
            show_envvar=False,
            # Required by the code below, whose message shows the whole command.
            help="The config file of the server.  [env var: ONEBIT_CONFIG; required]",
        ),
    ] = None,
    model: Annotated[str | None, typer.Option("--model", "-m", help="Only this model of the file.")] = None,
    count: Annotated[int, typer.Option("--count", "-k", min=1, help="How many adapters to show.")] = 10,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON, for programs.")] = False,
) -> None:
    """Show which adapter `"lora": "auto"` chooses for a message, and how near the others are.

    The message is compared with each adapter's `about`, or what its file says. The nearest is taken when its
    cosine is high enough, else none. Nothing is loaded, no server is asked.

    Examples:

      onebit lora explain "arr, where is the treasure" --config onebit.yaml

      onebit lora explain "fix this SQL query" --config onebit.yaml --model chat --json
    """
    from onebit.router.adapters import last_user_text
    from onebit.router.suit import THRESHOLD, Suits

    if config is None:
        raise ConfigError(
            "explain needs the config file of the server, whose adapters it compares",
            hint="onebit lora explain PROMPT --config onebit.yaml, or set ONEBIT_CONFIG",
        )
    text = last_user_text({"prompt": prompt})
    for served in _models(config, model):
        descriptions = _descriptions(served)
        scores = Suits(descriptions).scores(text, count)
        names = [adapter.name for adapter in served.adapters]
        chosen = names[scores[0].adapter] if scores and scores[0].cosine >= THRESHOLD else None
        if as_json:
            found = [
                {"adapter": names[s.adapter], "cosine": round(s.cosine, 4), "about": descriptions[s.adapter]}
                for s in scores
            ]
            answer = {"model": served.name, "chosen": chosen, "threshold": THRESHOLD, "scores": found}
            typer.echo(json.dumps(answer, ensure_ascii=False))
        else:
            _show(served.name, names, descriptions, scores, chosen)


def _models(config: Path, model: str | None) -> list[ServedModel]:
    from onebit.config.load import load

    there = load({}, config).served()
    if model is not None and model not in [served.name for served in there]:
        raise ConfigError(f"{config} has no model {model}", hint="it has " + ", ".join(s.name for s in there))
    found = [served for served in there if served.adapters and model in (None, served.name)]
    if not found:
        raise ConfigError(
            f"{config} lists no adapters" + (f" for {model}" if model else ""),
            hint="below a model: `adapters: {pirate: {path: pirate.gguf, about: talks like a pirate}}`",
        )
    return found


def _descriptions(served: ServedModel) -> list[str]:
    """What each adapter does, in words. Raises OnebitError for a file that `onebit serve` would refuse."""
    from functools import cache

    from onebit.engines.choice import about, check_choice
    from onebit.models.gguf_file import inspect
    from onebit.models.pull import locate

    header = cache(inspect)
    with served.placed():
        model = locate(served.settings.model)
    for adapter in served.adapters:
        with served.placed():
            info = header(model or adapter.path)  # of a model to be fetched yet, the architecture is not known
        check_choice([adapter], info, header)
    return [about(adapter, header(adapter.path)) for adapter in served.adapters]


def _show(
    model: str, names: Sequence[str], descriptions: Sequence[str], scores: Sequence[Score], chosen: str | None
) -> None:
    from rich.table import Table
    from rich.text import Text

    from onebit.router.suit import THRESHOLD

    out = console.out()
    why = f"the nearest is at {scores[0].cosine:.3f}" if scores else "the message holds no words"
    style = "bold green" if chosen else "bold"
    out.print(Text.assemble(f"{model}: ", (chosen or "none", style), f" ({why}; it takes {THRESHOLD})"))
    if not out.is_terminal:
        for s in scores:
            typer.echo(f"{names[s.adapter]}\t{s.cosine:.3f}\t{_line(descriptions[s.adapter])}")
        return
    table = Table(box=None, header_style="bold", pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column("ADAPTER", no_wrap=True)
    table.add_column("COSINE", justify="right", no_wrap=True)
    table.add_column("ABOUT", overflow="fold")
    for s in scores:
        style = "" if s.cosine >= THRESHOLD else "dim"
        table.add_row(names[s.adapter], f"{s.cosine:.3f}", Text(_line(descriptions[s.adapter])), style=style)
    out.print(table)


def _line(text: str) -> str:
    """Printable: descriptions come from files."""
    return "".join(c if c.isprintable() else " " for c in text)
