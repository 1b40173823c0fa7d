"""What is merged, and how: one adapter's part in one weight, and the modes of rounding."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum

from onebit.kernels.lora.numbers import Matrix


class Mode(IntEnum):
    """How W += Σ scale · B @ A is rounded. The values are those of the C kernel."""

    EXACT = 0  # the bits of the stock loop: W += scale * (B @ A), an adapter at a time
    ACCURATE = 1  # summed over all adapters in float32, rounded to W's type once
    FAST = 2  # scales folded into B, one sum over all ranks, rounded once
    BF16 = 3  # FAST with both factors rounded to bfloat16: the delta's error stays below 2.5e-3 of its norm


@dataclass(frozen=True, slots=True)
class Term:
    """scale · B @ A, for one weight. In EXACT the product is rounded to the type of B before it is added."""

    b: Matrix  # out × rank
    a: Matrix  # rank × in
    scale: float

    @property
    def rank(self) -> int:
        """Columns of B, rows of A."""
        return self.b.cols


def check_shapes(weight: Matrix, terms: Sequence[Term]) -> None:
    """Raise ValueError unless every term fits the weight (out × in)."""
    for term in terms:
        if term.rank < 1 or (term.b.rows, term.a.rows, term.a.cols) != (weight.rows, term.rank, weight.cols):
            product = f"B {term.b.rows}×{term.b.cols} @ A {term.a.rows}×{term.a.cols}"
            raise ValueError(f"{product} does not fit W {weight.rows}×{weight.cols}")
