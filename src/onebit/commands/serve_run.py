"""From the settings of `onebit serve` to a running server, and what a person sees on the way."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

if TYPE_CHECKING:
    from collections.abc import Callable

    from onebit.config.model_settings import ModelSettings
    from onebit.engines.device import Build, Device


def run(given: dict[str, Any], file: Path | None) -> int:
    """Serve until stopped. `given`: settings from flags and environment, `file`: the config file.

    Returns the exit code.
    """
    import anyio
    from rich.text import Text

    from onebit.commands import console
    from onebit.commands.progress import progress
    from onebit.commands.serve_display import home_as_tilde, show_draining, show_start
    from onebit.config.load import check_config
    from onebit.engines.run_folder import run_folder
    from onebit.models.pull import resolve
    from onebit.offer import distinct, prepare
    from onebit.router.listen import listen
    from onebit.serve import Ending, Server

    for name in ("api_key", "api_key_file"):
        if os.environ.get(f"ONEBIT_{name.upper()}") == "":
            given.setdefault(name, "")  # Click takes an empty variable for none: that would be an open door
    checked = check_config(file, given)
    config = checked.config
    listener = listen(config.host, config.port)
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    offers = []
    for served in checked.models:
        with progress() as report:
            offers.append(prepare(served, lambda model: resolve(model, report), _finder(served.settings), cores))
    distinct(offers)
    for warning in checked.warnings:
        console.err().print(Text.assemble(("warning: ", "yellow"), warning))
    for offer in offers:
        for spec in offer.plan.engines:
            where = f"{offer.name}, engine {spec.name}: {home_as_tilde(spec.build.path)}\n  ({spec.build.origin})"
            console.err().print(where, style="dim", soft_wrap=True, markup=False)

    async def serving(folder: Path) -> Ending:
        server = Server(config, offers, checked.keys, listener, folder)
        return await server.run(show_start, show_draining)

    with run_folder() as folder:
        ending = anyio.run(serving, folder, backend_options={"use_uvloop": True})
    if ending is Ending.CUT:
        console.err().print("stopped; requests that were still running were cut off")
    return ending.value


def _finder(settings: ModelSettings) -> Callable[[Device], Build]:
    """find_build, each device once; where nothing serves the CPU and somebody is there to ask, it offers to compile."""
    from functools import cache

    from onebit.commands import console, engines
    from onebit.engines.builds import find_build
    from onebit.engines.device import DeviceKind
    from onebit.errors import NoBuild

    @cache
    def find(device: Device) -> Build:
        try:
            return find_build(device, settings.llama_server)
        except NoBuild as error:
            if settings.llama_server or device.kind is not DeviceKind.CPU or not sys.stdin.isatty():
                raise
            console.err().print(f"{error.message}.", markup=False)
            if not typer.confirm("Compile one now? (about 5 minutes on two cores)", default=True, err=True):
                raise
            engines.build_engine(device.kind)
            return find_build(device)

    return find
