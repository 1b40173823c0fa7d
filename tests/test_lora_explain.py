"""`onebit lora explain`: what a person and a program read, without a server and without the model."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from typer.testing import CliRunner

from onebit.cli import app
from onebit.errors import ConfigError
from tests.support.gguf_files import write_gguf

CONFIG = """\
models:
  chat:
    path: hf:owner/is-not-fetched:Q4_K_M
    adapters:
      pirate: {path: a.gguf, about: Talks like a pirate captain of the high seas}
      brief: {path: b.gguf}
  plain: {path: demo}
"""


@pytest.fixture
def config(tmp_path: Path) -> Path:
    tensors = {"token_embd.weight.lora_a": (8, 16), "token_embd.weight.lora_b": (24, 8)}
    for name in ("a", "b"):
        metadata = {"general.type": "adapter", "general.description": "Answers in\nvery few words\x1b[31m"}
        write_gguf(tmp_path / f"{name}.gguf", arch="llama", metadata=metadata, tensors=tensors)
    file = tmp_path / "onebit.yaml"
    file.write_text(CONFIG)
    return file


def run(*args: str | Path) -> str:
    result = CliRunner().invoke(app, ["lora", "explain", *map(str, args)], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.output


def test_the_nearest_is_chosen_and_all_are_shown(config: Path) -> None:
    lines = run("arr, talk like a pirate", "--config", config).splitlines()
    assert re.fullmatch(r"chat: pirate \(the nearest is at 0\.\d+; it takes 0\.35\)", lines[0])
    assert re.fullmatch(r"pirate\t0\.\d{3}\tTalks like a pirate captain of the high seas", lines[1])
    assert lines[2].endswith("Answers in very few words[31m")  # no control characters


def test_none_is_chosen_when_none_is_near(config: Path) -> None:
    assert run("what is 2 + 2", "--config", config).startswith("chat: none (the nearest is at ")
    assert run(" ", "--config", config).startswith("chat: none (the message holds no words; ")


def test_json(config: Path) -> None:
    answer = json.loads(run("talk like a pirate", "--config", config, "--model", "chat", "-k", "1", "--json"))
    assert (answer["model"], answer["chosen"], answer["threshold"]) == ("chat", "pirate", 0.35)
    assert [one["adapter"] for one in answer["scores"]] == ["pirate"]


@pytest.mark.parametrize(("model", "text"), [("chta", "has no model chta"), ("plain", "lists no adapters for plain")])
def test_models_that_are_not_there_or_have_none(config: Path, model: str, text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        run("x", "--config", config, "-m", model)
