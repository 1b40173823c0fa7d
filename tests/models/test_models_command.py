"""`onebit models`, as a user and as a program see it."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest
from rich.console import Console
from rich.text import Text
from typer.testing import CliRunner

from onebit.commands import console
from onebit.commands.models import app
from onebit.commands.progress import progress
from onebit.errors import ModelFileError
from tests.models.web import Served, WebServer
from tests.support.gguf_files import write_model


@pytest.fixture
def model(models_dir: Path) -> Path:
    folder = models_dir / "example.com-12345678"
    folder.mkdir(parents=True)
    return write_model(folder / "tiny.gguf", head=True)


def _run(*args: str) -> str:
    result = CliRunner().invoke(app, args, catch_exceptions=False)
    assert result.exit_code == 0
    return result.stdout


def test_list_is_plain_when_piped(model: Path) -> None:
    lines = _run("list").splitlines()
    assert lines[0].split() == ["NAME", "ARCHITECTURE", "QUANT", "SIZE", "STATE"]
    size = f"{model.stat().st_size / 1000:.1f}"
    assert lines[1].split() == ["tiny", "llama", "F32", size, "kB", "pulled"]
    assert lines[2].startswith("demo ")
    assert "can be pulled" in lines[2]
    assert all(line.isascii() and line.isprintable() for line in lines)


def test_list_for_programs(model: Path) -> None:
    tiny, demo = json.loads(_run("list", "--json"))
    assert tiny == {
        "name": "tiny",
        "path": str(model),
        "architecture": "llama",
        "quantization": "F32",
        "size_bytes": model.stat().st_size,
        "state": "pulled",
    }
    assert (demo["name"], demo["path"], demo["size_bytes"]) == ("demo", None, 98_362_432)


def test_a_broken_model_does_not_break_the_list(model: Path) -> None:
    model.write_bytes(model.read_bytes()[:300])
    row = json.loads(_run("list", "--json"))[0]
    assert row["state"].startswith("broken: is truncated")


def test_show(model: Path) -> None:
    text = _run("show", "tiny")
    facts = dict(line.split("  ", 1) for line in text.splitlines())
    assert facts["File"].strip() == str(model)
    assert facts["MTP head"].strip() == "yes, 1 layer"
    assert "KiB per token" in facts["KV cache"]
    assert json.loads(_run("show", str(model), "--json"))["has_mtp_head"] is True


def test_show_fetches_nothing(models_dir: Path) -> None:
    with pytest.raises(ModelFileError, match="not pulled yet") as caught:
        _run("show", "demo")
    assert caught.value.hint == "onebit models pull demo"


def test_names_from_files_are_no_markup(tmp_path: Path, models_dir: Path) -> None:
    path = write_model(tmp_path / "m.gguf", extra={"general.name": "[red]x[/nope] \x1b[2J"})
    assert "[red]x[/nope] [2J" in _run("show", str(path))


def test_a_terminal_of_80_columns(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    screen = io.StringIO()
    monkeypatch.setattr(console, "out", lambda: Console(file=screen, width=80, force_terminal=True))
    monkeypatch.setattr(console, "err", lambda: Console(file=io.StringIO(), width=80, force_terminal=True))
    _run("list")
    _run("show", "tiny")
    text = _without_ansi(screen.getvalue())
    assert "demo" in text
    assert "MTP head" in text
    assert all(len(line) <= 80 for line in text.splitlines())


def _without_ansi(text: str) -> str:
    return Text.from_ansi(text).plain


def test_pull_prints_the_path_on_stdout(web: WebServer, models_dir: Path, tmp_path: Path) -> None:
    web.files["/m.gguf"] = Served(write_model(tmp_path / "m.gguf").read_bytes())
    result = CliRunner().invoke(app, ["pull", web.url("/m.gguf")], catch_exceptions=False)
    assert Path(result.stdout.strip()).is_relative_to(models_dir)
    assert Path(result.stdout.strip()).exists()
    assert "Downloading m.gguf" in result.stderr


def test_rm_deletes_what_was_pulled_and_nothing_else(model: Path, tmp_path: Path) -> None:
    own = write_model(tmp_path / "own.gguf")
    for args in (["rm", str(own)], ["rm", "tiny", str(own)], ["rm", "demo"]):
        with pytest.raises(ModelFileError, match="no model that onebit has pulled"):
            _run(*args)
    assert own.exists()
    assert model.exists()
    _run("rm", "tiny")
    assert not model.parent.exists()


def test_progress_on_a_terminal_and_in_a_pipe(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    screen = io.StringIO()
    monkeypatch.setattr(console, "err", lambda: Console(file=screen, width=80, force_terminal=True))
    with progress() as report:
        report("Connecting", 0, None)
        report("Downloading [x]", 5_000_000, 10_000_000)
    shown = _without_ansi(screen.getvalue())
    assert "Downloading [x]" in shown
    assert "5.0/10.0 MB" in shown
    monkeypatch.setattr(console, "err", lambda: Console(file=io.StringIO()))
    with progress() as report:
        report("Downloading", 0, 10_000_000)
        report("Downloading", 1, 10_000_000)  # at once: no line of its own
        report("Verifying", 0, None)
    assert capsys.readouterr().err.splitlines() == ["Downloading (10.0 MB)", "Verifying"]
