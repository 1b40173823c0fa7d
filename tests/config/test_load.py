"""Settings from everywhere, and one good message for each mistake."""

from __future__ import annotations

from pathlib import Path

import pytest

from onebit.config.load import load
from onebit.errors import ConfigError


def write(tmp_path: Path, text: str) -> Path:
    file = tmp_path / "onebit.yaml"
    file.write_text(text)
    return file


def test_a_flag_beats_the_file_and_the_file_beats_the_default(tmp_path: Path) -> None:
    file = write(tmp_path, "parallel: 8\nport: 9000\nmax-wait: 2m\nmax_body: 1MiB\ndevice: cpu\n")
    config = load({"port": 9001, "device": "vulkan,rocm", "parallel": "8,16"}, file)
    assert (config.port, config.host) == (9001, "127.0.0.1")
    assert config.device == ("vulkan", "rocm")
    assert config.parallel == (8, 16)
    assert (config.max_wait, config.max_body) == (120, 1 << 20)
    assert load({}, file).parallel == (8,)


def test_an_empty_file_is_no_settings(tmp_path: Path) -> None:
    assert load({}, write(tmp_path, "# nothing yet\n")) == load({})


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("port: 8080\nparalel: 8\n", ":2: paralel: there is no such setting; did you mean parallel?"),
        ("parallel: 0\n", ":1: parallel: input should be greater than or equal to 1"),
        ("\n\nport: many\n", ":3: port: "),
        ("max_body: 24 gigs\n", "a size is a number with an optional unit"),
        ("max_body: inf\n", "a size is a number"),
        ("max_body: 1e400\n", ":1: max_body: "),
        ("alias: 2024-13-01\n", "not valid YAML"),
        ("max_wait: soon\n", ":1: max_wait: "),
        ("draft: magic\n", ":1: draft: input should be 'ngram'"),
        ("llama_server: /nowhere/llama-server\n", "/nowhere/llama-server does not exist"),
        ("port: 1\nport: 2\n", ":2: port is set twice, first on line 1"),
        ("- a\n- b\n", "a config file holds settings"),
        ("just words\n", "a config file holds settings"),
        ("a: [1,\n", ":2: not valid YAML"),
        ("a: !!python/object/apply:os.system ['true']\n", "not valid YAML"),
    ],
)
def test_a_mistake_in_the_file_names_file_line_and_fix(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load({}, write(tmp_path, text))
    assert message in caught.value.message
    assert str(tmp_path / "onebit.yaml") in caught.value.message or "does not exist" in caught.value.message
    assert caught.value.exit_code == 2


def test_all_mistakes_are_told_at_once(tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        load({"port": 70000}, write(tmp_path, "parallel: 0\nfoo: 1\n"))
    lines = caught.value.message.splitlines()
    assert len(lines) == 3
    assert any(line.startswith("--port (or ONEBIT_PORT): ") for line in lines)


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="does not exist"):
        load({}, tmp_path / "no.yaml")


def test_a_file_that_is_not_text(tmp_path: Path) -> None:
    file = tmp_path / "model.gguf"
    file.write_bytes(b"GGUF\xff\xfe\x00")
    with pytest.raises(ConfigError, match="cannot read config file"):
        load({}, file)


def test_a_key_is_not_shown(tmp_path: Path) -> None:
    assert "hunter2" not in repr(load({"api_key": "hunter2"}))
