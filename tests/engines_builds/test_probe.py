"""What the probe reads from real answers, and how it names each way of not being a usable llama-server."""

from __future__ import annotations

import os
import struct
from pathlib import Path

import pytest

from onebit.engines.device import Device, DeviceKind, FoundDevice
from onebit.engines.probe import explain_exit, parse_devices, parse_version, probe
from onebit.errors import NoBuild
from tests.engines_builds.conftest import LLVMPIPE, VERSION, compile_c, fake_server, script

MIB = 1 << 20


def test_the_version_of_both_spellings() -> None:
    new = f"version: {VERSION}\nbuilt with GNU 12.2.0 for Linux x86_64\n"
    assert parse_version(new) == VERSION
    assert parse_version("version: 6000 (abc1234)\nbuilt with cc for x86_64-linux-gnu\n") == "6000 (abc1234)"
    assert parse_version("GNU coreutils 9.1\n") is None


def test_devices_of_all_kinds() -> None:
    text = """ggml_cuda_init: found 1 CUDA devices:
  Device 0: NVIDIA H200, compute capability 9.0, VMM: yes
Available devices:
  Vulkan0: AMD Radeon Graphics (RADV GFX1151) (98304 MiB, 97211 MiB free)
  Vulkan1: llvmpipe (LLVM 15.0.6, 256 bits) (2048 MiB, 2048 MiB free)
  ROCm0: AMD Radeon Graphics (98304 MiB, 98000 MiB free)
  CUDA10: NVIDIA H200 (143156 MiB, 142500 MiB free)
  MTL0: Apple M4 Max (98304 MiB, 98303 MiB free)
  BLAS: OpenBLAS (0 MiB, 0 MiB free)
  RPC0: 127.0.0.1:50052 (1000 MiB, 1000 MiB free)
"""
    found = parse_devices(text)
    assert found is not None
    assert [(d.id, d.kind, d.software) for d in found] == [
        ("Vulkan0", DeviceKind.VULKAN, False),
        ("Vulkan1", DeviceKind.VULKAN, True),
        ("ROCm0", DeviceKind.ROCM, False),
        ("CUDA10", DeviceKind.CUDA, False),
        ("MTL0", DeviceKind.METAL, False),
    ]
    assert found[0] == FoundDevice(
        "Vulkan0", DeviceKind.VULKAN, "AMD Radeon Graphics (RADV GFX1151)", 98304 * MIB, 97211 * MIB
    )


def test_no_device_is_not_the_same_as_no_answer() -> None:
    assert parse_devices("Available devices:\n  (none)\n") == ()
    assert parse_devices("error: invalid argument: --list-devices\n") is None


def test_a_good_one(home: Path) -> None:
    path = fake_server(home / "llama-server", "CUDA0: NVIDIA H200 (143156 MiB, 142500 MiB free)")
    build = probe(path, origin="a test")
    assert (build.path, build.version, build.origin, dict(build.env)) == (path, VERSION, "a test", {})
    assert build.serves(Device(DeviceKind.CUDA))
    assert build.serves(Device(DeviceKind.CPU))
    assert not build.serves(Device(DeviceKind.CUDA, 1))


def test_a_hidden_software_device_is_shown_and_kept_in_the_environment(home: Path) -> None:
    build = probe(fake_server(home / "llama-server", hidden=LLVMPIPE), origin="a test")
    assert dict(build.env) == {"GGML_VK_VISIBLE_DEVICES": "0"}
    assert [(d.id, d.software) for d in build.devices] == [("Vulkan0", True)]


def test_a_real_card_is_never_hidden_behind_the_variable(home: Path) -> None:
    real = "Vulkan0: AMD Radeon Graphics (98304 MiB, 97211 MiB free)"
    build = probe(fake_server(home / "llama-server", real, hidden=LLVMPIPE), origin="a test")
    assert dict(build.env) == {}
    assert [(d.description, d.software) for d in build.devices] == [("AMD Radeon Graphics", False)]


def test_the_users_own_choice_of_vulkan_devices_stays(home: Path) -> None:
    path = fake_server(home / "llama-server", hidden=LLVMPIPE)
    build = probe(path, origin="a test", env={**os.environ, "GGML_VK_VISIBLE_DEVICES": "3"})
    assert build.devices == ()
    assert dict(build.env) == {}


