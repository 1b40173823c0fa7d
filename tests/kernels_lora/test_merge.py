"""The merge in all its versions: equal to the reference bit for bit, and the reference equal to exact arithmetic."""

from __future__ import annotations

import math
import shutil
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from onebit.kernels.lora import fused, reference
from onebit.kernels.lora.numbers import Matrix, Number, f32_to_bf16, rounded_to
from onebit.kernels.lora.terms import Mode, Term
from tests.kernels_lora.conftest import Merge
from tests.kernels_lora.matrices import as_type, matrix, terms

TYPES = list(Number)
MODES = list(Mode)
# rows × columns: one element, single rows and columns, below and just above a tile, odd, several blocks of rows
SHAPES = [(1, 1), (1, 40), (40, 1), (5, 15), (7, 17), (6, 64), (13, 131), (259, 33), (14, 200)]


@pytest.mark.skipif(shutil.which("cc") is None, reason="without a C compiler there is only the twin")
def test_the_kernel_was_built() -> None:
    """Or all tests below would pass on the twin alone."""
    assert fused.variants()[-2:] == ("portable", fused.TWIN)


def nearest_float32(exact: Fraction) -> float:
    """The float32 nearest to a fraction, ties to even, by searching: shares nothing with the code under test."""
    guess = np.float32(float(exact))
    near = [np.nextafter(guess, np.float32(-np.inf)), guess, np.nextafter(guess, np.float32(np.inf))]
    return float(min(near, key=lambda f: (abs(Fraction(float(f)) - exact), int(f.view(np.int32)) & 1)))


floats = st.floats(width=32, min_value=-(2.0**50), max_value=2.0**50, allow_subnormal=False).filter(
    lambda x: x == 0 or abs(x) > 1e-15
)


@given(floats, floats, floats)
def test_fma_rounds_once(x: float, y: float, z: float) -> None:
    got = reference.fma(*(np.array([v], np.float32) for v in (x, y, z)))
    assert float(got[0]) == nearest_float32(Fraction(x) * Fraction(y) + Fraction(z))


def test_fma_is_not_deceived_by_rounding_twice() -> None:
    """1 + 2^-23 + 2^-24 - 2^-54: float64 rounds it to a tie, which rounds up; the right answer is below."""
    x, y = np.array([2**-24 * (1 + 2**-15)], np.float32), np.array([1 - 2**-15], np.float32)
    z = np.array([1 + 2**-23], np.float32)
    assert np.float32(np.float64(x[0]) * np.float64(y[0]) + np.float64(z[0])) == 1 + 2**-22  # what it would be
    assert reference.fma(x, y, z)[0] == z[0]


@settings(max_examples=200)
@given(st.integers(0, 2**32 - 1))
def test_bfloat16_is_rounded_as_torch_rounds(bits: int) -> None:
    import torch

    value = np.array([bits], np.uint32).view(np.float32)
    if not np.isnan(value[0]):
        wanted = torch.from_numpy(value.copy()).to(torch.bfloat16).view(torch.uint16).numpy()
        assert f32_to_bf16(value)[0] == wanted[0]


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("number", TYPES)
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("ranks", [[1, 8, 3, 70], [8], [40]], ids=str)
def test_equals_the_reference(
    merge: Merge, variant: str, shape: tuple[int, int], number: Number, mode: Mode, ranks: list[int]
) -> None:
    rng = np.random.default_rng([*shape, number, mode])
    weight, parts = matrix(rng, *shape, number), terms(rng, *shape, ranks, number)
    wanted = weight.copy()
    assert reference.merge(wanted, parts, mode)
    assert merge(weight, parts, mode)
    if mode is Mode.BF16 and variant == "avx512bf16":  # the processor's own dot product
        rounding = 1e-5 if number is Number.F32 else 1e-2
        assert weight.as_float32() == pytest.approx(wanted.as_float32(), rel=rounding, abs=1e-6)
    else:
        assert weight.array.tobytes() == wanted.array.tobytes()


@pytest.mark.parametrize("weights", TYPES)
@pytest.mark.parametrize("factors", TYPES)
def test_types_may_be_mixed(merge: Merge, weights: Number, factors: Number) -> None:
    rng = np.random.default_rng([weights, factors])
    weight = matrix(rng, 20, 200, weights)
    parts = [*terms(rng, 20, 200, [4], factors), *terms(rng, 20, 200, [30]), *terms(rng, 20, 200, [30], factors)]
    wanted = weight.copy()
    reference.merge(wanted, parts)
    merge(weight, parts)
    assert weight.array.tobytes() == wanted.array.tobytes()


