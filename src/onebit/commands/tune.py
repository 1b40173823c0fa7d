"""`onebit tune`: measure what is needed, and say which command lines to use."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from onebit.commands.bench import GpuLayers, LlamaServer, StartTimeout, Threads

if TYPE_CHECKING:
    from onebit.bench.recommend import Advice
    from onebit.bench.setups import Planner
    from onebit.models.gguf_file import ModelInfo

_MANY = (1, 4, 8, 16)
_DRAFTS = (0, 1, 2, 3)  # llama.cpp's default is 3; the gain on Strix Halo was largest at 2 to 4
_BOTH = 24  # slots that --adaptive has unless told otherwise: 8 and 16
_KINDS = ("cuda", "rocm", "vulkan", "metal")


def tune(
    model: Annotated[
        str, typer.Option("--model", "-m", help="GGUF file, `demo`, hf:owner/repo:quant or URL.")
    ] = "demo",
    device: Annotated[
        str | None,
        typer.Option(
            "--device", "-dev", help="Devices to try.", metavar="LIST", show_default="all cards, else the CPU"
        ),
    ] = None,
    users: Annotated[int | None, typer.Option("--users", help="A crowd of so many at once, too.")] = None,
    tokens: Annotated[int, typer.Option("--tokens", "-n", help="Tokens of each answer.")] = 64,
    prompt_tokens: Annotated[int, typer.Option("--prompt-tokens", "-p", help="Tokens of each prompt, about.")] = 64,
    repeats: Annotated[int, typer.Option("--repeats", help="Rounds, interleaved.")] = 2,
    threads: Threads = None,
    n_gpu_layers: GpuLayers = None,
    llama_server: LlamaServer = None,
    start_timeout: StartTimeout = None,
    json_file: Annotated[
        Path | None, typer.Option("--json", help="Append each row to this file at once.", metavar="FILE")
    ] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on where the --json file ends.")] = False,
) -> None:
    """Measure this machine with this model, and print the command lines to use.

    Every device at 1, 4, 8 and 16 requests, with the model's draft head if it has one, and two cards together
    behind the router. Then: what to run for one person, for many, and for a crowd of a known size.

    \b
    onebit tune -m qwen.gguf
    onebit tune -m qwen.gguf --users 12 --device vulkan,rocm
    """
    from onebit.bench.recommend import recommend
    from onebit.bench.results import ResultsFile
    from onebit.bench.setups import Wish
    from onebit.bench.summary import summaries
    from onebit.bench.sweep import Load
    from onebit.commands import bench_prepare as prepare
    from onebit.commands.bench_display import finish
    from onebit.commands.bench_run import run_sweep
    from onebit.engines.run_folder import run_folder
    from onebit.errors import ConfigError

    prepare.check_lengths(tokens, prompt_tokens, 0, repeats, 1)
    if users is not None:
        prepare.within("--users", users, 1, prepare.MOST_REQUESTS)
    if resume and json_file is None:
        raise ConfigError("--resume goes on with a file, but there is none", hint="name it: --json FILE")
    requests = tuple(sorted({*_MANY, *((users,) if users else ())}))
    settings = prepare.engine_settings(
        threads=threads, n_gpu_layers=n_gpu_layers, llama_server=llama_server, start_timeout=start_timeout
    )
    load = Load(requests, prompt_tokens=prompt_tokens, tokens=tokens, repeats=repeats)
    with run_folder() as folder:
        wish = Wish(settings, prepare.devices_of(device), requests, tokens + prompt_tokens, run_dir=folder)
        planner, measured_on = prepare.prepare(model, llama_server, wish)
        planner = _widen(planner, planner.info)
        setups = planner.setups()
        file = ResultsFile(json_file, resume=resume) if json_file is not None else None
        outcome = run_sweep(setups, load, measured_on, file, folder, planner.skipped)
    finish(outcome.results, outcome.ceiling)
    flags = {setup.name: setup.serve_flags for setup in setups}
    _print(recommend(summaries(outcome.results), flags, users), model)
    raise typer.Exit(outcome.exit_code)


def _widen(planner: Planner, info: ModelInfo) -> Planner:
    """Without a wish: every card there is; draft lengths where the model has a head; both cards where there are two."""
    from dataclasses import replace

    devices = planner.wish.devices or _cards(planner) or ("cpu",)
    both = len(devices) == 2 and max(planner.wish.requests) <= _BOTH
    wish = replace(planner.wish, devices=devices, mtp=_DRAFTS if info.has_mtp_head else (), adaptive=both)
    return planner.with_wish(wish)


def _cards(planner: Planner) -> tuple[str, ...]:
    """The kinds of graphics card that a build here can use. Vulkan in software is a CPU in disguise, so not that."""
    from onebit.engines.device import Device, DeviceKind
    from onebit.errors import NoBuild

    found = []
    for kind in map(DeviceKind, _KINDS):
        try:
            there = planner.find(Device(kind)).device_for(Device(kind))
        except NoBuild:
            continue
        if there is not None and not there.software:
            found.append(str(kind))
    return tuple(found)


def _print(advice: list[Advice], model: str) -> None:
    import shlex

    from rich.text import Text

    from onebit.bench.columns import number
    from onebit.commands import console

    out = console.out()
    for one in advice:
        each = f", {number(one.user)} for each" if one.user is not None and one.requests > 1 else ""
        measured = f"{number(one.total)} tok/s at {one.requests}{each} ({one.setup})"
        out.print(Text.assemble((f"for {one.who}", "bold"), f"  {measured}"))
        command = shlex.join(["onebit", "serve", "-m", model, *one.flags])
        out.print(Text(f"  {command}", "green"), soft_wrap=True)
