"""What compiling llama-server for a device needs, looked at before anything is compiled.

`look()` asks the system, `missing()` decides (pure) and names all that lacks, and its packages.
"""

from __future__ import annotations

import os
import platform
import re
import shutil
import subprocess
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from onebit.engines.device import DeviceKind
from onebit.errors import ConfigError, MissingTools

_INSTALL = {"debian": "sudo apt install", "fedora": "sudo dnf install", "arch": "sudo pacman -S"}
# The lowest version in the cmake_minimum_required of llama.cpp and of its folder for the device.
_CMAKE = {DeviceKind.VULKAN: (3, 19), DeviceKind.CUDA: (3, 18), DeviceKind.ROCM: (3, 21)}
_CMAKE_ANY = (3, 14)
# What ggml-vulkan.cpp uses that is newest: Debian 12's headers (1.3.239) stop the compile here after minutes.
_NEW_IN_HEADERS = "struct LayerSettingEXT"


@dataclass(frozen=True, slots=True)
class VulkanHeaders:
    """One installed set of Vulkan headers. `new_enough`: it has what llama.cpp uses."""

    folder: Path
    version: str  # "1.3.239"; "" when it could not be read
    new_enough: bool


@dataclass(frozen=True, slots=True)
class Facts:
    """What is installed, as far as a build may ask."""

    system: str  # platform.system()
    programs: frozenset[str] = frozenset()
    cmake: tuple[int, ...] | None = None
    cxx17: bool = False  # a C++17 program can be compiled
    vulkan_headers: VulkanHeaders | None = None
    vulkan_library: bool = False
    spirv_headers: bool = False


@dataclass(frozen=True, slots=True)
class Missing:
    """One thing that is not there: its name, why it will not do, and its package per kind of distribution."""

    what: str
    why: str
    packages: Mapping[str, str]


def _packages(debian: str, fedora: str, arch: str) -> dict[str, str]:
    return {"debian": debian, "fedora": fedora, "arch": arch}


def missing(kind: DeviceKind, facts: Facts) -> list[Missing]:
    """Everything a build for `kind` lacks (pure): a fresh Debian lacks all of cmake, ninja, g++."""
    found = _missing_for_all(kind, facts)
    if kind is DeviceKind.VULKAN:
        found += _missing_vulkan(facts)
    elif kind is DeviceKind.ROCM and "hipcc" not in facts.programs:
        packages = _packages(
            "hipcc libhipblas-dev librocblas-dev",
            "rocm-hip-devel hipblas-devel rocblas-devel",
            "rocm-hip-sdk",
        )
        found.append(Missing("hipcc", "ROCm's compiler, 6.1 or newer", packages))
    elif kind is DeviceKind.CUDA and "nvcc" not in facts.programs:
        packages = _packages("nvidia-cuda-toolkit", "cuda-toolkit", "cuda")
        found.append(Missing("nvcc", "the CUDA compiler", packages))
    elif kind is DeviceKind.METAL and facts.system != "Darwin":
        found.append(Missing("macOS", f"Metal exists there only, this is {facts.system}", {}))
    return found


def _missing_for_all(kind: DeviceKind, facts: Facts) -> list[Missing]:
    found = []
    need = _CMAKE.get(kind, _CMAKE_ANY)
    if facts.cmake is None or facts.cmake < need:
        have = f", this is {_dotted(facts.cmake)}" if facts.cmake else ""
        found.append(Missing("cmake", f"{_dotted(need)} or newer{have}", _packages("cmake", "cmake", "cmake")))
    if not facts.programs & {"ninja", "make"}:
        packages = _packages("ninja-build", "ninja-build", "ninja")
        found.append(Missing("ninja", "runs the compiler; make will do too", packages))
    if not facts.cxx17:
        found.append(Missing("c++", "a C++17 compiler", _packages("g++", "gcc-c++", "gcc")))
    return found


