"""How much there is of each pool, on machines laid out as files and on this one."""

from __future__ import annotations

import sys as system
from dataclasses import dataclass, replace
from types import ModuleType

import psutil
import pytest

from onebit.engines.device import Build, Device, DeviceKind, FoundDevice
from onebit.engines.spec import EngineSpec
from onebit.memory.cards import Nvidia
from onebit.memory.rooms import Room, rooms
from tests.engines.specs import CARD, CARD_BUILD, CPU_BUILD, GIB, LLVMPIPE, ROCM, spec
from tests.memory.trees import Machine

VULKAN, CUDA = Device(DeviceKind.VULKAN), Device(DeviceKind.CUDA)
PROCESS = spec()


def on(device: Device, *found: FoundDevice) -> EngineSpec:
    return spec(device=device, build=replace(CARD_BUILD, devices=found))


def room(machine: Machine, *specs: EngineSpec, nvidia: Nvidia | None = None) -> Room:
    """The one pool's room."""
    (only,) = rooms(specs, None, nvidia=nvidia, proc=machine.proc, sys=machine.sys).values()
    return only


# --- budgets and main memory --------------------------------------------------------------------------------


def test_a_budget_is_the_only_pool(machine: Machine) -> None:
    found = rooms([PROCESS, on(VULKAN, CARD)], 3 * GIB, proc=machine.proc, sys=machine.sys)
    assert found == {"card": Room(3 * GIB, None, "the setting memory")}
    assert rooms([], 3 * GIB) == {}


def test_main_memory_less_the_reserve(machine: Machine) -> None:
    machine.main_memory(32 * GIB, 20 * GIB)
    assert room(machine, PROCESS) == Room(31 * GIB, 19 * GIB, "main memory", live=True)


