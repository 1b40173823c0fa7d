"""`onebit embed`: texts to vectors, an index of them, searching it; tables converted and distilled."""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperGroup

from onebit.commands import console
from onebit.commands.progress import progress, size_text

if TYPE_CHECKING:
    from typer._click import Context  # typer's own copy of click

    from onebit.kernels.embed import Embedder


class TextByDefault(TyperGroup):
    """What begins with no name of a command is a text: `onebit embed "a text"` is `onebit embed text "a text"`."""

    def parse_args(self, ctx: Context, args: list[str]) -> list[str]:
        """Put the command's name before the texts."""
        if args and args[0] not in self.commands and args[0] not in ("-h", "--help"):
            args = ["text", *args]
        return super().parse_args(ctx, args)


app = typer.Typer(
    cls=TextByDefault,
    no_args_is_help=True,
    help="""Texts as vectors, in about a microsecond each, and search among millions of them.

Examples:

  onebit embed "a cat sat on the mat" "the kitten is on the rug"

  onebit embed index notes.txt -o notes.index

  onebit embed search notes.index "where is the cat"
""",
)

Table = Annotated[
    Path | None,
    typer.Option("--table", metavar="FOLDER", help="An embedding table. Default: the one that comes with onebit."),
]
Threads = Annotated[int, typer.Option("--threads", min=1, max=256, help="Threads to work with.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON, for programs.")]
Out = Annotated[Path, typer.Option("--out", "-o", metavar="PATH", help="Where to write the result.")]


@app.command()
def text(
    texts: Annotated[list[str], typer.Argument(metavar="TEXT...", help="Texts to embed.")],
    table: Table = None,
    as_json: Json = False,
) -> None:
    """Embed texts. The word `text` may be left out. The cosine is with the first of them.

    Examples:

      onebit embed "a cat sat on the mat" "the kitten is on the rug"

      onebit embed --json "a cat sat on the mat" > vector.json
    """
    texts = [_typed(one).decode("utf-8", "replace") for one in texts]
    embedder = _embedder(table)
    vectors = embedder.encode(texts)
    if as_json:
        for one, vector in zip(texts, vectors, strict=True):
            typer.echo(json.dumps({"text": one, "embedding": vector.tolist()}))
        return
    from onebit.kernels.embed.vectors import unit

    units = unit(vectors)
    rows = [
        (one, str(len(ids)), f"{float(vector @ units[0]):.3f}", " ".join(f"{x:+.3f}" for x in vector[:3]) + " …")
        for one, ids, vector in zip(texts, embedder.tokenize(texts), units, strict=True)
    ]
    _print(("TEXT", "TOKENS", "COSINE", f"{embedder.dims} DIMENSIONS"), rows)


@app.command()
def index(
    file: Annotated[
        Path, typer.Argument(metavar="FILE", help="A text file: one text a line. Empty ones are left out.")
    ],
    out: Out,
    field: Annotated[
        str | None,
        typer.Option("--field", help="The lines are JSON objects; embed this field of theirs, keep the whole line."),
    ] = None,
    table: Table = None,
    threads: Threads = 1,
) -> None:
    """Make an index of the lines of a file, to be searched with `onebit embed search`.

    Examples:

      onebit embed index notes.txt -o notes.index

      onebit embed index adapters.jsonl --field about -o adapters.index
    """
    from onebit.errors import EmbedError
    from onebit.kernels.embed.index import IndexWriter
    from onebit.kernels.embed.lines import read_lines

    with suppress(OSError):  # either is not there: then they are not the same
        if out.samefile(file):
            raise EmbedError(f"{out} is the file to read, and would be overwritten", hint="name another one with -o")
    embedder = _embedder(table)
    rows = 0
    with progress() as report, IndexWriter(out, embedder.dims, embedder.table.fingerprint()) as writer:
        for part in read_lines(file, field):
            writer.add(part.lines, embedder.encode(part.texts, threads=threads))
            rows += len(part.lines)
            report("indexing", part.done, part.total)
    console.err().print(_plain(f"{rows:,} texts, {size_text(out.stat().st_size)}: {out}"))


