"""The Triton kernel, interpreted (no GPU is needed): against the reference, whose bits it must have when exact.

`scripts/gpu_kernels.py` runs the same comparisons on a GPU.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch

from onebit.kernels.lora import reference
from onebit.kernels.lora.numbers import Matrix, Number, matrix_of
from onebit.kernels.lora.terms import Mode, Term
from tests.kernels_lora.matrices import matrix, terms

triton_merge = pytest.importorskip("onebit.kernels.lora.triton_merge")
pytestmark = pytest.mark.skipif(not triton_merge.INTERPRETED, reason="scripts/gpu_kernels.py tests it on a GPU")

# rows × columns, and the ranks of the adapters: odd, smaller than a tile, several tiles, mixed ranks
MODULES = [((5, 7), [1]), ((65, 130), [3, 16, 40]), ((33, 257), [8, 8]), ((128, 64), [20])]


def _tensor(values: Matrix) -> torch.Tensor:
    tensor: torch.Tensor = triton_merge._tensor(values)
    return tensor


def _modules(number: Number, factors: Number) -> list[tuple[Matrix, list[Term]]]:
    rng = np.random.default_rng(11)
    return [(matrix(rng, *shape, number), terms(rng, *shape, ranks, factors)) for shape, ranks in MODULES]


def _run(modules: list[tuple[Matrix, list[Term]]], mode: Mode) -> list[torch.Tensor]:
    device = torch.device("cpu")
    work = [(_tensor(weight.copy()), triton_merge.terms_on(device, some)) for weight, some in modules]
    triton_merge.merge(work, mode)
    return [weight for weight, _ in work]


@pytest.mark.parametrize("number", list(Number))
@pytest.mark.parametrize("factors", list(Number))
def test_exact_has_the_bits_of_the_reference(number: Number, factors: Number) -> None:
    modules = _modules(number, factors)
    for got, (weight, some) in zip(_run(modules, Mode.EXACT), modules, strict=True):
        assert reference.merge(weight, some)
        assert matrix_of(got).array.tobytes() == weight.array.tobytes()


@pytest.mark.parametrize("mode", [Mode.ACCURATE, Mode.FAST, Mode.BF16])
def test_other_modes_are_as_near_as_they_promise(mode: Mode) -> None:
    """‖error of the delta‖ / ‖delta‖ over all modules together: of 5 × 7 numbers alone it scatters."""
    modules, wrong, whole = _modules(Number.F32, Number.F32), 0.0, 0.0
    for got, (weight, some) in zip(_run(modules, mode), modules, strict=True):
        exact = sum(t.scale * (t.b.array.astype(np.float64) @ t.a.array) for t in some)
        wrong += float(np.sum((got.numpy() - weight.array - exact) ** 2))
        whole += float(np.sum(exact**2))
    assert (wrong / whole) ** 0.5 < (2.5e-3 if mode is Mode.BF16 else 1e-5)


F, B, H = Number.F32, Number.BF16, Number.F16


@pytest.mark.parametrize("mode", [Mode.EXACT, Mode.ACCURATE])
@pytest.mark.parametrize(
    "kinds",
    [[[(F, F), (B, B)]], [[(F, F), (B, B), (F, F)]], [[(F, F), (B, B)], [(B, B), (F, F)]], [[(B, F), (H, B), (B, B)]]],
    ids=["two types", "a type again", "in another order", "B and A differ"],
)
def test_factors_of_several_types(kinds: list[list[tuple[Number, Number]]], mode: Mode) -> None:
    """The adapters' order is kept, and no weight stands in a launch twice."""
    rng = np.random.default_rng(12)
    modules = [
        (
            matrix(rng, 20, 30, B),
            [Term(matrix(rng, 20, 4, b), matrix(rng, 4, 30, a), 0.7) for b, a in of_weight],
        )
        for of_weight in kinds
    ]
    for got, (weight, some) in zip(_run(modules, mode), modules, strict=True):
        reference.merge(weight, some, mode)
        if mode is Mode.EXACT:
            assert matrix_of(got).array.tobytes() == weight.array.tobytes()
        else:
            assert np.allclose(got.float().numpy(), weight.as_float32(), rtol=2**-7)  # at most the next bfloat16


@pytest.mark.parametrize("mode", list(Mode))
@pytest.mark.parametrize("bits", [0x7FFFFFFF, 0xFFFFFFFF, 0x7F800001])
@pytest.mark.filterwarnings("ignore:invalid value")  # numpy's, of the interpreter
def test_a_nan_stays_one(mode: Mode, bits: int) -> None:
    """Rounding to bfloat16 by hand must not carry it into a number: NVIDIA's units make NaNs of 0x7fffffff."""
    a = np.ones((1, 8), np.float32)
    a.view(np.uint32)[0, 3] = bits
    weight = Matrix(np.zeros((4, 8), np.uint16), B)
    (got,) = _run([(weight, [Term(Matrix(np.ones((4, 1), np.float32), F), Matrix(a, F), 1.0)])], mode)
    assert torch.equal(got.isnan(), torch.arange(8).eq(3).expand(4, 8))


def test_what_does_not_fit_is_refused() -> None:
    rng = np.random.default_rng(13)
    weight, wrong = matrix(rng, 4, 6), Term(matrix(rng, 4, 2), matrix(rng, 2, 5), 1.0)
    with pytest.raises(ValueError, match="does not fit"):
        _run([(weight, [wrong])], Mode.EXACT)
    gaps = torch.zeros(6, 4).T
    with pytest.raises(ValueError, match="contiguous"):
        triton_merge.merge([(gaps, triton_merge.terms_on(torch.device("cpu"), terms(rng, 4, 6, [2])))])
