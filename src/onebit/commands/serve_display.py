"""What a person sees while `onebit serve` starts, when it is up, and when it stops."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from onebit.commands import console

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import RenderableType
    from rich.table import Table

    from onebit.offer import Offer
    from onebit.serve import Server


def home_as_tilde(path: Path) -> str:
    """A path as people write it: shorter, so that it fits a line."""
    text, home = str(path), str(Path.home())
    return "~" + text[len(home) :] if text.startswith(home + "/") else text


def show_warnings(warnings: Sequence[str]) -> None:
    """What is allowed, but should be known."""
    from rich.text import Text

    for warning in warnings:
        console.err().print(Text.assemble(("warning: ", "yellow"), warning))


def show_builds(offers: Sequence[Offer]) -> None:
    """Which llama-server each engine runs on, and why that one; each build once."""
    engines: dict[Path, list[str]] = {}
    origins: dict[Path, str] = {}
    for offer in offers:
        for spec in offer.plan.engines:
            name = f"engine {spec.name}" if len(offers) == 1 else f"{offer.name} on {spec.name}"
            engines.setdefault(spec.build.path, []).append(name)
            origins[spec.build.path] = spec.build.origin
    for path, names in engines.items():
        said = f"{', '.join(names)}:\n  {home_as_tilde(path)}\n  ({origins[path]})"
        console.err().print(said, style="dim", soft_wrap=True, markup=False)


def show_draining(slots: int) -> None:
    """After the first Ctrl-C, when `slots` are still in use."""
    console.err().print(f"stopping: {slots} slot(s) still at work; they may finish, Ctrl-C again stops now")


async def show_start(server: Server) -> None:
    """A line that lives while the engines load, then the panel."""
    import anyio
    from rich.text import Text

    from onebit.engines.state import State

    err = console.err()
    began = anyio.current_time()
    at_start = [name for name, offer in server.offers.items() if offer.served.settings.preload]
    if not err.is_terminal and at_start:
        err.print(f"loading {', '.join(at_start)}; a large model takes minutes", markup=False)
    with err.status("starting…") as status:
        while not server.up.is_set():
            loading = [e for e in server.engines if e.state in (State.STARTING, State.CRASHED)]
            seconds = anyio.current_time() - began
            words = [
                f"{e.spec.alias} on {e.spec.name} {e.state.value}" + (f": {e.cause}" if e.cause else "")
                for e in loading
            ]
            status.update(Text(f"{', '.join(words) or 'starting'} ({seconds:.0f} s)"))
            with anyio.move_on_after(0.2):
                await server.up.wait()
    for offer in server.offers.values():
        for note in offer.plan.notes:
            err.print(Text.assemble(("note: ", "yellow"), note))
    for engine in server.engines:
        if engine.state is State.FAILED:
            name = f"{engine.spec.alias}, engine {engine.spec.name}"
            err.print(Text.assemble((f"{name} failed: ", "red"), engine.cause or ""))
    err.print(_panel(server, anyio.current_time() - began))


def _panel(server: Server, seconds: float) -> RenderableType:
    from rich import box
    from rich.console import Group
    from rich.panel import Panel
    from rich.table import Table
    from rich.text import Text

    url = server.listener.url
    facts = Table.grid(padding=(0, 2))
    facts.add_column(style="dim")
    facts.add_column(overflow="fold")
    if len(server.offers) == 1:
        _add_one(facts, server)
    else:
        _add_several(facts, server)
    if server.config.memory is not None or len(server.offers) > 1:
        for pool, total in server.cards.ledger.totals.items():
            facts.add_row("memory", f"{total / 2**30:.1f} GiB ({pool})")
    facts.add_row("endpoint", Text(f"{url}/v1", "bold"))
    key = ' -H "Authorization: Bearer $ONEBIT_API_KEY"' if server.config.keyless_tier is None else ""
    name = next(iter(server.offers))
    body = f'{{"model": "{name}", "messages": [{{"role": "user", "content": "Hello!"}}]}}'
    curl = f"curl {url}/v1/chat/completions{key} \\\n  -d '{body}'"
    title = f"onebit is ready after {seconds:.1f} s"
    if not console.err().is_terminal:
        return Group(Text(title), facts, Text("try:"), Text(curl))
    panel = Panel(facts, title=title, title_align="left", border_style="green", box=box.ROUNDED, expand=False)
    return Group(panel, Text("try it:", style="dim"), Text(curl), Text("Ctrl-C stops", style="dim"))


def _add_one(facts: Table, server: Server) -> None:
    from rich.text import Text

    (offer,) = server.offers.values()
    plan = offer.plan
    facts.add_row("model", Text.assemble((plan.alias, "bold"), "  ", home_as_tilde(offer.info.path)))
    for engine in server.engines:
        spec = engine.spec
        words = [engine.state.value, f"{spec.slots} slot" + ("s" if spec.slots > 1 else "")]
        if spec.row_limit is not None:
            words.append("fills first")
        elif spec.rank:
            words.append("takes the overflow")
        if spec.draft is not None:
            words.append(f"drafts up to {spec.draft.length} ({spec.draft.kind.value})")
        facts.add_row(f"engine {spec.name}", ", ".join(words))
    if offer.grid is not None:
        facts.add_row("choice", "by the profile that `onebit bench profile` measured")
    facts.add_row("context", f"{plan.context} tokens in each slot")


def _add_several(facts: Table, server: Server) -> None:
    from rich.text import Text

    for name, offer in server.offers.items():
        model = server.gate.models[name]
        engines = " + ".join(f"{spec.name} × {spec.slots}" for spec in offer.plan.engines)
        size = sum(model.needs.values()) / 2**30
        words = f"  {engines}, {offer.plan.context} tokens a slot, {size:.2f} GiB, {model.residency.value}"
        facts.add_row("model", Text.assemble((name, "bold"), words))
