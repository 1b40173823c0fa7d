"""Where the C kernel was not built: the same results, and one line that says so."""

from __future__ import annotations

import logging

import numpy as np
import pytest

from onebit.kernels.lora import fused
from tests.kernels_lora.matrices import matrix, terms


def test_the_twin_takes_over_and_says_so_once(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    rng = np.random.default_rng(20)
    weight, parts = matrix(rng, 20, 30), terms(rng, 20, 30, [4, 9])
    wanted = weight.copy()
    fused.merge(wanted, parts)
    monkeypatch.setattr(fused, "_kernel", lambda: None)
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
