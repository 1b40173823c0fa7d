"""What a build lacks is named at once, before anything is compiled, with the packages that bring it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from onebit import paths
from onebit.engines import toolchain
from onebit.engines.device import DeviceKind
from onebit.engines.toolchain import Facts, VulkanHeaders, fix, missing
from onebit.errors import ConfigError, MissingTools

FRESH = Facts(system="Linux")
OLD = VulkanHeaders(Path("/usr/include"), "1.3.239", new_enough=False)
READY = Facts(
    system="Linux",
    programs=frozenset({"cmake", "ninja", "glslc", "hipcc", "nvcc"}),
    cmake=(3, 25),
    cxx17=True,
    vulkan_headers=VulkanHeaders(Path("/usr/include"), "1.4.309", new_enough=True),
    vulkan_library=True,
    spirv_headers=True,
)


def names(kind: DeviceKind, facts: Facts) -> list[str]:
    return [entry.what for entry in missing(kind, facts)]


def test_a_fresh_machine_is_told_everything_at_once() -> None:
    assert names(DeviceKind.CPU, FRESH) == ["cmake", "ninja", "c++"]
    vulkan = ["glslc", "vulkan/vulkan.hpp", "libvulkan.so", "SPIRV-Headers"]
    assert names(DeviceKind.VULKAN, FRESH) == ["cmake", "ninja", "c++", *vulkan]
    assert names(DeviceKind.ROCM, FRESH)[-1] == "hipcc"
    assert names(DeviceKind.CUDA, FRESH)[-1] == "nvcc"
    assert names(DeviceKind.METAL, FRESH)[-1] == "macOS"


@pytest.mark.parametrize("kind", [kind for kind in DeviceKind if kind is not DeviceKind.METAL])
def test_a_ready_machine_lacks_nothing(kind: DeviceKind) -> None:
    assert missing(kind, READY) == []
    assert missing(kind, replace(READY, programs=READY.programs - {"ninja"} | {"make"})) == []


def test_cmake_must_be_new_enough_for_the_device() -> None:
    old = replace(READY, cmake=(3, 18))
    assert names(DeviceKind.CPU, old) == []
    assert names(DeviceKind.VULKAN, old) == ["cmake"]
    assert missing(DeviceKind.VULKAN, old)[0].why == "3.19 or newer, this is 3.18"


def test_old_vulkan_headers_and_the_way_out() -> None:
    lacking = missing(DeviceKind.VULKAN, replace(READY, vulkan_headers=OLD))
    assert [entry.what for entry in lacking] == ["vulkan/vulkan.hpp"]
    for word in ("/usr/include", "1.3.239", "vk::LayerSettingEXT", "1.4.309"):
        assert word in lacking[0].why
    way_out = fix(lacking, "debian")
    assert "dpkg -x" in way_out
    assert "--vulkan-headers DIR" in way_out
    assert "apt install" not in way_out, "installing the same headers again would not help"


def test_the_fix_is_one_command_where_the_distribution_is_known() -> None:
    lacking = missing(DeviceKind.VULKAN, FRESH)
    assert fix(lacking, "debian") == "sudo apt install cmake ninja-build g++ glslc libvulkan-dev spirv-headers"
    fedora = "cmake ninja-build gcc-c++ glslc vulkan-headers vulkan-loader-devel spirv-headers-devel"
    assert fix(lacking, "fedora") == f"sudo dnf install {fedora}"
    assert [line.split()[1] for line in fix(lacking, None).splitlines()] == ["apt", "dnf", "pacman"]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("ID=debian\n", "debian"),
        ('NAME="Ubuntu"\nID=ubuntu\nID_LIKE=debian\n', "debian"),
        ('ID="rocky"\nID_LIKE="rhel centos fedora"\n', "fedora"),
        ("ID=manjaro\nID_LIKE=arch\n", "arch"),
        ("ID=alpine\n", None),
    ],
)
def test_distribution(tmp_path: Path, text: str, expected: str | None) -> None:
    file = tmp_path / "os-release"
    file.write_text(text)
    assert toolchain.distribution(file) == expected
    assert toolchain.distribution(tmp_path / "none") is None


def write_headers(folder: Path, patch: int, structs: str) -> None:
    (folder / "vulkan").mkdir(parents=True)
    (folder / "vulkan" / "vulkan.hpp").write_text("#pragma once\n")
    (folder / "vulkan" / "vulkan_core.h").write_text(
        f"// Version of this file\n#define VK_HEADER_VERSION {patch}\n\n"
        "#define VK_HEADER_VERSION_COMPLETE VK_MAKE_API_VERSION(0, 1, 3, VK_HEADER_VERSION)\n"
    )
    (folder / "vulkan" / "vulkan_structs.hpp").write_text(structs)


def test_headers_are_read_from_the_files(tmp_path: Path) -> None:
    write_headers(tmp_path / "new" / "usr" / "include", 290, "  struct LayerSettingEXT\n  {\n")
    write_headers(tmp_path / "old", 239, "  struct LayerProperties\n  {\n")
    found = toolchain.find_vulkan_headers(tmp_path / "new")
    assert found == VulkanHeaders(tmp_path / "new" / "usr" / "include", "1.3.290", new_enough=True)
    assert toolchain.find_vulkan_headers(tmp_path / "old") == VulkanHeaders(
        tmp_path / "old", "1.3.239", new_enough=False
    )
    with pytest.raises(ConfigError, match="--vulkan-headers"):
        toolchain.find_vulkan_headers(tmp_path)


def test_an_empty_path_is_a_machine_without_tools(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(home))
    monkeypatch.delenv("CXX", raising=False)
    with pytest.raises(MissingTools) as caught:
        toolchain.check(DeviceKind.VULKAN)
    for tool in ("cmake", "ninja", "c++", "glslc", "libvulkan.so"):
        assert f"  - {tool}: " in caught.value.message
    assert not paths.builds_dir().exists()


def test_this_machine_can_compile_for_its_cpu() -> None:
    facts = toolchain.check(DeviceKind.CPU)
    assert facts.cxx17
    assert facts.cmake is not None


def test_a_compiler_that_does_not_work_is_no_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", "false")
    assert not toolchain.look(DeviceKind.CPU).cxx17
