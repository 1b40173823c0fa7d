"""`onebit lora`: merge, show, diff."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from onebit.commands import console
from onebit.commands.progress import progress, size_text
from onebit.commands.tables import plain_table, plain_text, print_table

if TYPE_CHECKING:
    from onebit.kernels.lora.adapter import Adapter

app = typer.Typer(
    help="LoRA adapters: merging, comparing, and which one a message chooses.",
    no_args_is_help=True,
)

_MODES = {"exact": "EXACT", "accurate": "ACCURATE", "fast": "FAST", "bf16": "BF16"}
Json = Annotated[bool, typer.Option("--json", help="Print JSON, for programs.")]


@app.command()
def merge(
    base: Annotated[
        Path, typer.Argument(metavar="BASE", help="A .safetensors or .gguf file, or a folder with safetensors shards.")
    ],
    adapters: Annotated[
        list[str],
        typer.Option(
            "--adapter",
            "-a",
            metavar="FILE[:STRENGTH]",
            help="An adapter (.safetensors, or peft's folder) and how strongly it is wanted; 1 if not said. "
            "Repeat it for more.",
        ),
    ],
    out: Annotated[Path, typer.Option("--out", "-o", metavar="OUT", help="The merged model: a file, or a folder.")],
    mode: Annotated[
        str,
        typer.Option(
            help="exact: the bits of peft's own merge. accurate: rounded once for all adapters. fast: one sum for all. "
            "bf16: fast, with factors of bfloat16."
        ),
    ] = "exact",
    threads: Annotated[int, typer.Option(min=1, max=256, help="Threads that merge one tensor together.")] = 1,
    float32_factors: Annotated[
        bool,
        typer.Option(
            "--float32-factors", help="Widen 16-bit adapters first, as peft does when it loads one by default."
        ),
    ] = False,
    skip_missing: Annotated[
        bool, typer.Option("--skip-missing", help="Leave out modules of adapters that the model has not.")
    ] = False,
    force: Annotated[bool, typer.Option("--force", help="Overwrite OUT if it is a file.")] = False,
) -> None:
    """Merge adapters into a model's weights and write a new model.

    Safetensors (one file or shards) and GGUF (F32, F16, BF16, Q8_0). One tensor is in memory at a time, and OUT is
    there whole or not at all.

    Examples:

      onebit lora merge m.safetensors -a x.safetensors:0.8 -a y.safetensors:0.5 -o out.safetensors

      onebit lora merge ./Qwen3-0.6B -a ./my-adapter -o ./Qwen3-0.6B-mine

      onebit lora merge qwen.Q8_0.gguf -a ./my-adapter -o mine.Q8_0.gguf
    """
    from onebit.checkpoints.merge import merge_files
    from onebit.errors import ConfigError
    from onebit.kernels.lora.terms import Mode

    if mode not in _MODES:
        raise ConfigError(f"--mode {mode} is not known", hint=f"one of {', '.join(_MODES)}")
    wanted = [(_read(path, float32_factors), strength) for path, strength in map(_split, adapters)]
    with progress() as report:
        done = merge_files(
            base,
            wanted,
            out,
            mode=Mode[_MODES[mode]],
            threads=threads,
            allow_missing=skip_missing,
            overwrite=force,
            report=report,
        )
    for name, modules in done.skipped.items():
        more = " …" if len(modules) > 3 else ""
        console.err().print(plain_text(f"{name}: left out {len(modules)} modules: {', '.join(modules[:3])}{more}"))
    if done.left_behind:
        more = " …" if len(done.left_behind) > 3 else ""
        console.err().print(plain_text(f"other weights, not copied: {', '.join(done.left_behind[:3])}{more}"))
    console.err().print(
        plain_text(f"merged {len(wanted)} adapters into {done.changed} of {done.tensors} tensors ({mode})")
    )
    typer.echo(out)


@app.command()
def show(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="A .safetensors adapter, or peft's folder.")],
    as_json: Json = False,
) -> None:
    """Show what an adapter is: format, ranks, alphas, the modules it changes.

    Examples:

      onebit lora show pirate.safetensors

      onebit lora show ./my-adapter --json
    """
    adapter = _read(file, widen=False)
    if as_json:
        typer.echo(json.dumps(_as_dict(adapter), indent=2))
        return
    facts = plain_table()
    for label, value in _facts(adapter):
        facts.add_row(plain_text(label, style="bold"), plain_text(value))
    print_table(facts)
    console.out().print()
    modules = plain_table("MODULE", "WEIGHT", "RANK", "ALPHA", "SCALE")
    for name, count, part in _kinds(adapter):
        rows, cols = part.weight_shape
        label = f"{name} ({count})" if count > 1 else name
        modules.add_row(
            plain_text(label), f"{rows}×{cols}", str(part.rank), f"{part.alpha:g}", f"{part.scale(1.0):.4g}"
        )
    print_table(modules)


@app.command()
def diff(
    a: Annotated[
        Path, typer.Argument(metavar="A", help="An adapter of safetensors, or a model of safetensors or GGUF.")
    ],
    b: Annotated[Path, typer.Argument(metavar="B", help="What to compare it with: of the same kind.")],
    as_json: Json = False,
) -> None:
    """Compare two adapters by what they add to each weight, or two models tensor by tensor.

    DISTANCE is ‖a − b‖ / ‖a‖, COSINE how much both point the same way. Exit code 0 if they are equal, 1 if not.

    Examples:

      onebit lora diff pirate-v1.safetensors pirate-v2.safetensors

      onebit lora diff model.safetensors merged.safetensors
    """
    from onebit.checkpoints.diff import compare

    with progress() as report:
        result = compare(a, b, report)
    if as_json:
        typer.echo(json.dumps({"equal": result.equal, **result.as_dict()}, indent=2))
    else:
        for side, names in (("A", result.only_a), ("B", result.only_b)):
            for name in names:
                typer.echo(f"only in {side}: {plain_text(name)}")
        rows = plain_table("WEIGHT", "DISTANCE", "COSINE", "CHANGED")
        for row in result.rows:
            if not row.equal:
                rows.add_row(plain_text(row.name), f"{row.distance:.3g}", f"{row.cosine:.4f}", row.changed_text)
        if rows.row_count:
            print_table(rows)
        differ = sum(not row.equal for row in result.rows)
        console.err().print(plain_text(f"{differ} of {len(result.rows)} common weights differ"))
    if not result.equal:
        raise typer.Exit(1)


def _split(argument: str) -> tuple[Path, float]:
    """FILE:STRENGTH; what stands behind the last colon belongs to the name unless it is a number."""
    name, colon, tail = argument.rpartition(":")
    try:
        return (Path(name), float(tail)) if colon and name else (Path(argument), 1.0)
    except ValueError:
        return Path(argument), 1.0


def _read(path: Path, widen: bool) -> Adapter:
    from onebit.kernels.lora.readers import read_adapter

    adapter = read_adapter(path, keep=False)
    return adapter.widened() if widen else adapter


def _kinds(adapter: Adapter) -> list[tuple[str, int, Any]]:
    """Modules that differ in their layer's number only are one row: name, how many, the first."""
    import re

    groups: dict[tuple[object, ...], list[Any]] = {}
    for name, part in adapter.factors.items():
        key = (re.sub(r"\d+", "*", name), part.weight_shape, part.rank, part.alpha, part.rslora)
        groups.setdefault(key, []).append(part)
    return [(str(key[0]) if len(parts) > 1 else parts[0].module, len(parts), parts[0]) for key, parts in groups.items()]


def _facts(adapter: Adapter) -> list[tuple[str, str]]:
    types = sorted({part.b.number.name for part in adapter.factors.values()})
    return [
        ("File", str(adapter.path)),
        ("Format", adapter.format),
        ("Modules", str(len(adapter.factors))),
        ("Ranks", ", ".join(str(rank) for rank in adapter.ranks)),
        ("Parameters", f"{adapter.parameters:,}"),
        ("Type", ", ".join(types)),
        ("Size", size_text(adapter.path.stat().st_size)),
        *((f"  {key}", value[:200]) for key, value in sorted(adapter.metadata.items())),
    ]


def _as_dict(adapter: Adapter) -> dict[str, Any]:
    return {
        "file": str(adapter.path),
        "format": adapter.format,
        "ranks": list(adapter.ranks),
        "parameters": adapter.parameters,
        "metadata": dict(adapter.metadata),
        "modules": {
            name: {
                "weight_shape": list(part.weight_shape),
                "rank": part.rank,
                "alpha": part.alpha,
                "scale": part.scale(1.0),
                "type": part.b.number.name,
            }
            for name, part in adapter.factors.items()
        },
    }
