"""A config with several models that is wrong: one message each, with file, line and fix; and nothing was started."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import psutil
import pytest

from tests.support.fake_build import make_fake_build, starts
from tests.support.gguf_files import write_model
from tests.support.serving import command

GOOD = "  good: {path: good.gguf, device: cpu, preload: true}\n"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in ("CACHE", "CONFIG", "STATE", "DATA"):
        monkeypatch.setenv(f"XDG_{name}_HOME", str(tmp_path / name.lower()))
    write_model(tmp_path / "good.gguf")
    make_fake_build(tmp_path / "build", {})
    return tmp_path


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("memory: 24 gigs\nmodels:\n" + GOOD, [":1: memory: ", "'24 gigs' is not a size", "24GiB"]),
        ("modells:\n" + GOOD, [":1: modells: there is no such setting; did you mean models?"]),
        ("models:\n" + GOOD + "  x: {path: good.gguf, paralel: 2}\n", [":3: models.x.paralel: ", "parallel?"]),
        ("models:\n" + GOOD + GOOD, [":3: ", "good is set twice, first on line 2"]),
        ("models:\n" + GOOD + "  x: {path: god.gguf}\n", [":3: models.x.path: ", "did you mean good.gguf?"]),
        ("models:\n" + GOOD + "  x: {path: good.gguf, llama_server: no/such}\n", [":3: models.x.llama_server: "]),
        ("models:\n" + GOOD + "keys: [{name: a, tier: gold, key: k}]\n", [":3: keys[0].tier: ", "paid, subscriber"]),
        ("models:\n" + GOOD + "keys: [{name: a, tier: paid, key_env: UNSET_KEY}]\n", [":3: ", "UNSET_KEY is not set"]),
        ("models:\n" + GOOD + "  x: {path: good.gguf, device: gpu}\n", [":3: models.x.device", "'gpu'", "vulkan"]),
        (
            "models:\n" + GOOD + "  x: {path: good.gguf, engines: [{device: 'rocm:7'}, {device: 'rocm:8'}]}\n",
            [":3: models.x: ", "no rocm device", "onebit doctor"],
        ),
        ("memory: 1MiB\nmodels:\n" + GOOD, [":3: models.good: ", "GiB, and there are", "more `memory`"]),
        ("models:\n" + GOOD + "  x: {path: good.gguf, ctx_size: 1000000}\n", [":3: models.x: ", "128"]),
    ],
    ids=[
        *("size", "setting", "model-setting", "duplicate", "missing-file", "missing-build", "tier", "key", "device"),
        *("no-such-device", "can-never-fit", "context"),
    ],
)
def test_one_message_with_file_line_and_fix_and_nothing_is_started(
    folder: Path, request: pytest.FixtureRequest, text: str, told: list[str]
) -> None:
    # What the machine lacks is no mistake of the file: as with `--device rocm`, that is 1.
    code = 1 if "no-such-device" in request.node.name else 2
    file = folder / "onebit.yaml"
    file.write_text(f"{text}llama_server: build/llama-server\n")
    before = set(psutil.Process().children(recursive=True))
    done = subprocess.run(
        command("serve", "--config", file, "--port", "0"),
        capture_output=True,
        text=True,
        stdin=subprocess.DEVNULL,
        env={**os.environ, "COLUMNS": "400"},
        timeout=100,
    )
    assert done.returncode == code, done.stderr
    errors = [line for line in done.stderr.splitlines() if line.startswith("error: ")]
    assert len(errors) == 1 and f"{file}{told[0]}" in errors[0], done.stderr
    for part in told[1:]:
        assert part in done.stderr
    assert "Traceback" not in done.stderr and "endpoint" not in done.stderr
    assert starts(folder / "build" / "llama-server") == []
    assert set(psutil.Process().children(recursive=True)) <= before
