"""`onebit serve`: its flags. What it does is in serve_run.py."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

_MODEL, _ENGINES, _MEMORY, _KEYS, _ENDPOINT = "Model", "Engines", "Memory", "Keys and tiers", "Endpoint"


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
    profile: Annotated[
        str | None,
        _opt(
            "--profile",
            help="What `onebit bench profile` measured: auto, off or a file.",
            panel=_ENGINES,
            metavar="FILE",
        ),
    ] = None,
    hold_gain: Annotated[
        float | None,
        _opt("--hold-gain", help="With a profile: wait if the others gain this share (default 0.1).", panel=_ENGINES),
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
        str | None,
        _opt("--n-gpu-layers", "-ngl", help="Layers on the GPU (default all).", panel=_ENGINES, metavar="N"),
    ] = None,
    threads: Annotated[
        str | None,
        _opt(
            "--threads",
            "-t",
            help="CPU threads of each engine (default the cores but one, shared out).",
            panel=_ENGINES,
            metavar="N",
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
    # --- memory
    memory: Annotated[
        str | None,
        _opt("--memory", help="Memory models may take (default what there is).", panel=_MEMORY, metavar="SIZE"),
    ] = None,
    idle_unload: Annotated[
        str | None,
        _opt("--idle-unload", help="Unload after this time unused (default never).", panel=_MEMORY, metavar="TIME"),
    ] = None,
    preload: Annotated[
        bool | None,
        _opt("--preload/--no-preload", help="Load at the start (default), or at the first request.", panel=_MEMORY),
    ] = None,
    pin: Annotated[
        bool | None,
        _opt("--pin/--no-pin", help="Never unload (default without --idle-unload).", panel=_MEMORY),
    ] = None,
    protect: Annotated[
        str | None,
        _opt("--protect", help="Keep a model from lower tiers so long (default 1m).", panel=_MEMORY, metavar="TIME"),
    ] = None,
    min_residency: Annotated[
        str | None,
        _opt("--min-residency", help="A loaded model stays so long (default 5s).", panel=_MEMORY, metavar="TIME"),
    ] = None,
    max_hold: Annotated[
        str | None,
        _opt("--max-hold", help="Pass over a waiting model so long (default 30s).", panel=_MEMORY, metavar="TIME"),
    ] = None,
    # --- keys and tiers
    api_key: Annotated[
        str | None,
        _opt(
            "--api-key",
            help="Key clients must send, of tier paid. Better: ONEBIT_API_KEY, for `ps` shows this one.",
            panel=_KEYS,
        ),
    ] = None,
    api_key_file: Annotated[
        str | None,
        _opt("--api-key-file", help="File with one key a line, mode 0600.", panel=_KEYS, metavar="FILE"),
    ] = None,
    default_tier: Annotated[
        str | None,
        _opt(
            "--default-tier",
            help="Tier without a key: paid, subscriber, free, background; none refuses (default with keys).",
            panel=_KEYS,
            metavar="TIER",
        ),
    ] = None,
    max_wait_boost: Annotated[
        str | None,
        _opt(
            "--max-wait-boost",
            help="A request that waited so long goes first (default never).",
            panel=_KEYS,
            metavar="TIME",
        ),
    ] = None,
    # --- the endpoint
    host: Annotated[
        str | None, _opt("--host", help="Address to listen on (default 127.0.0.1).", panel=_ENDPOINT)
    ] = None,
    port: Annotated[
        int | None, _opt("--port", "-p", help="Port (default 8080); 0: any free one.", panel=_ENDPOINT)
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
            help="Time running requests get after Ctrl-C, or when their model must go (default 30s).",
            panel=_ENDPOINT,
            metavar="TIME",
        ),
    ] = None,
    log_format: Annotated[
        str | None,
        _opt("--log-format", help="human, json or auto (default).", panel=_ENDPOINT, metavar="FORMAT"),
    ] = None,
) -> None:
    """Serve models to many users through one OpenAI-compatible endpoint.

    Every flag is also an environment variable (ONEBIT_PARALLEL) and a key in the --config file (parallel);
    the flag wins, then the environment, then the file. What stands after -- goes to llama-server untouched.
    Several models, and API keys with a tier each, are written in the file.

    \b
    onebit serve                                   a small demo model on the CPU
    onebit serve -m qwen.gguf --parallel 8         8 requests decode together
    onebit serve -m qwen.gguf --adaptive           two engines, one for the crowd
    onebit serve -m qwen.gguf --mtp                fastest for one person
    onebit serve -m qwen.gguf -- --temp 0.2        more flags for llama-server
    onebit serve --config onebit.yaml              several models, keys and tiers
    """
    given = {
        name: value
        for name, value in context.params.items()
        # Typer gives () for a repeatable flag that was not used: that would override the file's setting.
        if value is not None and value != () and name not in ("config", "model_argument")
    }
    if model_argument is not None:
        if model is not None:
            raise typer.BadParameter(f"the model is named twice: {model_argument} and --model {model}")
        given["model"] = model_argument
    if context.obj:
        given["engine_args"] = list(context.obj)
    from onebit.commands.serve_run import run

    raise typer.Exit(run(given, config))
