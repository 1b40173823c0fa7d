"""The `onebit` program: its commands, and the one place where an error becomes a message and an exit code."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Any, TextIO, cast

import typer
from typer.core import TyperCommand

from onebit import __version__
from onebit.commands import (
    bench,
    bench_gate,
    console,
    doctor,
    embed,
    engine_logs,
    engines,
    lora,
    lora_explain,
    models,
    reload,
    serve,
    status,
    tune,
)
from onebit.errors import OnebitError

if TYPE_CHECKING:
    from typer._click import Context, HelpFormatter  # typer's own copy of click


class GroupedCommand(TyperCommand):
    """Shows options under the headings of their panels, as rich's help does, but in click's plain layout.

    Loading rich for a help page took 0.15 of its 0.34 s.
    """

    def format_options(self, ctx: Context, formatter: HelpFormatter) -> None:
        """Write the arguments and options."""
        sections: dict[str, list[tuple[str, str]]] = {}
        for param in self.get_params(ctx):
            record = param.get_help_record(ctx)
            if record is not None:
                usual = "Arguments" if param.param_type_name == "argument" else "Options"
                sections.setdefault(getattr(param, "rich_help_panel", None) or usual, []).append(record)
        for title, records in sections.items():
            with formatter.section(title):
                formatter.write_dl(records)


app = typer.Typer(
    name="onebit",
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    help="Share one GPU among many users: engines, slots and one OpenAI-compatible endpoint.",
)
app.command("serve", cls=GroupedCommand, short_help="Serve a model through one OpenAI-compatible endpoint.")(
    serve.serve
)
app.command("status", short_help="Models, memory, slots and waiters of a running server.")(status.status)
app.command("top", short_help="The same as a live screen.")(status.top)
app.command("logs", short_help="What a model's engines print.")(engine_logs.logs)
app.command("reload", short_help="Let a running server read its edited config.")(reload.reload)
app.command("doctor", short_help="What works here, what does not, and how to fix it.")(doctor.doctor)
app.command("tune", short_help="Measure, then say which command lines to use.")(tune.tune)
bench.app.command("gate", short_help="What an admission costs, beside other gates.")(bench_gate.gate)
app.add_typer(bench.app, name="bench")
app.add_typer(engines.app, name="engines")
app.add_typer(models.app, name="models")
app.add_typer(embed.app, name="embed")
lora.app.command("explain")(lora_explain.explain)
app.add_typer(lora.app, name="lora")


def _version(wanted: bool) -> None:
    if wanted:
        print(f"onebit {__version__}")
        raise typer.Exit


@app.callback()
def root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    """Nothing but the options that belong to no command."""


_WITH_ENGINE_FLAGS = ("serve", "bench")


def main() -> None:
    """Entry point. Where a command starts engines, what stands after `--` is for them and never reaches the parser."""
    args = sys.argv[1:]
    command = next((arg for arg in args if not arg.startswith("-")), "")
    cut = args.index("--") if command in _WITH_ENGINE_FLAGS and "--" in args else len(args)
    _clean_up_when_ended()
    if sys.stdout is not None:  # `onebit … >&-`
        sys.stdout = cast("TextIO", _Output(sys.stdout))
    try:
        try:
            app(args=args[:cut], prog_name="onebit", obj=tuple(args[cut + 1 :]))
        finally:
            if sys.stdout is not None:  # here: where it fails at the interpreter's exit, a traceback is printed
                sys.stdout.flush()
    except OnebitError as error:
        _show(error)
        sys.exit(error.exit_code)
    except KeyboardInterrupt:
        sys.exit(130)
    except BrokenPipeError:  # `onebit … | head`
        _forget_output()
        sys.exit(1)
    except OSError as error:  # a full disk, a file that may not be read: nothing that a traceback would explain
        reason = error.strerror or str(error) or type(error).__name__
        if error.filename == _STDOUT:
            _forget_output()
            reason = f"cannot write the output: {reason}"
        elif error.filename is not None:
            reason += f": {error.filename}"
        _show(OnebitError(reason))
        sys.exit(1)


_STDOUT = "<stdout>"


class _Output:
    """stdout, whose errors carry its name: nothing else tells them from those of another file."""

    def __init__(self, file: TextIO) -> None:
        self._file = file

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)

    def write(self, text: str) -> int:
        """As a file's."""
        with self._named():
            return self._file.write(text)

    def flush(self) -> None:
        """As a file's."""
        with self._named():
            self._file.flush()

    @contextmanager
    def _named(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            error.filename = _STDOUT
            raise


def _forget_output() -> None:
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _clean_up_when_ended() -> None:
    """Have SIGTERM and SIGHUP unwind a command, as Ctrl-C does: half-written files are removed then.

    A server and a benchmark have handlers of their own while they run; under nohup SIGHUP stays ignored.
    """
    for name in ("SIGTERM", "SIGHUP"):
        number = getattr(signal, name, None)  # Windows has no SIGHUP
        if number is not None and signal.getsignal(number) is signal.SIG_DFL:
            signal.signal(number, lambda signum, _: sys.exit(128 + signum))


def _show(error: OnebitError) -> None:
    from rich.text import Text

    from onebit.commands.tables import plain_text

    err = console.err()
    err.print(Text.assemble(("error: ", "bold red"), plain_text(error.message)))
    if error.hint:
        err.print(Text.assemble(("  fix: ", "bold green"), plain_text(error.hint)))
