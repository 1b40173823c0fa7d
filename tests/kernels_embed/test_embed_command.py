"""`onebit embed`, as a user and as a program see it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file
from typer.testing import CliRunner

from onebit.commands.embed import app
from onebit.errors import EmbedError
from onebit.kernels.embed import default_embedder
from onebit.kernels.embed.table import default_folder

NOTES = ["the cat sat on the mat", "quarterly revenue grew", "how to bake bread", "\x1b[31mred\x1b[0m"]


def _run(*args: str) -> str:
    result = CliRunner().invoke(app, args, catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.stdout


@pytest.fixture
def notes(tmp_path: Path) -> Path:
    path = tmp_path / "notes.txt"
    path.write_text("\n".join(NOTES))
    return path


@pytest.fixture
def index(notes: Path) -> Path:
    _run("index", str(notes), "-o", str(notes.with_suffix(".index")))
    return notes.with_suffix(".index")


@pytest.mark.parametrize("word", [[], ["text"]])
def test_texts_to_a_table(word: list[str]) -> None:
    lines = _run(*word, "a cat", "a kitten", "taxes").splitlines()
    assert lines[0].split("\t") == ["TEXT", "TOKENS", "COSINE", "256 DIMENSIONS"]
    cosines = [float(line.split("\t")[2]) for line in lines[1:]]
    assert cosines[0] == 1 > cosines[1] > cosines[2]


def test_a_text_that_begins_with_a_dash() -> None:
    done = subprocess.run([sys.executable, "-m", "onebit", "embed", "text", "--", "-x", "--json"], capture_output=True)
    assert done.returncode == 0, done.stderr
    assert [line.split()[0] for line in done.stdout.splitlines()[1:]] == [b"-x", b"--json"]


def test_texts_for_programs() -> None:
    (line,) = _run("--json", "a cat").splitlines()
    vector = default_embedder().encode(["a cat"])[0]
    assert json.loads(line) == {"text": "a cat", "embedding": vector.tolist()}


def test_a_text_that_is_a_commands_name() -> None:
    assert _run("text", "index").splitlines()[1].startswith("index\t")


def test_an_index_is_searched(index: Path) -> None:
    lines = _run("search", str(index), "a kitten on a rug", "-k", "2").splitlines()
    assert lines[0].split("\t") == ["SCORE", "ROW", "TEXT"]
    assert lines[1].split("\t")[1:] == ["0", NOTES[0]]
    assert len(lines) == 3


def test_a_search_for_programs_with_a_filter(index: Path) -> None:
    (line,) = _run("search", str(index), "a kitten", "--containing", "revenue", "--json").splitlines()
    assert (json.loads(line)["row"], json.loads(line)["text"]) == (1, NOTES[1])


def test_what_is_typed_is_bytes(tmp_path: Path) -> None:
    """Python hides bytes that are not UTF-8 in halves of characters, which no file and no JSON may hold."""
    path = tmp_path / "notes"
    path.write_bytes(b"caf\xff\ncaf\xc3\xa9\n")
    _run("index", str(path), "-o", str(tmp_path / "index"))
    typed = os.fsdecode(b"caf\xff")
    (line,) = _run("search", str(tmp_path / "index"), typed, "--containing", typed, "--json").splitlines()
    assert json.loads(line)["row"] == 0
    (line,) = _run("text", "--json", typed).splitlines()
    assert json.loads(line) == {"text": "caf\ufffd", "embedding": default_embedder().encode([b"caf\xff"])[0].tolist()}


@pytest.mark.parametrize("spelling", ["n.index", "sub/../n.index", "symbolic", "hard"])
def test_an_index_is_not_made_of_itself(index: Path, spelling: str) -> None:
    source = index.rename(index.with_name("n.index"))
    (source.parent / "sub").mkdir()
    (source.parent / "symbolic").symlink_to(source)
    (source.parent / "hard").hardlink_to(source)
    before, names = source.read_bytes(), sorted(source.parent.iterdir())
    with pytest.raises(EmbedError, match="is the file to read"):
        _run("index", str(source), "-o", str(source.parent / spelling))
    assert source.read_bytes() == before
    assert sorted(source.parent.iterdir()) == names


def test_texts_from_files_do_not_steer_the_terminal(index: Path) -> None:
    assert "\x1b" not in _run("search", str(index), "red")


def test_an_index_of_another_table_is_refused(index: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.mkdir()
    tokens = len(default_embedder().table.rows)
    save_file({"embeddings": np.ones((tokens, 8), np.float32)}, other / "model.safetensors")
    (other / "tokenizer.json").write_bytes((default_folder() / "tokenizer.json").read_bytes())
    _run("convert", str(other), "-o", str(tmp_path / "made"), "--dims", "4")
    with pytest.raises(EmbedError, match="was made with another table"):
        _run("search", str(index), "x", "--table", str(tmp_path / "made"))


def test_fields(tmp_path: Path) -> None:
    path = tmp_path / "adapters.jsonl"
    path.write_text('{"name": "pirate", "about": "talks like a pirate"}\n{"name": "sql", "about": "writes queries"}\n')
    _run("index", str(path), "--field", "about", "-o", str(tmp_path / "index"))
    (line,) = _run("search", str(tmp_path / "index"), "arr matey, a pirate", "-k", "1", "--json").splitlines()
    assert json.loads(json.loads(line)["text"])["name"] == "pirate"
