"""`onebit serve`: from the command line to a running server, and what a person sees on the way."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from collections.abc import Callable

    from onebit.config.schema import ServeConfig
    from onebit.engines.device import Build, Device

_MODEL, _ENGINES, _ENDPOINT = "Model", "Engines", "Endpoint"


def _opt(*names: str, help: str, panel: str, metavar: str | None = None) -> Any:
    """An option whose environment variable is named like its long flag."""
    long = next(n for n in names if n.startswith("--")).split("/")[0]
    return typer.Option(
        *names,
        help=help,
        rich_help_panel=panel,
        metavar=metavar,
        envvar="ONEBIT_" + long[2:].replace("-", "_").upper(),
        show_envvar=False,
        show_default=False,
    )


def serve(
    context: typer.Context,
    model_argument: Annotated[
        str | None, typer.Argument(metavar="[MODEL]", help="The same as --model.", show_default=False)
    ] = None,
    config: Annotated[
        Path | None, _opt("--config", help="YAML file with these settings.", panel=_ENDPOINT, metavar="FILE")
    ] = None,
    # --- the model
    model: Annotated[
        str | None,
        _opt("--model", "-m", help="GGUF file, `demo` (the default), hf:owner/repo:quant or URL.", panel=_MODEL),
    ] = None,
    alias: Annotated[
        str | None,
        _opt("--alias", "-a", help="The model's name for clients (default the file's).", panel=_MODEL),
    ] = None,
    ctx_size: Annotated[
        int | None,
        _opt(
            "--ctx-size",
            "-c",
            help="Tokens of context in EACH slot (default 4096); 0: all the model has.",
            panel=_MODEL,
        ),
    ] = None,
    lora: Annotated[
        list[str] | None,
        _opt("--lora", help="LoRA adapter to apply; may be repeated.", panel=_MODEL, metavar="FILE[:SCALE]"),
    ] = None,
    embeddings: Annotated[
        bool | None, _opt("--embeddings/--no-embeddings", help="Offer /v1/embeddings too.", panel=_MODEL)
    ] = None,
    # --- the engines
    device: Annotated[
        str | None,
        _opt(
            "--device",
            "-dev",
            help="cpu, vulkan, rocm, cuda, metal, or vulkan:1; FIRST,OVERFLOW with --adaptive.",
            panel=_ENGINES,
        ),
    ] = None,
    parallel: Annotated[
        str | None,
        _opt(
            "--parallel",
            "-np",
            help="Slots that decode together (default 4); N,M with --adaptive.",
            panel=_ENGINES,
            metavar="N",
        ),
    ] = None,
    adaptive: Annotated[
        bool | None,
        _opt(
            "--adaptive/--no-adaptive",
            help="Two engines on one card: the second takes the overflow.",
            panel=_ENGINES,
        ),
    ] = None,
    adaptive_at: Annotated[
        int | None,
        _opt(
            "--adaptive-at",
            help="Requests on the first engine before the second is used (default 8).",
            panel=_ENGINES,
        ),
    ] = None,
    mtp: Annotated[
        bool | None,
        _opt("--mtp/--no-mtp", help="Multi-token prediction: fastest for one user at a time.", panel=_ENGINES),
    ] = None,
    mtp_model: Annotated[
        str | None,
        _opt("--mtp-model", help="A head-only GGUF to draft with.", panel=_ENGINES, metavar="FILE"),
    ] = None,
    draft: Annotated[
        str | None, _opt("--draft", help="`ngram`: draft what came before; any model.", panel=_ENGINES)
    ] = None,
    draft_max: Annotated[
        int | None, _opt("--draft-max", help="Tokens drafted at most (default 3, ngram 16).", panel=_ENGINES)
    ] = None,
    n_gpu_layers: Annotated[
        int | None, _opt("--n-gpu-layers", "-ngl", help="Layers on the GPU (default all).", panel=_ENGINES)
    ] = None,
    threads: Annotated[
        int | None,
        _opt(
            "--threads",
            "-t",
            help="CPU threads of each engine (default the cores but one, shared out).",
            panel=_ENGINES,
        ),
    ] = None,
    batch_size: Annotated[
        int | None,
        _opt("--batch-size", "-b", help="Prompt tokens in one go (default CPU 128, GPU 512).", panel=_ENGINES),
    ] = None,
    llama_server: Annotated[
        str | None,
        _opt("--llama-server", help="The llama-server executable to use.", panel=_ENGINES, metavar="FILE"),
    ] = None,
    start_timeout: Annotated[
        str | None,
        _opt("--start-timeout", help="Time to load a model (default 15m).", panel=_ENGINES, metavar="TIME"),
    ] = None,
    # --- the endpoint
    host: Annotated[
        str | None, _opt("--host", help="Address to listen on (default 127.0.0.1).", panel=_ENDPOINT)
    ] = None,
    port: Annotated[
        int | None, _opt("--port", "-p", help="Port (default 8080); 0: any free one.", panel=_ENDPOINT)
    ] = None,
    api_key: Annotated[
        str | None,
        _opt(
            "--api-key",
            help="Key clients must send. Better: ONEBIT_API_KEY, for `ps` shows this one.",
            panel=_ENDPOINT,
        ),
    ] = None,
    api_key_file: Annotated[
        str | None, _opt("--api-key-file", help="File with one key a line.", panel=_ENDPOINT, metavar="FILE")
    ] = None,
    max_waiting: Annotated[
        int | None,
        _opt("--max-waiting", help="Requests in line before 429 (default 1024).", panel=_ENDPOINT),
    ] = None,
    max_wait: Annotated[
        str | None,
        _opt("--max-wait", help="Time in line before 503 (default 10m).", panel=_ENDPOINT, metavar="TIME"),
    ] = None,
    max_body: Annotated[
        str | None,
        _opt("--max-body", help="Largest request body (default 64MiB).", panel=_ENDPOINT, metavar="SIZE"),
    ] = None,
    grace: Annotated[
        str | None,
        _opt(
            "--grace",
            help="Time running requests get after Ctrl-C (default 30s).",
            panel=_ENDPOINT,
            metavar="TIME",
        ),
    ] = None,
) -> None:
    """Serve a model to many users through one OpenAI-compatible endpoint.

    Every flag is also an environment variable (ONEBIT_PARALLEL) and a key in the --config file (parallel);
    the flag wins, then the environment, then the file. What stands after -- goes to llama-server untouched.

    \b
    onebit serve                                   a small demo model on the CPU
    onebit serve -m qwen.gguf --parallel 8         8 requests decode together
    onebit serve -m qwen.gguf --adaptive           two engines, one for the crowd
    onebit serve -m qwen.gguf --mtp                fastest for one person
    onebit serve -m qwen.gguf -- --temp 0.2        more flags for llama-server
    """
    given = {
        name: value
        for name, value in context.params.items()
        if value is not None and name not in ("config", "model_argument")
    }
    if model_argument is not None:
        if model is not None:
            raise typer.BadParameter(f"the model is named twice: {model_argument} and --model {model}")
        given["model"] = model_argument
    if context.obj:
        given["engine_args"] = list(context.obj)
    raise typer.Exit(_run(given, config))


def _run(given: dict[str, Any], file: Path | None) -> int:
    import anyio

    from onebit.commands import console
    from onebit.commands.progress import progress
    from onebit.commands.serve_display import home_as_tilde, show_draining, show_start
    from onebit.config.load import load
    from onebit.engines.plan import plan
    from onebit.engines.run_folder import run_folder
    from onebit.models.gguf_file import inspect
    from onebit.models.pull import resolve
    from onebit.router.listen import listen
    from onebit.serve import Ending, Server

    if os.environ.get("ONEBIT_API_KEY") == "":
        given.setdefault("api_key", "")  # Click takes an empty variable for none: that would be an open door
    config = load(given, file)
    keys = config.keys()
    listener = listen(config.host, config.port)
    with progress() as report:
        path = resolve(config.model, report)
    if config.alias is None and config.model == "demo":
        config = config.model_copy(update={"alias": "demo"})
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    decided = plan(config, inspect(path), _finder(config), inspect, cores)
    for spec in decided.engines:
        where = f"engine {spec.name}: {home_as_tilde(spec.build.path)}\n  ({spec.build.origin})"
        console.err().print(where, style="dim", soft_wrap=True, markup=False)

    async def run(folder: Path) -> Ending:
        server = Server(config, decided, keys, listener, folder)
        return await server.run(show_start, show_draining)

    with run_folder() as folder:
        ending = anyio.run(run, folder, backend_options={"use_uvloop": True})
    if ending is Ending.CUT:
        console.err().print("stopped; requests that were still running were cut off")
    return ending.value


def _finder(config: ServeConfig) -> Callable[[Device], Build]:
    """find_build, each device once; where nothing serves the CPU and somebody is there to ask, it offers to compile."""
    from functools import cache

    from onebit.commands import console, engines
    from onebit.engines.builds import find_build
    from onebit.engines.device import DeviceKind
    from onebit.errors import NoBuild

    @cache
    def find(device: Device) -> Build:
        try:
            return find_build(device, config.llama_server)
        except NoBuild as error:
            if config.llama_server or device.kind is not DeviceKind.CPU or not sys.stdin.isatty():
                raise
            console.err().print(f"{error.message}.", markup=False)
            if not typer.confirm("Compile one now? (about 5 minutes on two cores)", default=True, err=True):
                raise
            engines.build_engine(device.kind)
            return find_build(device)

    return find
