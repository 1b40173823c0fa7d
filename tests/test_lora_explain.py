"""`onebit lora explain`: what a person and a program read, without a server; the model need not be there."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from typer.testing import CliRunner

from onebit.cli import app
from onebit.errors import ConfigError, ModelFileError
from tests.support.gguf_files import Value, write_gguf, write_model

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
    for name in ("a", "b"):
        write_adapter(tmp_path / f"{name}.gguf", {"general.description": "Answers in\nvery few words\x1b[31m"})
    file = tmp_path / "onebit.yaml"
    file.write_text(CONFIG)
    return file


def write_adapter(path: Path, more: dict[str, Value]) -> None:
    tensors = {"token_embd.weight.lora_a": (8, 16), "token_embd.weight.lora_b": (24, 8)}
    write_gguf(path, arch="llama", metadata={"general.type": "adapter", **more}, tensors=tensors)


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


def test_without_a_config_it_shows_the_command_with_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ONEBIT_CONFIG", raising=False)
    with pytest.raises(ConfigError, match="needs the config file") as caught:
        run("x")
    assert caught.value.exit_code == 2
    assert "onebit lora explain PROMPT --config onebit.yaml" in (caught.value.hint or "")


def test_binary_files_as_config(config: Path) -> None:
    with pytest.raises(ConfigError, match=r"a\.gguf:1: not valid YAML: the character U\+0003 is not allowed"):
        run("x", "--config", config.parent / "a.gguf")


@pytest.mark.parametrize("fetched", [True, False])
@pytest.mark.parametrize(
    ("kind", "text"), [("model", "is not a LoRA adapter"), ("invoked", "activated adapter"), ("cut", "is truncated")]
)
def test_it_refuses_what_serve_refuses(config: Path, kind: str, text: str, fetched: bool) -> None:
    bad = config.parent / "b.gguf"
    if kind == "model":
        write_model(bad)
    elif kind == "invoked":
        write_adapter(bad, {"adapter.alora.invocation_tokens": [1, 2]})
    else:
        bad.write_bytes(bad.read_bytes()[:200])
    if fetched:
        write_model(config.parent / "base.gguf")
        config.write_text(CONFIG.replace("hf:owner/is-not-fetched:Q4_K_M", "base.gguf"))
    with pytest.raises(ModelFileError, match=rf"onebit\.yaml:\d: models\.chat.*{text}"):
        run("x", "--config", config)


def test_it_refuses_adapters_for_another_model(config: Path) -> None:
    write_model(config.parent / "base.gguf", arch="qwen2")
    config.write_text(CONFIG.replace("hf:owner/is-not-fetched:Q4_K_M", "base.gguf"))
    with pytest.raises(ModelFileError, match=r"onebit\.yaml:5: models\.chat\.adapters\.pirate: .* the model is qwen2"):
        run("x", "--config", config)


def test_a_model_that_there_is_not(config: Path) -> None:
    config.write_text(CONFIG.replace("hf:owner/is-not-fetched:Q4_K_M", "is-no-model"))
    with pytest.raises(ModelFileError, match=r"onebit\.yaml:2: models\.chat: no model is named 'is-no-model'"):
        run("x", "--config", config)
