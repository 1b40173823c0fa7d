"""`onebit embed`, as a user and as a program see it."""

from __future__ import annotations

import json
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
