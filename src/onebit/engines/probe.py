"""Find out what a llama-server executable is and which devices it sees, by running it.

Two short runs, `--version` and `--list-devices`, answer what a file name cannot: is it for this processor,
does it start, which version is it, does it see the graphics card. A CPU build (Zen 4) needs 13 ms for each.
"""

from __future__ import annotations

import errno
import os
import platform
import re
import selectors
import signal
import struct
import subprocess
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType

from onebit.engines.device import Build, DeviceKind, FoundDevice
from onebit.errors import NoBuild

# llama.cpp leaves out Vulkan devices of the type CPU (Mesa's llvmpipe) unless this names them by their index.
VISIBLE = "GGML_VK_VISIBLE_DEVICES"
_KINDS = {
    "Vulkan": DeviceKind.VULKAN,
    "ROCm": DeviceKind.ROCM,
    "CUDA": DeviceKind.CUDA,
    "MTL": DeviceKind.METAL,
}
_DEVICE = re.compile(r"^\s+([A-Za-z]+)(\d+): (.*) \((\d+) MiB, (\d+) MiB free\)\s*$", re.MULTILINE)
_VERSION = re.compile(r"^version: (.+?)\s*$", re.MULTILINE)
_MISSING_LIBRARY = (
    re.compile(r"error while loading shared libraries: ([^\s:]+): cannot open"),
    re.compile(r"Library not loaded: (\S+)"),
)
_OLD_LIBRARY = re.compile(r"version [`'\"]([^'\"]+)' not found")
_OUTPUT_LIMIT = 1 << 20  # bytes; a real answer has under 4 KiB
_REBUILD = "build one for this machine: onebit engines build DEVICE"


@dataclass(frozen=True, slots=True)
class _Answer:
    code: int  # as subprocess has it: negative for a signal
    text: str  # stdout and stderr together: --version answers on stderr


def parse_version(text: str) -> str | None:
    """The version in what `--version` prints, or None if that is not llama.cpp's answer."""
    found = _VERSION.search(text)
    return found[1] if found else None


def parse_devices(text: str) -> tuple[FoundDevice, ...] | None:
    """The devices in what `--list-devices` prints (MiB become bytes); None if that is not llama.cpp's answer.

    Devices of kinds that onebit has no word for (BLAS, RPC, SYCL…) are left out.
    """
    if "Available devices:" not in text:
        return None
    listing = text.split("Available devices:", 1)[1]
    return tuple(
        FoundDevice(
            id=name + index,
            kind=_KINDS[name],
            description=description,
            total_bytes=int(total) << 20,
            free_bytes=int(free) << 20,
            software=_is_software(description),
        )
        for name, index, description, total, free in _DEVICE.findall(listing)
        if name in _KINDS
    )


def probe(path: Path, *, origin: str, env: Mapping[str, str] | None = None, timeout: float = 60) -> Build:
    """Run the llama-server at `path` and return what it is. `origin` (for people) goes into the Build.

    `env`: the whole environment to run in, None for this process's own. `timeout`: seconds per run. A Vulkan
    driver's first start may take seconds, a CPU build answers in some 15 ms.
    Raises NoBuild with the cause in one sentence.
    """
    base = dict(os.environ if env is None else env)
    base["LC_ALL"] = "C"  # the loader's messages are read below
    _check_file(path)
    version = parse_version(_must_run(path, "--version", base, timeout))
    if version is None:
        raise NoBuild(f"{path} is not a llama-server: it does not answer --version as llama.cpp does", hint=_REBUILD)
    devices = parse_devices(_must_run(path, "--list-devices", base, timeout))
    if devices is None:
        raise NoBuild(
            f"{path} ({version}) does not answer --list-devices as llama.cpp does: it may be too old",
            hint=_REBUILD,
        )
    extra: dict[str, str] = {}
    if not devices and VISIBLE not in base:
        # Real GPUs never get here, they were listed. A CPU build answers again in 13 ms and changes nothing.
        hidden = _software_devices(path, {**base, VISIBLE: "0"}, timeout)
        if hidden:
            devices, extra = hidden, {VISIBLE: "0"}
    return Build(path=path, version=version, devices=devices, origin=origin, env=MappingProxyType(extra))


def _software_devices(path: Path, env: Mapping[str, str], timeout: float) -> tuple[FoundDevice, ...]:
    """Only a bonus: a Vulkan build on a machine without any Vulkan driver aborts when an index is named."""
    try:
        answer = _run(path, "--list-devices", env, timeout)
    except NoBuild:
        return ()
    found = parse_devices(answer.text) if answer.code == 0 else None
    return tuple(replace(d, software=True) for d in found or () if d.kind is DeviceKind.VULKAN)