def test_a_small_machine_keeps_an_eighth(machine: Machine) -> None:
    machine.main_memory(2 * GIB, GIB)
    found = room(machine, PROCESS)
    assert (found.total, found.free) == (2 * GIB * 7 // 8, GIB - 2 * GIB // 8)


@pytest.mark.parametrize(
    ("groups", "total", "free"),
    [
        ({"/": ("max", 9 * GIB, 0)}, 32, 20),
        ({"/": (8 * GIB, 5 * GIB, 2 * GIB)}, 8, 8 - 3),  # a container: idle file pages are as good as free
        ({"/a": (16 * GIB, 15 * GIB, 0), "/a/b": ("max", GIB, 0)}, 16, 1),  # the limit is above us
        ({"/a": (16 * GIB, 2 * GIB, 0), "/a/b": (4 * GIB, GIB, 0)}, 4, 3),
        ({"/a": (64 * GIB, GIB, 0)}, 32, 20),  # a limit over what the machine has
        ({"/a": (8 * GIB, 9 * GIB, 0)}, 8, 0),
    ],
)
def test_the_limits_of_all_cgroups_around_us_hold(
    machine: Machine, groups: dict[str, tuple[int | str, int, int]], total: int, free: int
) -> None:
    machine.main_memory(32 * GIB, 20 * GIB)
    for path, values in groups.items():
        machine.cgroup(path, *values)
    reserve = min(GIB, total * GIB // 8)
    found = room(machine, PROCESS)
    assert (found.total, found.free) == (total * GIB - reserve, max(0, free * GIB - reserve))


def test_a_cgroup_of_the_first_version(machine: Machine) -> None:
    machine.main_memory(32 * GIB, 20 * GIB)
    folder = "sys/fs/cgroup/memory/docker/x"
    machine.write(
        {
            "proc/self/cgroup": "9:cpu,cpuacct:/\n4:memory:/docker/x",
            f"{folder}/memory.limit_in_bytes": 8 * GIB,
            f"{folder}/memory.usage_in_bytes": 3 * GIB,
            f"{folder}/memory.stat": f"total_inactive_file {GIB}",
        }
    )
    found = room(machine, PROCESS)
    assert (found.total, found.free) == (7 * GIB, 5 * GIB)


@pytest.mark.skipif(system.platform != "linux", reason="/proc")
def test_this_machine() -> None:
    found = rooms([PROCESS], None)["host"]
    assert 0 < found.total < psutil.virtual_memory().total
    assert found.free is not None and 0 <= found.free < found.total
    assert found.live


# --- amdgpu -------------------------------------------------------------------------------------------------


def listed(total: int, free: int | None = None, kind: FoundDevice = CARD) -> FoundDevice:
    return replace(kind, total_bytes=total, free_bytes=total if free is None else free)


def test_a_plain_card_is_its_vram(machine: Machine) -> None:
    """Half of main memory is GTT here too, and must not count."""
    machine.main_memory(64 * GIB, 60 * GIB)
    machine.amdgpu(0, vram=16 * GIB, vram_used=3 * GIB, gtt=32 * GIB, gtt_used=GIB)
    found = room(machine, on(VULKAN, listed(16 * GIB)))
    assert found == Room(15 * GIB, 12 * GIB, "amdgpu: VRAM", live=True)


@pytest.mark.parametrize("vram", [GIB // 2, 64 * GIB])
def test_unified_memory_is_vram_and_what_can_be_borrowed(machine: Machine, vram: int) -> None:
    """A chip with 128 GiB, of which the firmware sets little or half aside."""
    gtt = 128 * GIB - vram
    machine.main_memory(128 * GIB - vram, 20 * GIB)
    machine.amdgpu(1, vram=vram, vram_used=vram // 2, gtt=gtt, gtt_used=10 * GIB)
    found = room(machine, on(VULKAN, listed(127 * GIB)))
    assert found.total == 127 * GIB
    assert found.free == vram // 2 + 20 * GIB - GIB  # GTT has more left, but main memory has not
    assert found.source == "amdgpu: VRAM and GTT"


def test_two_cards_and_one_that_is_none_of_them(machine: Machine) -> None:
    machine.amdgpu(0, vram=16 * GIB, vram_used=2 * GIB, gtt=GIB, gtt_used=0)
    machine.amdgpu(1, vram=24 * GIB, vram_used=4 * GIB, gtt=GIB, gtt_used=0)
    two = (listed(16 * GIB), listed(24 * GIB))
    second = spec(device=replace(VULKAN, index=1), build=replace(CARD_BUILD, devices=two))
    found = rooms([on(VULKAN, *two), second], None, proc=machine.proc, sys=machine.sys)
    assert {pool: (r.total, r.free) for pool, r in found.items()} == {
        "card0": (15 * GIB, 13 * GIB),
        "card1": (23 * GIB, 19 * GIB),
    }
    other = room(machine, on(VULKAN, listed(8 * GIB, 7 * GIB)))
    assert (other.total, other.free, other.live) == (7 * GIB, 6 * GIB, False)


def test_damaged_files_leave_the_listing(machine: Machine) -> None:
    machine.amdgpu(0, vram=16 * GIB, vram_used=2 * GIB, gtt=GIB, gtt_used=0)
    machine.write({"sys/class/drm/card0/device/mem_info_gtt_used": ""})
    assert not room(machine, on(VULKAN, CARD)).live


# --- listings -----------------------------------------------------------------------------------------------


def test_without_a_driver_that_speaks_the_listing_counts(machine: Machine) -> None:
    found = room(machine, on(Device(DeviceKind.METAL), replace(CARD, id="MTL0", kind=DeviceKind.METAL)))
    assert found == Room(15 * GIB, 14 * GIB, "MTL0 as card lists it", live=False)


def test_two_builds_on_one_card_are_one_pool_and_the_smaller_view_counts(machine: Machine) -> None:
    rocm = on(Device(DeviceKind.ROCM), replace(ROCM, total_bytes=12 * GIB, free_bytes=11 * GIB))
    for engines in ([on(VULKAN, CARD), rocm], [rocm, on(VULKAN, CARD)]):
        assert room(machine, *engines).total == 11 * GIB


def test_software_vulkan_is_main_memory(machine: Machine) -> None:
    machine.main_memory(32 * GIB, 20 * GIB)
    assert room(machine, on(VULKAN, LLVMPIPE), PROCESS).source == "main memory"


def test_a_spec_whose_device_is_not_there_is_a_mistake_of_ours(machine: Machine) -> None:
    with pytest.raises(ValueError, match="does not serve cuda"):
        room(machine, spec(device=CUDA, build=CPU_BUILD))


# --- NVML ---------------------------------------------------------------------------------------------------


class NvmlError(Exception):
    """As pynvml raises it."""


@dataclass
class _Memory:
    total: int
    free: int


@dataclass
class _Process:
    pid: int
    usedGpuMemory: int | None  # noqa: N815 - pynvml's name


class StandIn:
    """The functions of pynvml that are called, over two cards. There is no driver to ask here."""

    NVMLError = NvmlError

    def __init__(self) -> None:
        self.memory = [_Memory(24 * GIB, 20 * GIB), _Memory(80 * GIB, 70 * GIB)]
        self.compute = [[_Process(7, GIB), _Process(8, None)], [_Process(7, 2 * GIB)]]
        self.graphics = [[_Process(7, GIB), _Process(9, GIB)], []]

    def nvmlDeviceGetCount(self) -> int:
        return len(self.memory)

    def nvmlDeviceGetHandleByIndex(self, index: int) -> int:
        if index >= len(self.memory):
            raise NvmlError("Invalid Argument")
        return index

    def nvmlDeviceGetHandleByUUID(self, uuid: str) -> int:
        if uuid != "GPU-second":
            raise NvmlError("Not Found")
        return 1

    def nvmlDeviceGetMemoryInfo(self, handle: int) -> _Memory:
        return self.memory[handle]

    def nvmlDeviceGetComputeRunningProcesses(self, handle: int) -> list[_Process]:
        return self.compute[handle]

    def nvmlDeviceGetGraphicsRunningProcesses(self, handle: int) -> list[_Process]:
        return self.graphics[handle]


def cuda(total: int) -> EngineSpec:
    build: Build = replace(CARD_BUILD, devices=(replace(listed(total), kind=DeviceKind.CUDA, id="CUDA0"),))
    return spec(device=CUDA, build=build)


@pytest.mark.parametrize(
    ("visible", "total", "free"),
    [("", 24, 20), ("1", 80, 70), ("1,0", 80, 70), ("GPU-second", 80, 70), (" 0 ", 24, 20)],
)
def test_nvml_follows_the_visible_devices(
    machine: Machine, monkeypatch: pytest.MonkeyPatch, visible: str, total: int, free: int
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    found = room(machine, cuda(total * GIB), nvidia=Nvidia(StandIn()))
    assert found == Room((total - 1) * GIB, (free - 1) * GIB, "NVML", live=True)


@pytest.mark.parametrize("visible", ["", "GPU-unknown", "5"])
def test_a_card_that_differs_from_the_listing_is_not_believed(
    machine: Machine, monkeypatch: pytest.MonkeyPatch, visible: str
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert not room(machine, cuda(16 * GIB), nvidia=Nvidia(StandIn())).live


def test_what_nvml_says_of_a_process() -> None:
    nvidia = Nvidia(StandIn())
    assert nvidia.process(7) == 3 * GIB  # it computes and draws on the first card, and computes on the second
    assert nvidia.process(8) is None  # the driver does not say
    assert nvidia.process(9) == GIB
    assert nvidia.process(10) is None


def test_without_the_package_or_the_driver_there_is_no_nvml(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(system.modules, "pynvml", None)
    assert Nvidia.open() is None
    broken = ModuleType("pynvml")

    def refuse() -> None:
        raise NvmlError("Driver Not Loaded")

    monkeypatch.setitem(broken.__dict__, "NVMLError", NvmlError)
    monkeypatch.setitem(broken.__dict__, "nvmlInit", refuse)
    monkeypatch.setitem(system.modules, "pynvml", broken)
    assert Nvidia.open() is None
