"""`onebit engines`: see, make, register and remove llama-server builds."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from onebit.commands import console
from onebit.engines.device import DeviceKind

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID
    from rich.table import Table

    from onebit.engines.builds import Listed
    from onebit.engines.cmake import Report
    from onebit.engines.device import Build

app = typer.Typer(
    help="See, build, register and remove llama-server builds.", no_args_is_help=True, rich_markup_mode=None
)
_DeviceArgument = Annotated[DeviceKind, typer.Argument(metavar="DEVICE", case_sensitive=False, help="What it runs on.")]


@app.command("list")
def list_engines() -> None:
    """Show every llama-server that onebit knows, the devices it sees, and which one is taken for each."""
    from onebit.engines import builds
    from onebit.engines.device import Device

    with console.err().status("probing"):
        listed = builds.list_builds()
    chosen = {kind: builds.taken(listed, Device(kind)) for kind in DeviceKind}
    out = console.out()
    if not out.is_terminal:
        for line in _plain(listed, chosen):
            print(line)
        return
    if listed:
        out.print(_table(listed, chosen))
    else:
        out.print("There is no llama-server yet.")
    possible = [kind for kind in DeviceKind if kind is not DeviceKind.METAL or sys.platform == "darwin"]
    none = [kind.value for kind in possible if chosen[kind] is None]
    if none:
        out.print(f"Nothing serves {', '.join(none)} here; a build is made by: onebit engines build DEVICE")


@app.command("build")
def build_engine(
    device: _DeviceArgument,
    source: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Compile this llama.cpp checkout, not the pinned source."),
    ] = None,
    vulkan_headers: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Newer Vulkan headers than the system's.")
    ] = None,
    amdgpu_targets: Annotated[
        str | None, typer.Option(metavar="LIST", help="AMD cards to compile for, e.g. gfx1151.")
    ] = None,
    jobs: Annotated[int | None, typer.Option("--jobs", "-j", help="Compilers at once. [default: one per core]")] = None,
    force: Annotated[bool, typer.Option("--force", help="Compile even if there is such a build.")] = False,
    if_missing: Annotated[
        bool, typer.Option("--if-missing", help="Do nothing if any known build serves the device already.")
    ] = False,
) -> None:
    """Compile llama-server for DEVICE on this machine and for this machine.

    It takes some 5 minutes for cpu and 9 for vulkan on two cores. Nothing is kept unless it is done and runs.
    """
    from onebit.engines import builds, compile
    from onebit.engines.device import Device
    from onebit.errors import ConfigError, NoBuild

    if force and if_missing:
        raise ConfigError("--force and --if-missing exclude each other", hint="leave one of them out")
    if if_missing:
        try:
            found = builds.find_build(Device(device))
        except NoBuild:
            pass
        else:
            console.out().print(f"{device} is served already, by {found.path} ({found.origin})", soft_wrap=True)
            return
    start = time.monotonic()
    with _reporting() as report:
        made = compile.build(
            device,
            source=source,
            vulkan_headers=vulkan_headers,
            amdgpu_targets=amdgpu_targets,
            jobs=jobs,
            force=force,
            report=report,
        )
    seconds = time.monotonic() - start
    console.out().print(
        f"{made.path}\n{made.version}, devices: {_devices(made)}, ready after {_duration(seconds)}",
        soft_wrap=True,
    )
    if not made.serves(Device(device)):
        console.err().print(
            f"note: it runs, but shows no {device} device here; onebit doctor says which drivers are missing",
            soft_wrap=True,
        )


@app.command("add")
def add_engine(
    device: _DeviceArgument,
    path: Annotated[Path, typer.Argument(metavar="PATH", help="A llama-server executable.")],
) -> None:
    """Register the llama-server at PATH for DEVICE; it is taken before any other."""
    from onebit.engines import builds

    added = builds.add(device, path)
    console.out().print(
        f"registered for {device}: {added.path} ({added.version}, devices: {_devices(added)})", soft_wrap=True
    )


@app.command("remove")
def remove_engine(device: _DeviceArgument) -> None:
    """Unregister the llama-server of DEVICE; if none is registered, delete the builds made for it."""
    from onebit.engines import builds

    for line in builds.remove(device):
        console.out().print(line, soft_wrap=True)


# --- what is shown -----------------------------------------------------------------------------------------


def _devices(build: Build) -> str:
    names = [f"{found.id} ({found.description})" for found in build.devices]
    return ", ".join(["cpu", *names])


def _taken_for(entry: Listed, chosen: dict[DeviceKind, Build | None]) -> str:
    return ", ".join(kind.value for kind, build in chosen.items() if build is not None and build is entry.build)


def _plain(listed: list[Listed], chosen: dict[DeviceKind, Build | None]) -> Iterator[str]:
    """One line per build, separated by tabs: kind, version, devices, taken for, path, origin."""
    for entry in listed:
        build, candidate = entry.build, entry.candidate
        what = [build.version, _devices(build)] if build else ["does not run", entry.problem or ""]
        kind = candidate.kind.value if candidate.kind else "any"
        yield "\t".join([kind, *what, _taken_for(entry, chosen) or "-", str(candidate.path), candidate.origin])


def _table(listed: list[Listed], chosen: dict[DeviceKind, Build | None]) -> Table:
    """A row per build. Paths have a line of their own: at 80 columns a narrower column would break them."""
    from rich import box
    from rich.table import Table
    from rich.text import Text

    table = Table("for", "llama-server", box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False, show_lines=True)
    table.columns[1].overflow = "fold"
    for entry in listed:
        build, candidate = entry.build, entry.candidate
        if build is None:
            about = Text(f"{candidate.path}\n").append(f"{entry.problem}\n", style="red")
        else:
            about = Text(f"{build.path}\n{build.version}\n").append(f"sees: {_devices(build)}\n")
        if kinds := _taken_for(entry, chosen):
            about.append(f"taken for: {kinds}\n", style="green")
        table.add_row(candidate.kind.value if candidate.kind else "any", about.append(candidate.origin, "dim"))
    return table


def _duration(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest} s" if minutes else f"{seconds:.1f} s"


@contextmanager
def _reporting() -> Iterator[Report]:
    """A progress bar on a terminal, a line per tenth elsewhere."""
    if not console.err().is_terminal:
        yield _Lines()
        return
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
    from rich.progress import TimeRemainingColumn as Remaining

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    times = (TimeElapsedColumn(), TextColumn("left"), Remaining(compact=True))
    with Progress(*columns, *times, console=console.err(), transient=True) as progress:
        yield _Bar(progress, progress.add_task("starting", total=None))


class _Bar:
    def __init__(self, progress: Progress, task: TaskID) -> None:
        self._progress, self._task = progress, task

    def note(self, text: str) -> None:
        self._progress.console.print(text, soft_wrap=True)

    def step(self, done: int, total: int) -> None:
        self._progress.update(self._task, description="compiling", completed=done, total=total)


class _Lines:
    def __init__(self) -> None:
        self._tenth = 0

    def note(self, text: str) -> None:
        console.err().print(text, soft_wrap=True)

    def step(self, done: int, total: int) -> None:
        tenth = 10 * done // total
        if tenth != self._tenth:
            self._tenth = tenth
            console.err().print(f"compiled {done} of {total}")