def _missing_vulkan(facts: Facts) -> list[Missing]:
    found = []
    if "glslc" not in facts.programs:
        found.append(Missing("glslc", "compiles the shaders", _packages("glslc", "glslc", "shaderc")))
    headers = facts.vulkan_headers
    if headers is None:
        packages = _packages("libvulkan-dev", "vulkan-headers", "vulkan-headers")
        found.append(Missing("vulkan/vulkan.hpp", "the Vulkan headers", packages))
    elif not headers.new_enough:
        why = (
            f"the Vulkan headers in {headers.folder} are {headers.version or 'of unknown version'}, too old "
            "for this llama.cpp (no vk::LayerSettingEXT; 1.4.309 has it)"
        )
        found.append(Missing("vulkan/vulkan.hpp", why, {}))
    if not facts.vulkan_library:
        packages = _packages("libvulkan-dev", "vulkan-loader-devel", "vulkan-icd-loader")
        found.append(Missing("libvulkan.so", "the Vulkan loader", packages))
    if not facts.spirv_headers:
        packages = _packages("spirv-headers", "spirv-headers-devel", "spirv-headers")
        found.append(Missing("SPIRV-Headers", "with its CMake files", packages))
    return found


def check(kind: DeviceKind, vulkan_headers: Path | None = None) -> Facts:
    """The facts, when a build for `kind` has all it needs. Raises MissingTools naming all that lacks."""
    facts = look(kind, vulkan_headers)
    lacking = missing(kind, facts)
    if lacking:
        lines = [f"  - {entry.what}: {entry.why}" for entry in lacking]
        raise MissingTools(
            f"a build for {kind} needs what is not installed here:\n" + "\n".join(lines),
            hint=fix(lacking, distribution()),
        )
    return facts


def fix(lacking: Iterable[Missing], distro: str | None) -> str:
    """How to get all of `lacking`: one command on the distributions in the table, else the names for each."""
    lacking = list(lacking)
    parts = []
    for name in [distro] if distro in _INSTALL else list(_INSTALL):
        packages = dict.fromkeys(p for entry in lacking for p in entry.packages.get(name or "", "").split())
        if packages:
            parts.append(f"{_INSTALL[name or '']} {' '.join(packages)}")
    if any(entry.what == "vulkan/vulkan.hpp" and not entry.packages for entry in lacking):
        parts.append(
            "newer headers alone will do, nothing needs to be installed: unpack Debian 13's libvulkan-dev "
            "(dpkg -x libvulkan-dev_*.deb DIR) and add --vulkan-headers DIR/usr/include"
        )
    return "\n".join(parts) or "use a machine that has it, or another device"


def distribution(os_release: Path = Path("/etc/os-release")) -> str | None:
    """`debian`, `fedora` or `arch`, whichever this system is or is like; None for any other."""
    try:
        text = os_release.read_text("utf-8")
    except OSError:
        return None
    for name in re.findall(r"[a-z]+", " ".join(re.findall(r"^ID(?:_LIKE)?=(.*)$", text, re.MULTILINE))):
        if name in _INSTALL:
            return str(name)
    return None


# --- asking the system -------------------------------------------------------------------------------------


def look(kind: DeviceKind, vulkan_headers: Path | None = None) -> Facts:
    """What is installed. Raises ConfigError when `vulkan_headers` (a folder the user named) holds none."""
    names = ("cmake", "ninja", "make", "glslc", "hipcc", "nvcc")
    programs = frozenset(name for name in names if shutil.which(name))
    vulkan = kind is DeviceKind.VULKAN
    return Facts(
        system=platform.system(),
        programs=programs,
        cmake=_cmake_version() if "cmake" in programs else None,
        cxx17=_compiles_cxx17(),
        vulkan_headers=find_vulkan_headers(vulkan_headers) if vulkan else None,
        vulkan_library=vulkan and _has_vulkan_library(),
        spirv_headers=vulkan and _has_spirv_headers(),
    )


