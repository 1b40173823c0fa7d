"""What an engine is to be: frozen values, decided before anything starts."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from onebit.engines.device import Build, Device


class DraftKind(StrEnum):
    """How an engine guesses tokens ahead."""

    MTP = "mtp"  # the model's own multi-token prediction head, or a head-only file
    NGRAM = "ngram"  # repeats what followed the same n-gram before


@dataclass(frozen=True, slots=True)
class Draft:
    """Drafting is a property of an engine: llama-server has no switch for it in a request."""

    kind: DraftKind
    length: int  # tokens drafted at most
    model: Path | None = None  # a head-only file or a drafter; None: the head is in the model


@dataclass(frozen=True, slots=True)
class Adapter:
    """A LoRA adapter file and the scale it is applied with."""

    path: Path
    scale: float = 1.0


@dataclass(frozen=True, slots=True)
class EngineSpec:
    """One engine: a model on a device, with a number of slots."""

    name: str
    alias: str  # the model's name for clients
    model: Path
    device: Device
    build: Build
    slots: int
    context: int  # tokens in each slot
    batch: int  # tokens of a prompt worked off in one go: a client that leaves is noticed between two of them
    threads: int
    gpu_layers: int | None = None  # None: all of them on a GPU, none on the CPU
    draft: Draft | None = None
    adapters: tuple[Adapter, ...] = ()  # applied to every request
    choice: tuple[Adapter, ...] = ()  # loaded beside them, applied where a request asks for it
    embeddings: bool = False
    pooling: str | None = None  # how token vectors become one, where the model does not say
    extra: tuple[str, ...] = ()  # the user's own arguments, passed on untouched
    rank: int = 0
    row_limit: int | None = None

    @property
    def rows_per_sequence(self) -> int:
        """Rows one sequence adds to a decode batch. An n-gram draft counts too: it is verified in the same batch."""
        return 1 if self.draft is None else self.draft.length + 1
