"""What the flags of `onebit serve` hand on."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from onebit.cli import app
from onebit.commands import serve_run
from onebit.config.load import check_config
from onebit.errors import ConfigError

Handed = list[tuple[dict[str, Any], Path | None]]


@pytest.fixture
def handed(monkeypatch: pytest.MonkeyPatch) -> Handed:
    """What `serve` has been asked for, instead of serving it."""
    calls: Handed = []

    def run(given: dict[str, Any], file: Path | None) -> int:
        calls.append((given, file))
        return 0

    monkeypatch.setattr(serve_run, "run", run)
    return calls


def serve(*args: str) -> None:
    result = CliRunner().invoke(app, ["serve", *args])
    assert result.exit_code == 0, result.output


def test_a_flag_that_is_not_used_is_not_given(handed: Handed) -> None:
    serve()
    serve("--lora", "a.gguf", "--lora", "b.gguf:0.5", "--no-mtp")
    assert handed[0] == ({}, None)
    given = handed[1][0]
    assert given.keys() == {"lora", "mtp"}
    assert (list(given["lora"]), given["mtp"]) == (["a.gguf", "b.gguf:0.5"], False)


def test_adapters_of_the_file_are_not_overridden_by_none(handed: Handed, tmp_path: Path) -> None:
    file = tmp_path / "onebit.yaml"
    file.write_text("port: 0\nlora: nope.gguf\n")
    serve("--config", str(file))
    ((given, asked),) = handed
    with pytest.raises(ConfigError) as caught:
        check_config(asked, given)
    assert f"{file}:2: lora" in caught.value.message and "nope.gguf does not exist" in caught.value.message