def find_vulkan_headers(named: Path | None) -> VulkanHeaders | None:
    """The headers CMake will use: those in `named` if given, else the system's.

    `named` may be the folder that holds `vulkan/`, or one above it as `dpkg -x` leaves it.
    """
    if named is None:
        sdk = os.environ.get("VULKAN_SDK")
        folders = ([Path(sdk) / "include"] if sdk else []) + [
            Path("/usr/include"),
            Path("/usr/local/include"),
        ]
    else:
        top = named.expanduser().resolve()
        folders = [top, top / "include", top / "usr" / "include"]
    for folder in folders:
        if (folder / "vulkan" / "vulkan.hpp").is_file():
            return read_vulkan_headers(folder)
    if named is not None:
        raise ConfigError(
            f"--vulkan-headers {named}: there is no vulkan/vulkan.hpp in it",
            hint="give the folder that holds vulkan/vulkan.hpp, e.g. DIR/usr/include after dpkg -x",
        )
    return None


def read_vulkan_headers(folder: Path) -> VulkanHeaders:
    """Read version and age of the headers in `folder`/vulkan."""
    core = folder / "vulkan" / "vulkan_core.h"
    text = core.read_text("utf-8", "replace") if core.is_file() else ""
    patch = re.search(r"#define VK_HEADER_VERSION (\d+)", text)
    complete = re.search(r"VK_HEADER_VERSION_COMPLETE VK_MAKE_API_VERSION\(0, (\d+), (\d+),", text)
    version = f"{complete[1]}.{complete[2]}.{patch[1]}" if complete and patch else ""
    new_enough = any(
        _NEW_IN_HEADERS in (folder / "vulkan" / name).read_text("utf-8", "replace")
        for name in ("vulkan_structs.hpp", "vulkan.hpp")  # one file before 1.2.140, split since
        if (folder / "vulkan" / name).is_file()
    )
    return VulkanHeaders(folder, version, new_enough)


def compiler() -> str:
    """The C++ compiler CMake will take: $CXX, else the first of its usual names."""
    named = os.environ.get("CXX")
    return named or next((name for name in ("c++", "g++", "clang++") if shutil.which(name)), "c++")


def _cmake_version() -> tuple[int, ...] | None:
    found = re.search(r"version (\d+)\.(\d+)", _output(["cmake", "--version"]) or "")
    return (int(found[1]), int(found[2])) if found else None


def _compiles_cxx17() -> bool:
    """Try it, 0.1 s: a compiler without its standard library, or too old, is no compiler."""
    program = "#include <optional>\n#include <string_view>\nint main() { return std::optional<int>(0).value(); }\n"
    return _output([*compiler().split(), "-std=c++17", "-fsyntax-only", "-x", "c++", "-"], program) is not None


def _has_vulkan_library() -> bool:
    sdk = os.environ.get("VULKAN_SDK")
    if sdk and list(Path(sdk).glob("lib*/libvulkan.*")):
        return True
    for name in ("libvulkan.so", "libvulkan.dylib"):
        answer = (_output([*compiler().split(), f"-print-file-name={name}"]) or "").strip()
        if answer and answer != name:  # a compiler that does not find it repeats the name
            return True
    return False


def _has_spirv_headers() -> bool:
    places = [Path(p) for p in (os.environ.get("VULKAN_SDK"), "/usr", "/usr/local", "/opt/homebrew") if p]
    pattern = "cmake/SPIRV-Headers/SPIRV-HeadersConfig.cmake"
    return any(list(place.glob(f"{base}/{pattern}")) for place in places for base in ("share", "lib*", "lib/*"))


def _output(command: list[str], text: str = "") -> str | None:
    """stdout, or None when the program is not there, fails or takes over 30 s."""
    try:
        done = subprocess.run(command, input=text, capture_output=True, text=True, check=False, timeout=30)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout if done.returncode == 0 else None


def _dotted(version: tuple[int, ...]) -> str:
    return ".".join(map(str, version))