@app.command()
def search(
    index_file: Annotated[Path, typer.Argument(metavar="INDEX", help="What `onebit embed index` made.")],
    query: Annotated[str, typer.Argument(metavar="QUERY", help="What to look for.")],
    count: Annotated[int, typer.Option("--count", "-k", min=1, max=10_000, help="How many texts to show.")] = 10,
    containing: Annotated[
        str | None, typer.Option("--containing", help="Only texts that contain this, letter for letter.")
    ] = None,
    table: Table = None,
    threads: Threads = 1,
    as_json: Json = False,
) -> None:
    """Find the nearest texts. Every vector is compared, so that none is missed.

    Examples:

      onebit embed search notes.index "how do I repair a bicycle"

      onebit embed search notes.index "repair" --containing bicycle -k 3 --json
    """
    from onebit.errors import EmbedError
    from onebit.kernels.embed import Index

    found, embedder = Index(index_file), _embedder(table)
    if found.table != embedder.table.fingerprint():
        raise EmbedError(
            f"{index_file} was made with another table", hint="name it with --table, or make the index again"
        )
    allow = None if containing is None else found.containing(_typed(containing))
    hits = found.vectors.search(embedder.encode([_typed(query)])[0], count, allow=allow, threads=threads)
    if as_json:
        for hit in hits:
            typer.echo(json.dumps({"score": round(hit.score, 6), "row": hit.row, "text": found.text(hit.row)}))
        return
    _print(("SCORE", "ROW", "TEXT"), [(f"{hit.score:.3f}", str(hit.row), found.text(hit.row)) for hit in hits])


@app.command()
def convert(
    source: Annotated[
        Path, typer.Argument(metavar="FOLDER", help="A static model saved by model2vec or sentence-transformers.")
    ],
    out: Out,
    dims: Annotated[int | None, typer.Option("--dims", min=1, help="Keep only the first dimensions.")] = None,
) -> None:
    """Convert a static table of another project to int8.

    Example:

      onebit embed convert ./potion-base-8M -o my-table
    """
    from onebit.kernels.embed.convert import convert as convert_table

    made = convert_table(source, out, dims=dims)
    console.err().print(_plain(f"{len(made.rows):,} tokens × {made.dims} dimensions: {out}"))


@app.command()
def distill(
    teacher: Annotated[Path, typer.Argument(metavar="TEACHER", help="Folder of a sentence-transformer.")],
    texts: Annotated[
        Path, typer.Option("--texts", metavar="FILE", help="What to learn from: one text a line, 10,000 or more.")
    ],
    out: Out,
    dims: Annotated[int, typer.Option("--dims", min=1, help="Dimensions of the table.")] = 256,
    epochs: Annotated[int, typer.Option("--epochs", min=1, help="How often every text is learnt.")] = 5,
) -> None:
    """Make a table of your own from a sentence-transformer and your texts. Needs `pip install 'onebit[distill]'`.

    Example:

      onebit embed distill ./all-MiniLM-L6-v2 --texts mine.txt -o my-table
    """
    from onebit.kernels.embed.distill import Recipe
    from onebit.kernels.embed.distill import distill as distill_table
    from onebit.kernels.embed.lines import read_lines

    lines = [line for part in read_lines(texts, None) for line in part.texts]
    with progress(of_bytes=False) as report:
        made = distill_table(teacher, [_decoded(line) for line in lines], out, Recipe(dims=dims, epochs=epochs), report)
    console.err().print(_plain(f"{len(made.rows):,} tokens × {made.dims} dimensions: {out}"))


def _embedder(table: Path | None) -> Embedder:
    import warnings

    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        from onebit.kernels.embed import Embedder

        embedder = Embedder.load(table)
    for warning in said:
        console.err().print(_plain(f"note: {warning.message}", style="yellow"))
    return embedder


def _typed(text: str) -> bytes:
    """What stands on the command line, as UTF-8: bytes that Python could not decode (it hid them) as they are."""
    return text.encode("utf-8", "surrogateescape")


def _decoded(text: str | bytes) -> str:
    return text if isinstance(text, str) else text.decode("utf-8", "replace")


def _plain(text: str, style: str = "") -> Any:
    """Text that is never read as markup, nor can steer the terminal: texts come from files."""
    from rich.text import Text

    return Text("".join(c if c.isprintable() else " " for c in text), style=style)


def _print(headers: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> None:
    """Columns without lines on a terminal, tabs in a pipe."""
    out = console.out()
    if not out.is_terminal:
        for row in (headers, *rows):
            typer.echo("\t".join("".join(c if c.isprintable() else " " for c in cell) for cell in row))
        return
    from rich.table import Table as RichTable

    table = RichTable(box=None, header_style="bold", pad_edge=False, padding=(0, 2, 0, 0))
    for header in headers:
        number = header in ("TOKENS", "COSINE", "SCORE", "ROW")
        table.add_column(header, justify="right" if number else "left", overflow="fold", no_wrap=number)
    for row in rows:
        table.add_row(*map(_plain, row))
    out.print(table)
