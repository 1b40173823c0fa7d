"""From the settings of `onebit serve` to a running server, and what a person sees on the way."""

from __future__ import annotations

import os
import sys
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from onebit.config.load import Checked
    from onebit.config.model_settings import ModelSettings
    from onebit.engines.device import Build, Device
    from onebit.offer import Offer
    from onebit.reload import Proposal


def run(given: dict[str, Any], file: Path | None) -> int:
    """Serve until stopped. `given`: settings from flags and environment, `file`: the config file.

    Returns the exit code.
    """
    import anyio

    from onebit.commands import console
    from onebit.commands.serve_display import show_builds, show_draining, show_start, show_warnings
    from onebit.commands.serve_log import server_log
    from onebit.config.load import check_config
    from onebit.engines.run_folder import run_folder
    from onebit.router.listen import listen
    from onebit.serve import Ending, Server

    for name in ("api_key", "api_key_file"):
        if os.environ.get(f"ONEBIT_{name.upper()}") == "":
            given.setdefault(name, "")  # Click takes an empty variable for none: that would be an open door
    checked = check_config(file, given)
    listener = listen(checked.config.host, checked.config.port)
    start = propose(checked, {}, at_start=True)
    show_warnings(start.warnings)
    show_builds(start.offers)

    def again(offers: Mapping[str, Offer]) -> Proposal:
        return propose(check_config(file, given), offers, at_start=False)

    async def serving(folder: Path) -> Ending:
        server = Server(start, again, listener, folder)
        return await server.run(show_start, show_draining)

    with server_log(start.config.log_format), run_folder() as folder:
        ending = anyio.run(serving, folder, backend_options={"use_uvloop": True})
        if ending is Ending.CUT:
            console.err().print("stopped; requests that were still running were cut off")
    return ending.value


def propose(checked: Checked, known: Mapping[str, Offer], *, at_start: bool) -> Proposal:
    """Fetch and plan the models of a config, but those that are `known` already and have not changed.

    Not `at_start`, nobody is asked anything, and nothing moves on the screen. Raises OnebitError.
    """
    from dataclasses import replace

    from onebit.commands.progress import progress
    from onebit.models.pull import resolve
    from onebit.models.report import silent
    from onebit.offer import distinct, prepare
    from onebit.reload import Proposal

    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    offers = []
    for served in checked.models:
        before = next((offer for offer in known.values() if offer.served == served), None)
        if before is not None:
            offers.append(replace(before, served=served))  # it may stand elsewhere in the file
            continue
        find = _finder(served.settings, ask=at_start)
        with progress() if at_start else nullcontext(silent) as report:
            offers.append(prepare(served, partial(resolve, report=report), find, cores))
    distinct(offers)
    return Proposal(checked.config, checked.keys, tuple(offers), checked.warnings)


def _finder(settings: ModelSettings, *, ask: bool) -> Callable[[Device], Build]:
    """find_build, each device once; where nothing serves the CPU and there is somebody to ask, it offers to compile."""
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
            if settings.llama_server or device.kind is not DeviceKind.CPU or not (ask and sys.stdin.isatty()):
                raise
            console.err().print(f"{error.message}.", markup=False)
            if not typer.confirm("Compile one now? (about 5 minutes on two cores)", default=True, err=True):
                raise
            engines.build_engine(device.kind)
            return find_build(device)

    return find