def test_the_plain_loop_in_plain_python(merge: Merge) -> None:
    """The definition, element by element, in exact arithmetic."""
    rng = np.random.default_rng(1)
    weight, parts = matrix(rng, 3, 4, Number.BF16), terms(rng, 3, 4, [5, 2], Number.BF16)
    w = weight.as_float32().copy()
    for part in parts:
        b, a, scale = part.b.as_float32(), part.a.as_float32(), np.float32(part.scale)
        for i, j in np.ndindex(3, 4):
            acc = 0.0
            for k in range(part.rank):
                acc = nearest_float32(Fraction(float(b[i, k])) * Fraction(float(a[k, j])) + Fraction(acc))
            scaled = nearest_float32(Fraction(float(scale)) * Fraction(acc))
            delta = rounded_to(Number.BF16, np.array([scaled], np.float32))
            w[i, j] = rounded_to(Number.BF16, w[i, j] + delta)[0]
    assert merge(weight, parts)
    assert weight.as_float32().tobytes() == w.tobytes()


def test_threads_change_nothing() -> None:
    rng = np.random.default_rng(2)
    weight, parts = matrix(rng, 301, 50), terms(rng, 301, 50, [16, 8])
    wanted = weight.copy()
    fused.merge(wanted, parts)
    fused.merge(weight, parts, threads=3)
    assert weight.array.tobytes() == wanted.array.tobytes()


@pytest.mark.parametrize("threads", [1, 3])
def test_many_weights_are_merged_as_each_is_alone(threads: int) -> None:
    rng = np.random.default_rng(10)
    work = [(matrix(rng, rows, cols), terms(rng, rows, cols, [16, 8])) for rows, cols in ((301, 50), (7, 70), (150, 9))]
    wanted = [weight.copy() for weight, _ in work]
    for weight, (_, parts) in zip(wanted, work, strict=True):
        fused.merge(weight, parts)
    assert fused.merge_many(work, threads=threads) is None
    assert [weight.array.tobytes() for weight, _ in work] == [weight.array.tobytes() for weight in wanted]


@pytest.mark.parametrize("threads", [1, 3])
def test_the_first_of_many_that_is_not_finite_ends_it(threads: int) -> None:
    rng = np.random.default_rng(11)
    work = [(matrix(rng, 150, 20), terms(rng, 150, 20, [4])) for _ in range(4)]
    work[1][0].array[149, 19] = math.inf
    last = work[3][0].copy()
    assert fused.merge_many(work, threads=threads) == 1
    assert work[3][0].array.tobytes() == last.array.tobytes()


def test_nothing_is_changed_where_one_of_many_does_not_fit() -> None:
    rng = np.random.default_rng(12)
    weight, parts = matrix(rng, 9, 20), terms(rng, 9, 20, [4])
    before = weight.copy()
    with pytest.raises(ValueError, match="fit"):
        fused.merge_many([(weight, parts), (matrix(rng, 8, 20), parts)])
    assert weight.array.tobytes() == before.array.tobytes()