def test_a_cpu_build_has_no_devices_and_an_aborting_second_look_harms_nothing(home: Path) -> None:
    assert probe(fake_server(home / "cpu" / "llama-server"), origin="a test").devices == ()
    aborting = script(
        home / "llama-server",
        'if [ -n "$GGML_VK_VISIBLE_DEVICES" ]; then kill -ABRT $$; fi\n'
        "echo 'version: 1 (a)'; echo 'Available devices:'; echo '  (none)'",
    )
    assert probe(aborting, origin="a test").devices == ()


# --- the ways of not being one -----------------------------------------------------------------------------


def reason(path: Path, timeout: float = 60) -> str:
    with pytest.raises(NoBuild) as caught:
        probe(path, origin="a test", timeout=timeout)
    assert str(path) in caught.value.message, "the message says which file it is about"
    assert caught.value.hint
    return caught.value.message


def test_not_found_folder_not_executable(home: Path) -> None:
    assert "does not exist" in reason(home / "nothing")
    assert "is a folder" in reason(home)
    path = home / "llama-server"
    path.write_text("#!/bin/sh\n")
    path.chmod(0o644)
    assert "is not executable" in reason(path)


def test_another_processor(home: Path) -> None:
    path = home / "llama-server"
    other = 183 if os.uname().machine == "x86_64" else 62
    path.write_bytes(b"\x7fELF\x02\x01\x01" + bytes(9) + struct.pack("<HH", 2, other) + bytes(100))
    path.chmod(0o755)
    wanted = "aarch64" if other == 183 else "x86_64"
    assert f"built for another processor ({wanted}; this machine is {os.uname().machine})" in reason(path)


def test_not_a_program_at_all(home: Path) -> None:
    path = home / "model.gguf"
    path.write_bytes(b"GGUF" + bytes(100))
    path.chmod(0o755)
    assert "is not a program that this system can run" in reason(path)


def test_missing_interpreter(home: Path) -> None:
    path = home / "llama-server"
    path.write_text("#!/nowhere/ld-musl.so.1\n")
    path.chmod(0o755)
    assert "loader or interpreter it names is missing" in reason(path)


def test_an_illegal_instruction_also_behind_a_wrapper_script(home: Path) -> None:
    path = compile_c(home / "llama-server", "#include <signal.h>\nint main(void) { return raise(SIGILL); }")
    sentence = "this build uses CPU instructions this machine does not have"
    assert sentence in reason(path)
    assert sentence in reason(script(home / "wrapper", f"ulimit -c 0\n{path}\nexit $?"))


def test_a_missing_shared_library_is_named(home: Path) -> None:
    library = compile_c(home / "libabsent.so", "int absent(void) { return 0; }", "-shared", "-fPIC")
    program = "int absent(void);\nint main(void) { return absent(); }"
    path = compile_c(home / "llama-server", program, f"-L{home}", "-labsent")
    library.unlink()
    assert "the shared library libabsent.so is missing" in reason(path)


def test_a_too_old_system_library() -> None:
    text = "./llama-server: /lib/x86_64-linux-gnu/libc.so.6: version `GLIBC_2.38' not found (required by x)\n"
    assert "it needs GLIBC_2.38" in explain_exit(1, text)


def test_other_deaths_are_told_with_the_last_line(home: Path) -> None:
    assert "exit code 3: no luck" in reason(script(home / "a", "echo first; echo no luck >&2; exit 3"))
    assert "died of SIGSEGV" in reason(script(home / "b", "kill -SEGV $$"))
    assert "exit code 1 without a word" in reason(script(home / "c", "exit 1"))


def test_something_else_than_a_llama_server(home: Path) -> None:
    assert "is not a llama-server" in reason(script(home / "a", "echo 'true (GNU coreutils) 9.1'"))
    assert "does not answer --list-devices" in reason(script(home / "b", "echo 'version: 1 (a)'"))
    assert "printed more than 1 MiB" in reason(script(home / "c", "yes"))


def test_a_hanging_one_is_ended_with_its_children(home: Path) -> None:
    """The FIFO's end of file comes when nobody holds its other end any more: all of them are dead."""
    fifo = home / "fifo"
    os.mkfifo(fifo)
    reader = os.open(fifo, os.O_RDONLY | os.O_NONBLOCK)
    try:
        path = script(home / "llama-server", f"exec 3> {fifo}\necho alive >&3\nsleep 1000 & wait")
        assert "--version did not answer within 0.5 s" in reason(path, timeout=0.5)
        os.set_blocking(reader, True)
        assert os.read(reader, 100) == b"alive\n"
        assert os.read(reader, 100) == b""
    finally:
        os.close(reader)
