"""Devices an engine can run on, and builds of llama-server that can use them: frozen values only."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from types import MappingProxyType

from onebit.errors import ConfigError


class DeviceKind(StrEnum):
    """What a build is compiled for, and what a user writes after `--device`."""

    CPU = "cpu"
    VULKAN = "vulkan"
    ROCM = "rocm"
    CUDA = "cuda"
    METAL = "metal"


@dataclass(frozen=True, slots=True)
class Device:
    """A device as a user names it: `vulkan`, or with an index among its kind, `vulkan:1`."""

    kind: DeviceKind
    index: int | None = None

    def __str__(self) -> str:
        return self.kind.value if self.index is None else f"{self.kind.value}:{self.index}"

    @classmethod
    def parse(cls, text: str) -> Device:
        """Read `kind` or `kind:index`. Raises ConfigError naming the kinds there are."""
        kind, _, index = text.strip().lower().partition(":")
        kinds = [k.value for k in DeviceKind]
        if kind not in kinds or (":" in text and not (index.isascii() and index.isdigit())):
            raise ConfigError(
                f"unknown device {text.strip()!r}",
                hint=f"devices are {', '.join(kinds)}, optionally with an index among their kind, e.g. vulkan:0",
            )
        return cls(DeviceKind(kind), int(index) if index else None)


@dataclass(frozen=True, slots=True)
class FoundDevice:
    """One line of `llama-server --list-devices`: `Vulkan0: llvmpipe (…) (11897 MiB, 11897 MiB free)`."""

    id: str  # llama.cpp's name, the value of its --device flag: "Vulkan0", "ROCm0", "CUDA0", "MTL0"
    kind: DeviceKind
    description: str
    total_bytes: int
    free_bytes: int = field(compare=False)  # as it was when the build was asked
    software: bool = False  # a Vulkan device that is really the CPU (Mesa's llvmpipe)


@dataclass(frozen=True, slots=True)
class Build:
    """A probed llama-server executable. `origin` says where it came from, for people."""

    path: Path
    version: str  # as `--version` prints it, e.g. "b6000 (abc1234)"
    devices: tuple[FoundDevice, ...]  # without the CPU, which every build serves
    origin: str
    env: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))  # what makes the devices visible

    def device_for(self, wanted: Device) -> FoundDevice | None:
        """The found device that `wanted` names, or None. For `cpu` there is never one: it needs none."""
        same = [d for d in self.devices if d.kind is wanted.kind]
        index = wanted.index or 0
        return same[index] if index < len(same) else None

    def serves(self, wanted: Device) -> bool:
        """Can this build run a model on `wanted`?"""
        return wanted.kind is DeviceKind.CPU or self.device_for(wanted) is not None
