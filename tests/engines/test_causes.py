"""Why an engine ended, from what real ones print."""

from __future__ import annotations

import signal

import pytest

from onebit.engines.causes import diagnose
from tests.engines.specs import spec

MODEL = "/m/demo.gguf"


@pytest.mark.parametrize(
    ("code", "line", "text", "retry"),
    [
        (-signal.SIGILL, "", "uses CPU instructions this machine does not have", False),
        (-signal.SIGKILL, "", "memory ran out", True),
        (-signal.SIGSEGV, "", "SIGSEGV", True),
        (-signal.SIGABRT, "ggml_vulkan: ErrorOutOfDeviceMemory", "not enough memory on cpu", True),
        (-signal.SIGABRT, "", "SIGABRT", True),
        (-signal.SIGABRT, "x.c:3: GGML_ASSERT(a && f(b)) failed\n30 wait4.c", "GGML_ASSERT(a && f(b))", True),
        (127, "x: error while loading shared libraries: libvulkan.so.1: cannot open", "library libvulkan.so.1", False),
        (1, "error: invalid argument: --nope", "does not know the flag --nope", False),
        (1, "error while handling argument \"--device\": invalid device: Vulkan7", "no device Vulkan7", False),
        (1, "srv load_model: failed to create MTP context", f"{MODEL} has no multi-token prediction head", False),
        (1, "couldn't bind HTTP server socket, hostname: 127.0.0.1, port: 8080", "could not bind its address", True),
        (1, "tensor 'x' data is not within the file bounds, model is corrupted", f"{MODEL} is truncated", False),
        (1, "gguf_init_from_file_impl: invalid magic characters: '<!DO'", f"{MODEL} is not a GGUF file", False),
        (1, "unknown model architecture: 'qwen9'", "does not know the architecture qwen9", False),
        (1, "alloc_tensor_range: x\nllama_model_load: unable to allocate CPU buffer", "not enough memory", True),
        (1, "srv load_model: failed to load model, '/m/demo.gguf'", f"could not load {MODEL}", False),
        (3, "something odd", "exited with status 3: something odd", True),
        (3, "", "exited with status 3: no output", True),
        (-250, "", "ended by signal 250", True),
    ],
)  # fmt: skip
def test_a_cause_in_one_sentence(code: int, line: str, text: str, retry: bool) -> None:
    cause = diagnose(code, line.split("\n"), spec())
    assert text in cause.text
    assert cause.retry is retry
    assert "\n" not in cause.text
    assert "{" not in cause.text


def test_the_root_is_named_not_what_follows_from_it() -> None:
    lines = ["ggml_vulkan: ErrorOutOfDeviceMemory", "error: failed to load model"]
    assert "not enough memory" in diagnose(1, lines, spec()).text


def test_braces_in_a_path_do_no_harm() -> None:
    from pathlib import Path

    assert "{x}" in diagnose(1, ["failed to load model"], spec(model=Path("/m/{x}.gguf"))).text
