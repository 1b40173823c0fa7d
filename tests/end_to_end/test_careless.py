"""What a careless user does: one clear message each, the right exit code, no traceback, nothing half-started."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
from pathlib import Path

import psutil
import pytest

from onebit.engines.device import Build
from tests.support.fake_build import make_fake_build, starts
from tests.support.gguf_files import write_model
from tests.support.mtp import build_chain_model, make_adapter, split
from tests.support.serving import command

pytestmark = pytest.mark.engine


def run(*args: str | Path, env: dict[str, str] | None = None, cwd: Path | None = None) -> tuple[int, str]:
    """(exit code, everything printed) of a command that is expected to end by itself."""
    environment = {**os.environ, "COLUMNS": "200", **(env or {})}
    done = subprocess.run(
        command(*args), capture_output=True, text=True, stdin=subprocess.DEVNULL, env=environment, cwd=cwd, timeout=100
    )
    output = done.stdout + done.stderr
    assert "Traceback" not in output, output
    return done.returncode, output


@pytest.fixture
def tiny(tmp_path: Path) -> Path:
    return write_model(tmp_path / "tiny.gguf")


@pytest.fixture
def fake(tmp_path: Path) -> Path:
    return make_fake_build(tmp_path / "b", {})


def test_a_port_that_is_taken_is_told_before_anything_is_started(tiny: Path, fake: Path) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        code, output = run("serve", "-m", tiny, "--llama-server", fake, "--port", str(port))
    assert code == 1
    assert f"cannot listen on 127.0.0.1:{port}: Address already in use" in output
    assert "--port" in output
    assert starts(fake) == []


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "does not exist"),
        (b"", "is empty"),
        (b"<!DOCTYPE html><html>login please", "not a GGUF file"),
        (b"GGUF\x03\x00\x00\x00\x01", "ends"),
    ],
)
def test_a_bad_model_file_is_refused_before_anything_is_started(
    tmp_path: Path, fake: Path, content: bytes | None, message: str
) -> None:
    path = tmp_path / "model.gguf"
    if content is not None:
        path.write_bytes(content)
    code, output = run("serve", "-m", path, "--llama-server", fake, "--port", "0")
    assert code == 1
    assert str(path) in output and message in output
    assert output.count("error:") == 1
    assert starts(fake) == []


def test_a_truncated_demo(tmp_path: Path, demo: Path, fake: Path) -> None:
    path = tmp_path / "cut.gguf"
    path.write_bytes(demo.read_bytes()[:50_000_000])
    code, output = run("serve", "-m", path, "--llama-server", fake)
    assert code == 1 and "truncated" in output


def test_mtp_without_a_head_names_what_would_work(demo: Path, tmp_path: Path) -> None:
    code, output = run("serve", "-m", demo, "--mtp", "--device", "cpu", "--port", "0")
    assert code == 1
    assert "blk.29.nextn.eh_proj.weight" in output
    for way in ("--draft ngram", "--mtp-model", "converted with its head"):
        assert way in output
    # A file that only has the key, not the tensor, is refused all the same.
    chain = build_chain_model(tmp_path / "m.gguf", tokenizer=demo)
    trunk, head = tmp_path / "trunk.gguf", tmp_path / "head.gguf"
    split(chain.path, trunk, head)
    keyed = write_model(tmp_path / "keyed.gguf", extra={"llama.nextn_predict_layers": 1})
    assert "no multi-token prediction head" in run("serve", "-m", keyed, "--mtp", "--port", "0")[1]
    code, output = run("serve", "-m", head, "--port", "0")
    assert code == 1 and "holds only a multi-token prediction head" in output
    code, output = run("serve", "-m", demo, "--mtp-model", head, "--port", "0")
    assert code == 1 and "is for mimo2, the model" in output
    code, output = run("serve", "-m", trunk, "--mtp-model", demo, "--port", "0")
    assert code == 1 and "holds no multi-token prediction head" in output


def test_adapters_that_do_not_fit(demo: Path, tmp_path: Path) -> None:
    chain = build_chain_model(tmp_path / "m.gguf", tokenizer=demo)
    adapter = tmp_path / "a.gguf"
    make_adapter(chain.path, adapter, after=100, say=101)
    code, output = run("serve", "-m", demo, "--lora", adapter, "--port", "0")
    assert code == 1 and "is for mimo2, the model is llama" in output
    code, output = run("serve", "-m", demo, "--lora", f"{demo}:0.5", "--port", "0")
    assert code == 1 and "is not a LoRA adapter" in output
    code, output = run("serve", "-m", adapter, "--port", "0")
    assert code == 1 and "is a LoRA adapter, not a model" in output


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["--device", "gpu"], "unknown device 'gpu'"),
        (["--device", "vulkan:x"], "unknown device 'vulkan:x'"),
        (["--device", "cpu,cpu,cpu", "--adaptive"], "--adaptive takes two"),
        (["--parallel", "0"], "--parallel (or ONEBIT_PARALLEL)"),
        (["--parallel", "four"], "--parallel (or ONEBIT_PARALLEL)"),
        (["--parallel", "2,3"], "fewer engines (1)"),
        (["--ctx-size", "999999"], "the model was trained for 8192 tokens"),
        (["--mtp", "--draft", "ngram"], "choose one of them"),
        (["--draft-max", "3"], "nothing drafts"),
        (["--max-body", "lots"], "a size is a number"),
        (["--port", "99999"], "--port (or ONEBIT_PORT)"),
        (["--api-key", " "], "empty"),
        (["--llama-server", "/nowhere/x"], "/nowhere/x does not exist"),
        (["--config", "/nowhere.yaml"], "config file /nowhere.yaml does not exist"),
    ],
)
def test_settings_that_make_no_sense(demo: Path, args: list[str], message: str) -> None:
    code, output = run("serve", "-m", demo, *args)
    assert code == 2, output
    assert message in output
    assert "fix:" in output or "--help" in output


def test_typing_errors_are_caught_by_the_parser(demo: Path) -> None:
    code, output = run("serve", "--paralel", "4")
    assert code == 2 and "--parallel" in output
    code, output = run("serve", "one.gguf", "two.gguf")
    assert code == 2
    code, output = run("serve", "-m", "demmo", "--port", "0")
    assert code == 1 and "demo" in output
    code, output = run("serve", "--host", "no.such.host.invalid", "-m", demo)
    assert code == 1 and "no.such.host.invalid" in output


def test_an_empty_key_in_the_environment_is_no_open_door(demo: Path) -> None:
    code, output = run("serve", "-m", demo, env={"ONEBIT_API_KEY": ""})
    assert code == 2 and "empty" in output


def test_a_run_folder_that_is_somebody_elses_link_is_not_touched(tiny: Path, fake: Path, tmp_path: Path) -> None:
    precious = tmp_path / "precious"
    (precious / "onebit-1").mkdir(parents=True)
    (precious / "onebit-1" / "lock").write_text("")
    runtime = tmp_path / "runtime"
    runtime.mkdir()
    (runtime / "onebit").symlink_to(precious)
    code, output = run(
        "serve", "-m", tiny, "--llama-server", fake, "--port", "0", env={"XDG_RUNTIME_DIR": str(runtime)}
    )
    assert code == 1 and "is not a folder of your own" in output
    assert (precious / "onebit-1" / "lock").exists()


def test_what_a_killed_server_left_is_removed_and_what_a_living_one_has_is_not(tmp_path: Path) -> None:
    from onebit.engines.run_folder import run_folder

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
        with run_folder() as living:
            left = living.parent / "onebit-left"
            left.mkdir()
            (left / "lock").write_text("")
            with run_folder() as second:
                assert living.exists() and second.exists() and not left.exists()
                assert second.stat().st_mode & 0o777 == 0o700
        assert not living.exists()


def test_the_environment_is_checked_like_flags(demo: Path) -> None:
    code, output = run("serve", "-m", demo, env={"ONEBIT_PARALLEL": "-1"})
    assert code == 2 and "ONEBIT_PARALLEL" in output


def test_a_device_that_is_not_there(demo: Path, cpu_build: Build) -> None:
    code, output = run("serve", "-m", demo, "--device", "rocm", "--port", "0")
    assert code == 1
    assert "onebit engines build rocm" in output


def test_an_engine_argument_that_the_engine_does_not_know(demo: Path, cpu_build: Build) -> None:
    code, output = run("serve", "-m", demo, "--device", "cpu", "--port", "0", "--", "--nope")
    assert code == 1
    assert "does not know the flag --nope" in output


def test_an_engine_that_is_no_llama_server(demo: Path, tmp_path: Path) -> None:
    code, output = run("serve", "-m", demo, "--llama-server", "/bin/true", "--device", "cpu", "--port", "0")
    assert code == 1 and "/bin/true" in output
    script = tmp_path / "not-executable"
    script.write_text("x")
    code, output = run("serve", "-m", demo, "--llama-server", script, "--device", "cpu", "--port", "0")
    assert code == 1 and str(script) in output


def test_ctrl_c_while_the_model_loads(tiny: Path, tmp_path: Path) -> None:
    slow = make_fake_build(tmp_path / "slow", {"loading_s": 3600})
    process = subprocess.Popen(
        command("serve", "-m", tiny, "--llama-server", slow, "--port", "0"), stderr=subprocess.PIPE, text=True
    )
    with process:
        while not starts(slow):
            assert process.poll() is None
        children = psutil.Process(process.pid).children(recursive=True)
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=60)
    assert process.returncode == 0
    assert "Traceback" not in errors
    assert psutil.wait_procs(children, timeout=10)[1] == []


def test_help_has_examples_and_fits_80_columns() -> None:
    for args in (("--help",), ("serve", "--help"), ("engines", "build", "--help"), ("models", "--help")):
        code, output = run(*args, env={"COLUMNS": "80"})
        assert code == 0
        assert max(map(len, output.splitlines())) <= 80
    assert "onebit serve -m qwen.gguf --parallel 8" in run("serve", "--help")[1]
    assert run("--version") == (0, "onebit 0.1.0\n")