def _is_software(description: str) -> bool:
    return any(name in description.lower() for name in ("llvmpipe", "swiftshader"))


# --- running it --------------------------------------------------------------------------------------------


def _check_file(path: Path) -> None:
    if path.is_dir():
        raise NoBuild(f"{path} is a folder, not a llama-server", hint="name the executable itself")
    if not path.exists():
        raise NoBuild(f"{path} does not exist", hint=_REBUILD)
    if not os.access(path, os.X_OK):
        raise NoBuild(f"{path} is not executable", hint=f"chmod +x {path}")


def _must_run(path: Path, flag: str, env: Mapping[str, str], timeout: float) -> str:
    answer = _run(path, flag, env, timeout)
    if answer.code != 0:
        raise NoBuild(f"{path} {explain_exit(answer.code, answer.text)}", hint=_REBUILD)
    return answer.text


def explain_exit(code: int, text: str) -> str:
    """Why a program ended with `code` (negative or above 128: a signal), in words that follow its name."""
    number = -code if code < 0 else code - 128
    if number == signal.SIGILL:
        return "does not start: this build uses CPU instructions this machine does not have"
    for pattern in _MISSING_LIBRARY:
        if library := pattern.search(text):
            return f"does not start: the shared library {library[1]} is missing"
    if old := _OLD_LIBRARY.search(text):
        return f"does not start: it needs {old[1]}, which this system's libraries are too old for"
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    last = f": {lines[-1][:200]}" if lines else " without a word"
    if code < 0 or 128 < code < 128 + 65:
        with suppress(ValueError):
            return f"died of {signal.Signals(number).name}{last}"
    return f"ended with exit code {code}{last}"


def _run(path: Path, flag: str, env: Mapping[str, str], timeout: float) -> _Answer:
    try:
        child = subprocess.Popen(
            [str(path), flag],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env=env,
            start_new_session=True,  # so that a wrapper script's children can be ended with it
        )
    except OSError as error:
        raise NoBuild(f"{path} {_explain_refusal(path, error)}", hint=_REBUILD) from error
    assert child.stdout is not None  # noqa: S101 - PIPE above
    deadline = time.monotonic() + timeout
    try:
        with child.stdout as pipe:
            text = _read(pipe.fileno(), deadline)
        if len(text) >= _OUTPUT_LIMIT:
            raise NoBuild(f"{path} is not a llama-server: {flag} printed more than 1 MiB", hint=_REBUILD)
        code = child.wait(max(0.0, deadline - time.monotonic()))
    except (TimeoutError, subprocess.TimeoutExpired) as error:
        raise NoBuild(f"{path} {flag} did not answer within {timeout:g} s", hint=_REBUILD) from error
    finally:
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(child.pid, signal.SIGKILL)
        child.wait()
    return _Answer(code, text.decode("utf-8", "replace"))


def _read(fd: int, deadline: float) -> bytes:
    """All output up to the limit; TimeoutError when the deadline (monotonic seconds) comes first."""
    data = bytearray()
    with selectors.DefaultSelector() as selector:
        selector.register(fd, selectors.EVENT_READ)
        while len(data) < _OUTPUT_LIMIT:
            if not selector.select(max(0.0, deadline - time.monotonic())):
                raise TimeoutError
            chunk = os.read(fd, 1 << 16)
            if not chunk:
                break
            data += chunk
    return bytes(data)


def _explain_refusal(path: Path, error: OSError) -> str:
    if error.errno == errno.ENOEXEC:
        made_for = _elf_machine(path)
        if made_for is None:
            return "is not a program that this system can run"
        return f"is built for another processor ({made_for}; this machine is {platform.machine()})"
    if error.errno == errno.ENOENT:  # the file is there, so it is the loader or the script's interpreter
        return "cannot start: the loader or interpreter it names is missing (made for another system?)"
    return f"cannot be run: {error.strerror}"


def _elf_machine(path: Path) -> str | None:
    """The processor named in an ELF header, None if it is no ELF file."""
    with path.open("rb") as file:
        head = file.read(20)
    if len(head) < 20 or head[:4] != b"\x7fELF":
        return None
    (machine,) = struct.unpack(">H" if head[5] == 2 else "<H", head[18:20])
    names = {3: "i386", 40: "arm", 62: "x86_64", 183: "aarch64", 243: "riscv", 21: "ppc64", 22: "s390x"}
    return names.get(machine, f"ELF machine {machine}")
