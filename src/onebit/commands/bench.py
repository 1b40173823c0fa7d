"""`onebit bench`: the sweep. The other benchmarks live under the same roof as sub-commands of `app`.

A benchmark in a module of its own registers with `bench.app.command("NAME")(function)` or `bench.app.add_typer(…)` in
cli.py, where all commands come together.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from onebit.commands import bench_compare, bench_profile

if TYPE_CHECKING:
    from onebit.bench.sweep import Load
    from onebit.bench.target import Setup
    from onebit.commands.bench_run import Outcome
    from onebit.errors import OnebitError

app = typer.Typer(invoke_without_command=True, short_help="Measure tokens a second, and draw the curve.")

_OPEN_SLOTS = "8"  # in an open loop nobody says how many requests will run at once

Model = Annotated[
    str | None,
    typer.Option("--model", "-m", help="GGUF file, `demo`, hf:owner/repo:quant or URL.", show_default="demo"),
]
LlamaServer = Annotated[
    Path | None, typer.Option("--llama-server", help="The llama-server executable to use.", metavar="FILE")
]
Threads = Annotated[int | None, typer.Option("--threads", "-t", help="CPU threads of each engine.")]
GpuLayers = Annotated[int | None, typer.Option("--n-gpu-layers", "-ngl", help="Layers on the GPU.", show_default="all")]
StartTimeout = Annotated[str | None, typer.Option("--start-timeout", help="Time to load the model.", metavar="TIME")]


@app.callback()
def bench(
    context: typer.Context,
    model: Model = None,
    device: Annotated[
        str | None, typer.Option("--device", "-dev", help="Devices to compare: vulkan,rocm.", metavar="LIST")
    ] = None,
    requests: Annotated[
        str, typer.Option("--requests", "-r", help="Requests at once.", metavar="LIST")
    ] = "1,2,4,8,12,16,24",
    tokens: Annotated[int, typer.Option("--tokens", "-n", help="Tokens of each answer.")] = 64,
    prompt_tokens: Annotated[int, typer.Option("--prompt-tokens", "-p", help="Tokens of each prompt, about.")] = 64,
    shared_prefix: Annotated[int, typer.Option("--shared-prefix", help="So many of them the same in all prompts.")] = 0,
    answers: Annotated[
        int, typer.Option("--answers", help="Answers that each user asks for, one after the other.")
    ] = 1,
    repeats: Annotated[int, typer.Option("--repeats", help="Rounds, interleaved across all that is compared.")] = 3,
    mtp: Annotated[
        str | None, typer.Option("--mtp", help="Draft lengths to compare, 0: without, e.g. 0,1,2,3.", metavar="LIST")
    ] = None,
    mtp_model: Annotated[
        Path | None, typer.Option("--mtp-model", help="A head-only GGUF to draft with.", metavar="FILE")
    ] = None,
    adaptive: Annotated[bool, typer.Option("--adaptive", help="Also both devices at once behind the router.")] = False,
    adaptive_at: Annotated[
        int | None, typer.Option("--adaptive-at", help="Requests on the first engine before the second is used.")
    ] = None,
    parallel: Annotated[
        str | None,
        typer.Option("--parallel", "-np", help="Slots: of --adaptive, or in open loops (8).", metavar="N[,M]"),
    ] = None,
    router: Annotated[bool, typer.Option("--router", help="Each engine also through `onebit serve`.")] = False,
    url: Annotated[
        list[str] | None, typer.Option("--url", help="Any OpenAI-compatible server; may be repeated.", metavar="URL")
    ] = None,
    url_model: Annotated[
        str | None, typer.Option("--url-model", help="The model's name there.", show_default="the first it lists")
    ] = None,
    api_key_env: Annotated[
        str | None, typer.Option("--api-key-env", help="Environment variable that holds its API key.", metavar="NAME")
    ] = None,
    api: Annotated[str, typer.Option("--api", help="`completions` or `chat`.")] = "completions",
    ignore_eos: Annotated[
        bool, typer.Option("--ignore-eos/--no-ignore-eos", help="Answers go on to their full length.")
    ] = True,
    rate: Annotated[
        float | None, typer.Option("--rate", help="Open loop: so many requests a second, at random times.")
    ] = None,
    duration: Annotated[
        float | None, typer.Option("--duration", help="Seconds of arrivals.", show_default="60")
    ] = None,
    trace: Annotated[
        Path | None, typer.Option("--trace", help="Open loop: times and lengths from a file.", metavar="FILE")
    ] = None,
    seed: Annotated[int, typer.Option("--seed", help="Of the random times.")] = 1,
    threads: Threads = None,
    n_gpu_layers: GpuLayers = None,
    batch_size: Annotated[int | None, typer.Option("--batch-size", "-b", help="Prompt tokens in one go.")] = None,
    llama_server: LlamaServer = None,
    start_timeout: StartTimeout = None,
    silence: Annotated[float, typer.Option("--silence", help="Seconds without a byte: an answer is given up.")] = 120.0,
    json_file: Annotated[
        Path | None, typer.Option("--json", help="Append each row to this file at once.", metavar="FILE")
    ] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on where the --json file ends.")] = False,
    md: Annotated[bool, typer.Option("--md", help="Print Markdown, for pasting.")] = False,
    plot: Annotated[
        Path | None, typer.Option("--plot", help="Draw the curve: .svg, .png, .pdf.", metavar="FILE")
    ] = None,
) -> None:
    """Measure tokens a second for each device and number of requests, and draw the curve.

    \b
    onebit bench -m qwen.gguf --device vulkan,rocm --requests 1,2,4,8,16
    onebit bench -m qwen.gguf --device vulkan,rocm --adaptive --adaptive-at 8
    onebit bench -m qwen.gguf --mtp 0,1,2,3 --requests 1,2,4
    onebit bench --url http://host:8080/v1 --requests 1,4,8
    onebit bench -m qwen.gguf --rate 2.5 --duration 120
    onebit bench -m qwen.gguf --json run.jsonl --resume --md

    Engines are started one after the other and always stopped; Ctrl-C shows what there is by then.
    """
    if context.invoked_subcommand is not None:
        return
    from onebit.bench.plot import check
    from onebit.bench.results import ResultsFile
    from onebit.bench.sweep import Load
    from onebit.commands import bench_prepare as prepare
    from onebit.commands.bench_run import run_sweep
    from onebit.engines.run_folder import run_folder
    from onebit.errors import ConfigError

    if plot is not None:
        check(plot)
    if api not in ("chat", "completions"):
        raise ConfigError(f"--api {api}: it is `completions` or `chat`")
    if resume and json_file is None:
        raise ConfigError("--resume goes on with a file, but there is none", hint="name it: --json FILE")
    prepare.check_lengths(tokens, prompt_tokens, shared_prefix, repeats, answers)
    prepare.within("--silence", silence, 0.1, 86_400)
    arrivals, origin = _arrivals(rate, duration, trace, seed)
    load = Load(
        requests=prepare.numbers("--requests", requests, 1, prepare.MOST_REQUESTS),
        prompt_tokens=prompt_tokens,
        tokens=tokens,
        shared_prefix=shared_prefix,
        answers=answers,
        repeats=1 if arrivals else repeats,
        api="chat" if api == "chat" else "completions",
        ignore_eos=ignore_eos,
        silence=silence,
        arrivals=arrivals,
        origin=origin,
    )
    settings = prepare.engine_settings(
        parallel=parallel,
        adaptive_at=adaptive_at,
        mtp_model=mtp_model,
        threads=threads,
        n_gpu_layers=n_gpu_layers,
        batch_size=batch_size,
        llama_server=llama_server,
        start_timeout=start_timeout,
        engine_args=context.obj or None,
    )
    lengths = () if mtp is None else prepare.numbers("--mtp", mtp, 0, 64)
    with run_folder() as folder:
        setups: list[Setup] = _servers(url, url_model, prepare.key_from(api_key_env))
        skipped: list[OnebitError] = []
        if model is not None or device is not None or not setups:
            own, skipped, measured_on = _engines(
                model or "demo", settings, load, device, lengths, adaptive, router, folder
            )
            setups = own + setups
        else:
            from onebit.bench.machine import machine

            measured_on = {"generator": machine()["cpu"]}
        file = ResultsFile(json_file, resume=resume) if json_file is not None else None
        outcome = run_sweep(setups, load, measured_on, file, folder, skipped)
    _show(outcome, md, plot)
    raise typer.Exit(outcome.exit_code)


def _arrivals(rate: float | None, duration: float | None, trace: Path | None, seed: int) -> tuple[Any, str]:
    from onebit.bench.arrivals import poisson, read_trace
    from onebit.commands.bench_prepare import within
    from onebit.errors import ConfigError

    if rate is not None and trace is not None:
        raise ConfigError("--rate and --trace both say when requests come", hint="choose one of them")
    if duration is not None:
        within("--duration", duration, 1, 7 * 86_400)
    if trace is not None:
        return tuple(read_trace(trace, duration)), f"{trace.name}" + (f", {duration:g} s" if duration else "")
    if rate is None:
        if duration is not None:
            raise ConfigError("--duration is for an open loop", hint="add --rate or --trace")
        return (), ""
    within("--rate", rate, 0.001, 10_000)
    seconds = duration or 60.0
    found = tuple(poisson(rate, seconds, seed))
    if not found:
        raise ConfigError(f"--rate {rate:g} for {seconds:g} s: not one request comes", hint="raise one of them")
    return found, f"{rate:g}/s for {seconds:g} s, seed {seed}"


def _servers(urls: list[str] | None, model: str | None, key: str | None) -> list[Setup]:
    from onebit.bench.endpoint import Endpoint
    from onebit.bench.target import UrlSetup

    endpoints = [Endpoint.of_url(url, key) for url in dict.fromkeys(urls or ())]
    return [UrlSetup(endpoint.name, endpoint, model) for endpoint in endpoints]


def _engines(
    model: str,
    settings: Any,
    load: Load,
    device: str | None,
    lengths: tuple[int, ...],
    adaptive: bool,
    router: bool,
    folder: Path,
) -> tuple[list[Setup], list[OnebitError], dict[str, Any]]:
    """The setups of our own engines, the devices that cannot be measured, and what is measured on."""
    from onebit.bench.setups import Wish
    from onebit.commands import bench_prepare as prepare

    slots = load.requests
    if load.arrivals:
        wanted = settings.get("parallel") or _OPEN_SLOTS
        slots = (max(prepare.numbers("--parallel", wanted, 1, prepare.MOST_REQUESTS)),)
    longest = (
        max((a.prompt_tokens or load.prompt_tokens) + (a.tokens or load.tokens) for a in load.arrivals)
        if (load.arrivals)
        else load.prompt_tokens + load.tokens
    )
    wish = Wish(settings, prepare.devices_of(device), slots, longest, lengths, adaptive, router, folder)
    planner, measured_on = prepare.prepare(model, settings.get("llama_server"), wish)
    setups = planner.setups()
    return setups, planner.skipped, measured_on


def _show(outcome: Outcome, md: bool, plot: Path | None) -> None:
    from onebit.commands import console
    from onebit.commands.bench_display import finish

    if not outcome.results:
        return
    if md:
        from onebit.bench.markdown import markdown

        typer.echo(markdown(outcome.results, outcome.ceiling))
    else:
        finish(outcome.results, outcome.ceiling)
    if plot is not None:
        from onebit.bench.plot import plot as draw

        draw(outcome.results, plot)
        console.err().print(f"drawn: {plot}", markup=False)


app.command("profile")(bench_profile.profile)
app.command("compare")(bench_compare.compare)
