"""`onebit lora`, as a user and as a program see it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from tests.kernels_lora.files import factors, model_weights, stock_loop, write_kohya, write_peft
from tests.support.gguf_files import write_gguf


def _onebit(*args: str | Path) -> subprocess.CompletedProcess[str]:
    argv = [sys.executable, "-m", "onebit", "lora", *map(str, args)]
    env = {**os.environ, "COLUMNS": "300"}  # no line is wrapped inside what is looked for
    return subprocess.run(argv, capture_output=True, text=True, check=False, env=env)


@pytest.fixture
def base(tmp_path: Path) -> Path:
    save_file(model_weights(), tmp_path / "base.safetensors")
    return tmp_path / "base.safetensors"


def test_merge(tmp_path: Path, base: Path) -> None:
    pirate, formal = write_peft(tmp_path / "pirate", seed=1), write_peft(tmp_path / "formal", seed=2)
    out = tmp_path / "out.safetensors"
    done = _onebit("merge", base, "-a", f"{pirate}:0.8", "-a", formal, "-o", out)
    assert (done.returncode, done.stdout) == (0, f"{out}\n")
    assert "merged 2 adapters into 6 of 9 tensors (exact)" in done.stderr
    wanted = stock_loop(model_weights(), (factors(4, seed=1), 0.8 * 2), (factors(4, seed=2), 2.0))
    got = load_file(out)
    assert all(torch.equal(got[name], wanted[name]) for name in wanted)


def test_an_error_is_one_message(tmp_path: Path, base: Path) -> None:
    other = write_kohya(tmp_path / "x:y.safetensors")  # a colon that is no strength
    save_file({"unrelated.weight": torch.ones(3, 3)}, base)
    done = _onebit("merge", base, "-a", other, "-o", tmp_path / "out.safetensors")
    assert done.returncode == 1
    assert done.stderr.startswith("error: adapter x:y: the model has no lora_unet_layers_0_mlp_down_proj")
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "out.safetensors").exists()
    assert _onebit("merge", base, "-a", other, "-o", tmp_path / "o", "--mode", "odd").returncode == 2


@pytest.mark.parametrize("ending", [signal.SIGTERM, signal.SIGHUP, signal.SIGINT])
def test_ended_in_the_middle_it_leaves_nothing(tmp_path: Path, base: Path, ending: signal.Signals) -> None:
    adapter, out = write_peft(tmp_path / "pirate"), tmp_path / "new" / "out.safetensors"
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    with suppress(BlockingIOError):  # a full pipe: the merge stands still in its first line of progress
        while True:
            os.write(writer, bytes(4096))
    os.set_blocking(writer, True)
    argv = [sys.executable, "-m", "onebit", "lora", "merge", *map(str, (base, "-a", adapter, "-o", out))]
    with subprocess.Popen(argv, stderr=writer, stdout=subprocess.DEVNULL) as process, os.fdopen(reader, "rb") as stderr:
        os.close(writer)
        while not list(tmp_path.glob("new/.*.part")):
            assert process.poll() is None
            time.sleep(0.01)
        process.send_signal(ending)
        said = stderr.read()
    assert process.returncode == 128 + ending
    assert b"Traceback" not in said
    assert list(out.parent.iterdir()) == []


def test_names_in_messages_are_printable(tmp_path: Path, base: Path) -> None:
    save_file({"red\x1b[31m.lora_down.weight": torch.ones(2, 3)}, tmp_path / "x.safetensors")
    done = _onebit("merge", base, "-a", tmp_path / "x.safetensors", "-o", tmp_path / "o.safetensors")
    assert done.returncode == 1
    assert "red[31m has no B (up)" in done.stderr


def test_show(tmp_path: Path) -> None:
    adapter = write_peft(tmp_path / "pirate", rank=4)
    shown = _onebit("show", adapter).stdout
    assert "Format      peft" in shown
    assert "base_model.model.model.layers.*.self_attn.q_proj (2)  24×16      4      8      2" in shown
    data = json.loads(_onebit("show", adapter, "--json").stdout)
    assert data["ranks"] == [4]
    assert data["modules"]["base_model.model.model.layers.1.mlp.down_proj"]["weight_shape"] == [16, 40]


def test_diff_of_adapters(tmp_path: Path) -> None:
    a = write_kohya(tmp_path / "a.safetensors", alpha=2.0)
    b = write_kohya(tmp_path / "b.safetensors", alpha=3.0)
    assert _onebit("diff", a, a).returncode == 0
    done = _onebit("diff", a, b, "--json")
    assert done.returncode == 1
    row = json.loads(done.stdout)["weights"][0]
    assert row["distance"] == pytest.approx(0.5)  # ‖2x − 3x‖ / ‖2x‖
    assert row["cosine"] == pytest.approx(1.0)


def test_diff_of_models(tmp_path: Path, base: Path) -> None:
    changed = model_weights()
    changed["model.embed_tokens.weight"][0, 0] += 1
    save_file(changed, tmp_path / "b.safetensors")
    done = _onebit("diff", base, tmp_path / "b.safetensors")
    assert done.returncode == 1
    assert "1 of 9 common weights differ" in done.stderr
    assert "0.20 %" in done.stdout  # one of 512 numbers
    assert _onebit("diff", base, base).returncode == 0
    assert "is an adapter and" in _onebit("diff", write_kohya(tmp_path / "k.safetensors"), base).stderr
    facts = {"general.type": "adapter", "adapter.type": "lora"}
    tensors = {"token_embd.weight.lora_a": (8, 16), "token_embd.weight.lora_b": (24, 8)}
    gguf = write_gguf(tmp_path / "a.gguf", arch="llama", metadata=facts, tensors=tensors)
    assert "is an adapter as GGUF, which cannot be compared" in _onebit("diff", gguf, gguf).stderr


def test_diff_of_tensors_that_are_empty_or_hold_nans(tmp_path: Path) -> None:
    a, b = tmp_path / "a.safetensors", tmp_path / "b.safetensors"
    tensors = {"empty": torch.zeros(0, 3), "also": torch.zeros(2, 0), "nan": torch.tensor([1.0, torch.nan])}
    save_file(tensors, a)
    save_file(tensors, b)
    assert _onebit("diff", a, b).returncode == 0
    infinite = {"inf": torch.tensor([[torch.inf, 1.0]])}
    save_file(tensors | infinite, a)
    save_file(tensors | {"nan": torch.tensor([torch.nan, 1.0]), "inf": torch.tensor([[torch.inf, 2.0]])}, b)
    done = _onebit("diff", a, b)
    assert "Warning" not in done.stderr
    assert (done.returncode, "2 of 4 common weights differ" in done.stderr) == (1, True)
