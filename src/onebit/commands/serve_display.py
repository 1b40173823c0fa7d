"""What a person sees while `onebit serve` starts, when it is up, and when it stops."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from onebit.commands import console

if TYPE_CHECKING:
    from rich.console import RenderableType

    from onebit.serve import Server


def home_as_tilde(path: Path) -> str:
    """A path as people write it: shorter, so that it fits a line."""
    text, home = str(path), str(Path.home())
    return "~" + text[len(home) :] if text.startswith(home + "/") else text


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
    if not err.is_terminal:
        err.print(f"starting {', '.join(server.engines)}; a large model takes minutes to load")
    with err.status("starting…") as status:
        while not server.up.is_set():
            loading = [e for e in server.engines.values() if e.state is not State.READY]
            seconds = anyio.current_time() - began
            words = [f"{e.spec.name} {e.state.value}" + (f": {e.cause}" if e.cause else "") for e in loading]
            status.update(Text(f"{', '.join(words)} ({seconds:.0f} s)"))
            with anyio.move_on_after(0.2):
                await server.up.wait()
    for note in server.plan.notes:
        err.print(Text.assemble(("note: ", "yellow"), note))
    for engine in server.engines.values():
        if engine.state is State.FAILED:
            err.print(Text.assemble((f"engine {engine.spec.name} failed: ", "red"), engine.cause or ""))
    err.print(_panel(server, anyio.current_time() - began))


def _panel(server: Server, seconds: float) -> RenderableType:
    from rich import box
    from rich.console import Group
    from rich.panel import Panel
    from rich.table import Table
    from rich.text import Text

    plan, url = server.plan, server.listener.url
    facts = Table.grid(padding=(0, 2))
    facts.add_column(style="dim")
    facts.add_column(overflow="fold")
    facts.add_row("model", Text.assemble((plan.alias, "bold"), "  ", home_as_tilde(plan.engines[0].model)))
    for engine in server.engines.values():
        spec = engine.spec
        words = [f"{spec.slots} slot" + ("s" if spec.slots > 1 else "")]
        if spec.row_limit is not None:
            words.append("fills first")
        elif len(server.engines) > 1:
            words.append("takes the overflow")
        if spec.draft is not None:
            words.append(f"drafts up to {spec.draft.length} ({spec.draft.kind.value})")
        facts.add_row(f"engine {spec.name}", f"{engine.state.value}, " + ", ".join(words))
    facts.add_row("context", f"{plan.context} tokens in each slot")
    facts.add_row("endpoint", Text(f"{url}/v1", "bold"))
    key = ' -H "Authorization: Bearer $ONEBIT_API_KEY"' if server.needs_key else ""
    body = f'{{"model": "{plan.alias}", "messages": [{{"role": "user", "content": "Hello!"}}]}}'
    curl = f"curl {url}/v1/chat/completions{key} \\\n  -d '{body}'"
    title = f"onebit is ready after {seconds:.1f} s"
    if not console.err().is_terminal:
        return Group(Text(title), facts, Text("try:"), Text(curl))
    panel = Panel(facts, title=title, title_align="left", border_style="green", box=box.ROUNDED, expand=False)
    return Group(panel, Text("try it:", style="dim"), Text(curl), Text("Ctrl-C stops", style="dim"))
