"""Where the C kernel was not built: the same results, and one line that says so."""

from __future__ import annotations

import logging
from typing import Any

import numpy as np
import pytest

from onebit.kernels.lora import fused, reference
from onebit.kernels.lora.numbers import Matrix, Number
from onebit.kernels.lora.terms import Mode, Term
from tests.kernels_lora.matrices import matrix, terms


def test_a_variant_with_other_bits_is_not_used(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Wrong:
        """A kernel whose first variant adds nothing."""

        @staticmethod
        def variants() -> tuple[str, ...]:
            return ("new", "twin")

        class Merge:
            def __init__(self, *args: Any) -> None:
                self._args = args

            def run(self) -> bool:
                array, number, _rows, _cols, terms, mode, _threads, variant = self._args
                if variant == "twin":
                    parts = [Term(Matrix(b, Number(bn)), Matrix(a, Number(an)), s) for b, bn, a, an, _, s in terms]
                    return reference.merge(Matrix(array, Number(number)), parts, Mode(mode))
                return True

    monkeypatch.setattr(fused, "_kernel", lambda: Wrong)
    fused._c_variants.cache_clear()
    try:
        with caplog.at_level(logging.WARNING):
            assert fused.variants() == ("twin", fused.TWIN)
        assert "gives other results with new: not used" in caplog.text
    finally:
        fused._c_variants.cache_clear()


def test_the_twin_takes_over_and_says_so_once(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    rng = np.random.default_rng(20)
    weight, parts = matrix(rng, 20, 30), terms(rng, 20, 30, [4, 9])
    wanted = weight.copy()
    fused.merge(wanted, parts)
    monkeypatch.setattr(fused, "_c_variants", tuple)
    fused._say_once.cache_clear()
    other = weight.copy()
    with caplog.at_level(logging.WARNING):
        fused.merge(weight, parts)
        fused.merge(other, parts)
    assert fused.variants() == (fused.TWIN,)
    assert weight.array.tobytes() == other.array.tobytes() == wanted.array.tobytes()
    assert [r.message for r in caplog.records if "was not built" in r.message] == [caplog.records[0].message]
    with pytest.raises(ValueError, match="no variant avx2 here"):
        fused.merge(weight, parts, variant="avx2")
