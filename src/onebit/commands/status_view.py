"""A server's state as people read it: a table for `onebit status` and `onebit top`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.table import Table

_STATE_STYLES = {"loaded": "green", "loading": "yellow", "unloading": "yellow", "failed": "red", "crashed": "red"}


def view(url: str, state: Mapping[str, Any], *, screen: bool) -> RenderableType:
    """All of it. `screen`: for people; else each row of the table stands for itself, and nothing is drawn."""
    from rich.console import Group
    from rich.text import Text

    models = state["data"]
    running = sum(_total(model["running_by_tier"]) for model in models)
    waiting = sum(_total(model["waiting_by_tier"]) for model in models)
    head = Text.assemble((url, "bold"), f"  {running} running, {waiting} waiting")
    parts: list[RenderableType] = [head, Text(""), _memory(state["memory"], screen), Text(""), _models(models, screen)]
    notes = [Text.assemble((f"{name}: ", "yellow"), _printable(text)) for name, text in _notes(models)]
    return Group(*parts, *([Text(""), *notes] if notes else []))


def _total(by_tier: Mapping[str, int]) -> int:
    return sum(by_tier.values())


def _memory(pools: Mapping[str, Any], screen: bool) -> Table:
    from rich.progress_bar import ProgressBar
    from rich.table import Table

    table = Table.grid(padding=(0, 2))
    for name, pool in pools.items():
        total, reserved = pool["total_bytes"], pool["reserved_bytes"]
        bar = [ProgressBar(total=max(1, total), completed=min(total, reserved), width=24)] if screen else []
        table.add_row("memory", name, *bar, f"{_gib(reserved)} of {_gib(total)} GiB reserved")
    return table


def _models(models: Sequence[Mapping[str, Any]], screen: bool) -> Table:
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, header_style="bold", pad_edge=False, padding=(0, 2, 0, 0))
    for header in ("MODEL", "STATE", "GIB", "ENGINE", "SLOTS", "RUNNING", "WAITING"):
        right = header in ("GIB", "SLOTS")
        table.add_column(header, justify="right" if right else "left", overflow="fold", no_wrap=right)
    for model in models:
        held = sum(model["bytes"].values())
        size = _gib(held) if held else f"({_gib(sum(model['needs_bytes'].values()))})"  # what it would take
        cells = [
            Text(_printable(model["model"]), "bold"),
            Text(model["state"], _STATE_STYLES.get(model["state"], "dim")),
            Text(size),
        ]
        lines = [Text(_tiers(model["running_by_tier"])), Text(_tiers(model["waiting_by_tier"]))]
        for place, engine in enumerate(model["engines"]):
            first = not place or not screen
            name = Text(engine["name"])
            if engine["state"] not in ("ready", "stopped"):
                name.append(f" {engine['state']}", _STATE_STYLES.get(engine["state"], "yellow"))
            slots = Text(f"{engine['slots_in_use']}/{engine['slots']}")
            table.add_row(*(cells if first else [""] * 3), name, slots, *(lines if first else [""] * 2))
    return table


def _tiers(by_tier: Mapping[str, int]) -> str:
    """`2 paid, 10 free`: the tiers that have any, in the server's order, the highest first."""
    return ", ".join(f"{count} {tier}" for tier, count in by_tier.items() if count) or "–"


def _notes(models: Sequence[Mapping[str, Any]]) -> Iterator[tuple[str, str]]:
    """What is wrong, one sentence each."""
    for model in models:
        if model["cooling_seconds"] is not None:
            again = f"it is tried again in {model['cooling_seconds']:.0f} s at the earliest"
            yield model["model"], f"it could not be loaded: {model['last_error']}; {again}"
            continue
        for engine in model["engines"]:
            if engine["state"] in ("crashed", "failed"):
                yield f"{model['model']}, engine {engine['name']}", f"{engine['last_error']}"


def _gib(size: int) -> str:
    return f"{size / 2**30:.2f}" if size < 100 * 2**30 else f"{size / 2**30:.0f}"


def _printable(text: str) -> str:
    """Causes quote what engines printed, and may bring control characters."""
    return "".join(c for c in text if c.isprintable())