def test_ctrl_c_is_felt_when_the_merge_is_over(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its caller puts the weight back as it was: what a helper wrote after that would stay."""
    rng = np.random.default_rng(8)
    weight, parts = matrix(rng, 301, 50), terms(rng, 301, 50, [16, 8])
    wanted = weight.copy()
    fused.merge(wanted, parts)
    begin = fused._job

    class Interrupted:
        """A merge in whose middle Ctrl-C is pressed, twice."""

        def __init__(self, *args: Any) -> None:
            self._job, self._runs = begin(*args), 0

        def help(self) -> None:
            """Does nothing: all is left to run()."""

        def run(self) -> bool:
            self._runs += 1
            if self._runs < 3:
                raise KeyboardInterrupt
            return bool(self._job.run())

    monkeypatch.setattr(fused, "_job", Interrupted)
    with pytest.raises(KeyboardInterrupt):
        fused.merge(weight, parts, threads=3)
    assert weight.array.tobytes() == wanted.array.tobytes()


def test_helpers_that_come_late_find_nothing_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(9)
    weight, parts = matrix(rng, 301, 50), terms(rng, 301, 50, [16, 8])
    wanted = weight.copy()
    late: list[Callable[[], object]] = []
    fused.merge(wanted, parts)
    monkeypatch.setattr(fused, "help_with", late.extend)
    assert fused.merge(weight, parts, threads=3)
    for work in late:
        work()
    assert len(late) == 2
    assert weight.array.tobytes() == wanted.array.tobytes()


def test_nothing_to_merge(merge: Merge) -> None:
    weight = matrix(np.random.default_rng(3), 4, 4)
    before = weight.copy()
    assert merge(weight, [])
    assert weight.array.tobytes() == before.array.tobytes()


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("number", TYPES)
@pytest.mark.parametrize("bad", [math.nan, math.inf])
@pytest.mark.parametrize("place", [(0, 0), (8, 69)])  # in the first tile, and in one at the edge
def test_says_when_a_result_is_not_finite(
    merge: Merge, mode: Mode, number: Number, bad: float, place: tuple[int, int]
) -> None:
    rng = np.random.default_rng(4)
    weight = matrix(rng, 9, 70, number)
    parts = terms(rng, 9, 70, [3], number)
    assert merge(weight.copy(), parts, mode)
    values = weight.as_float32().copy()
    values[place] = bad
    assert not merge(as_type(values, number), parts, mode)


ODD_NANS = {Number.F32: 0x7FFFFFFF, Number.F16: 0x7FFF, Number.BF16: 0x7FFF}


def odd_nan(number: Number) -> Any:
    """A NaN with all of its bits set, as an element of a matrix."""
    bits = np.array([ODD_NANS[number]], np.uint32 if number is Number.F32 else np.uint16)
    return bits.view(number.array_dtype)[0]


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("where", ["b", "a", "scale"])
@pytest.mark.parametrize("b_type", TYPES)
@pytest.mark.parametrize("a_type", TYPES)
@pytest.mark.parametrize("cols", [64, 3])
def test_a_nan_of_any_bits_stays_one(
    merge: Merge, mode: Mode, where: str, b_type: Number, a_type: Number, cols: int
) -> None:
    """Rounding a NaN to bfloat16 by adding half a unit would carry 0x7fffffff over into the sign."""
    weight = Matrix(np.zeros((6, cols), np.uint16), Number.BF16)
    b, a = (as_type(np.ones(shape, np.float32), t) for shape, t in (((6, 1), b_type), ((1, cols), a_type)))
    scale = 1.0
    if where == "scale":
        scale = float(odd_nan(Number.F32))
    else:
        odd = {"b": b, "a": a}[where]
        odd.array[...] = odd_nan(odd.number)
    assert not merge(weight, [Term(b, a, scale)], mode)
    assert not np.isfinite(weight.as_float32()).any()


def test_float16_overflow_is_noticed(merge: Merge) -> None:
    weight = as_type(np.full((2, 2), 65000, np.float32), Number.F16)
    one = Matrix(np.ones((2, 1), np.float32), Number.F32)
    assert not merge(weight, [Term(one, one.transposed(), 600.0)])


def test_float16_of_every_bit_pattern(merge: Merge) -> None:
    """Adding zero must give every finite half back, subnormal ones too."""
    bits = np.arange(0x7C00, dtype=np.uint16)
    halves = np.concatenate([bits, bits | 0x8000]).view(np.float16).reshape(256, -1)
    weight = Matrix(halves.copy(), Number.F16)
    zero = Matrix(np.zeros((256, 1), np.float32), Number.F32)
    assert merge(weight, [Term(zero, Matrix(np.zeros((1, halves.shape[1]), np.float32), Number.F32), 1.0)])
    assert np.array_equal(weight.array, halves)


def test_shapes_that_do_not_fit(merge: Merge) -> None:
    rng = np.random.default_rng(5)
    weight = matrix(rng, 4, 6)
    with pytest.raises(ValueError, match="B 4×2 @ A 2×5 does not fit W 4×6"):
        merge(weight, [Term(matrix(rng, 4, 2), matrix(rng, 2, 5), 1.0)])
    with pytest.raises(ValueError, match="does not fit"):
        merge(weight, [Term(matrix(rng, 4, 2), matrix(rng, 3, 6), 1.0)])
    with pytest.raises(ValueError, match="does not fit"):
        merge(weight, [Term(Matrix(np.zeros((4, 0), np.float32), Number.F32), matrix(rng, 1, 6), 1.0)])


def test_a_variant_of_another_machine() -> None:
    with pytest.raises(ValueError, match="no variant vax here"):
        fused.merge(matrix(np.random.default_rng(6), 2, 2), [], variant="vax")


def delta_error(mode: Mode, number: Number, count: int, strength: float) -> float:
    """‖what the merge added − the exact delta‖ / ‖the exact delta‖."""
    rng = np.random.default_rng(7)
    weight = matrix(rng, 96, 96, number)
    parts = terms(rng, 96, 96, [16] * count)
    parts = [Term(p.b, p.a, p.scale * strength) for p in parts]
    exact = sum(p.scale * (p.b.array.astype(np.float64) @ p.a.array) for p in parts)
    before = weight.as_float32().astype(np.float64)
    fused.merge(weight, parts, mode)
    return float(np.linalg.norm(weight.as_float32() - before - exact) / np.linalg.norm(exact))


def test_bf16_factors_keep_the_delta_within_its_bound() -> None:
    assert delta_error(Mode.BF16, Number.F32, 4, 1.0) < 2.5e-3


def test_fast_and_accurate_keep_float32() -> None:
    assert delta_error(Mode.FAST, Number.F32, 4, 1.0) < 1e-5
    assert delta_error(Mode.ACCURATE, Number.F32, 4, 1.0) < 1e-5


def test_accurate_loses_less_of_small_bf16_adapters() -> None:
    """Eight small adapters on bfloat16 weights: seven roundings fewer."""
    assert delta_error(Mode.ACCURATE, Number.BF16, 8, 0.2) < 0.6 * delta_error(Mode.EXACT, Number.BF16, 8, 0.2)
