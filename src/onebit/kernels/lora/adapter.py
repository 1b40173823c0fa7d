"""An adapter in memory: its factors by module, and the scale they are merged with."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from onebit.kernels.lora.numbers import Later, Matrix
from onebit.kernels.lora.terms import Term


@dataclass(frozen=True, slots=True)
class Factors:
    """What an adapter adds to one module: strength · alpha / rank · B @ A (rslora: alpha / √rank)."""

    module: str  # as the adapter's file names it, e.g. "base_model.model.model.layers.0.self_attn.q_proj"
    b: Matrix | Later  # out × rank
    a: Matrix | Later  # rank × in; of a convolution rank × (in · kernel height · kernel width)
    alpha: float
    kernel: tuple[int, ...] = ()  # of a convolution's A: its dimensions after `in`
    rslora: bool = False
    transposed: bool = False  # the weight is stored in × out (GPT-2's Conv1D): peft's fan_in_fan_out

    @property
    def rank(self) -> int:
        """Columns of B."""
        return self.b.cols

    @property
    def weight_shape(self) -> tuple[int, int]:
        """Of the weight as it is stored, convolutions as matrices."""
        return (self.a.cols, self.b.rows) if self.transposed else (self.b.rows, self.a.cols)

    def scale(self, strength: float) -> float:
        """The factor of B @ A, calculated in peft's order (`set_scale`), so that its last bit is the same."""
        return strength * self.alpha / (math.sqrt(self.rank) if self.rslora else self.rank)

    def term(self, strength: float) -> Term:
        """For a merge. A transposed weight takes Aᵀ and Bᵀ in exchange: the same products in the same order."""
        b, a = self.b.load(), self.a.load()
        if self.transposed:
            return Term(a.transposed(), b.transposed(), self.scale(strength))
        return Term(b, a, self.scale(strength))

    def widened(self) -> Factors:
        """With factors of float32, as peft has them after loading with `autocast_adapter_dtype`, its default."""
        return replace(self, b=self.b.widened(), a=self.a.widened())


@dataclass(frozen=True, slots=True)
class Adapter:
    """A LoRA as read from a file."""

    name: str
    path: Path
    format: str  # "peft", "diffusers", "kohya"
    factors: Mapping[str, Factors]  # by the module's name in the file
    metadata: Mapping[str, str]

    @property
    def ranks(self) -> tuple[int, ...]:
        """The ranks there are, ascending."""
        return tuple(sorted({f.rank for f in self.factors.values()}))

    @property
    def parameters(self) -> int:
        """Numbers in all factors."""
        return sum(f.rank * (f.a.cols + f.b.rows) for f in self.factors.values())

    def loaded(self) -> Adapter:
        """With all factors in memory, if it was read with keep=False."""
        factors = {name: replace(f, b=f.b.load(), a=f.a.load()) for name, f in self.factors.items()}
        return replace(self, factors=factors)

    def widened(self) -> Adapter:
        """See `Factors.widened`."""
        return replace(self, factors={name: f.widened() for name, f in self.factors.items()})
