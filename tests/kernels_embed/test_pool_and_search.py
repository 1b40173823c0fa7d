"""Means and exact search: the same bits from every kernel, and right ones."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from onebit.errors import EmbedError
from onebit.kernels.embed import Embedder, Nearest, Table, Vectors, twin
from onebit.kernels.embed.kernel import Kernel
from onebit.kernels.embed.vectors import quantize, unit, unit_scales

DIMS = [1, 3, 16, 31, 63, 64, 65, 100, 128, 129, 256, 384, 1000, 1024]
TEXTS = ["", "a text", "and another, longer one", "naïve 漢字 👍", "word " * 3000, "x" * 500]


def random_rows(count: int, dims: int, seed: int = 0) -> tuple[npt.NDArray[np.int8], npt.NDArray[np.float32]]:
    chance = np.random.default_rng(seed)
    rows = chance.integers(-128, 128, (count, dims), dtype=np.int8)
    return rows, chance.lognormal(-5, 2, count).astype(np.float32)


class TestPool:
    @pytest.mark.parametrize("dims", DIMS)
    def test_the_same_bits_as_the_twin(self, kernel: Kernel, dims: int) -> None:
        rows, scales = random_rows(500, dims)
        lengths = [0, 1, 2, 3, 17, 512, 513, 2000, 0]
        ids = np.random.default_rng(1).integers(0, 500, sum(lengths), dtype=np.uint32)
        ends = np.cumsum(lengths).astype(np.uint64)
        got, expected = (np.full((len(lengths), dims), np.nan, np.float32) for _ in range(2))
        kernel.pool(ids, ends, rows, scales, got)
        twin.pool(ids, ends, rows, scales, expected)
        assert (got.view(np.uint32) == expected.view(np.uint32)).all()

    def test_is_the_mean(self, kernel: Kernel) -> None:
        rows, scales = random_rows(500, 100)
        ids = np.random.default_rng(2).integers(0, 500, 300, dtype=np.uint32)
        got = np.empty((2, 100), np.float32)
        kernel.pool(ids, np.array([300, 300], np.uint64), rows, scales, got)
        values = rows[ids].astype(np.float64) * scales[ids, None]
        # each of the 300 sums is off by half a unit in the last place at most
        assert np.abs(got[0] - values.mean(axis=0)).max() <= 300 * 2.0**-24 * np.abs(values).sum(axis=0).max() / 300
        assert not got[1].any()

    @pytest.mark.parametrize(
        ("ids", "ends"), [([500], [1]), ([1, 2], [1]), ([1, 2], [3]), ([1, 2, 3], [2, 1, 3]), ([1], [1, 1])]
    )
    def test_nothing_outside_is_read(self, ids: list[int], ends: list[int]) -> None:
        compiled = pytest.importorskip("onebit.kernels.embed.compiled")
        rows, scales = random_rows(500, 64)
        out = np.empty((len(ends) + (ends == [1, 1]), 64), np.float32)
        with pytest.raises(ValueError, match="do not fit"):
            compiled.pool(np.array(ids, np.uint32), np.array(ends, np.uint64), rows, scales, out)


@pytest.fixture(scope="module")
def ours(kernel: Kernel, table: Table) -> Embedder:
    return Embedder(table, kernel=kernel)


class TestEmbedder:
    def test_the_same_bits_as_the_twin(self, ours: Embedder, table: Table) -> None:
        expected = Embedder(table, kernel=twin).encode(TEXTS)
        assert (ours.encode(TEXTS).view(np.uint32) == expected.view(np.uint32)).all()

    def test_threads_change_nothing(self, ours: Embedder) -> None:
        texts = [f"text number {i}" for i in range(57)]
        assert (ours.encode(texts, threads=4) == ours.encode(texts)).all()
        assert ours.encode([], threads=3).shape == (0, ours.dims)

    def test_a_text_without_tokens_is_zeros(self, ours: Embedder) -> None:
        assert not ours.encode(["", " \n", b"\xff\xfe"]).any()

    def test_fills_an_array_that_is_there(self, ours: Embedder) -> None:
        out = np.empty((2, ours.dims), np.float32)
        assert ours.encode(["a", "b"], out=out) is out
        assert (out == ours.encode(["a", "b"])).all()

    @pytest.mark.parametrize("out", [np.empty((1, 256), np.float32), np.empty((2, 256)), np.empty((2, 512))[:, ::2]])
    def test_refuses_an_array_that_does_not_fit(self, ours: Embedder, out: Any) -> None:
        with pytest.raises(EmbedError, match="contiguous float32"):
            ours.encode(["a", "b"], out=out)

    def test_one_text_is_no_list_of_texts(self, ours: Embedder) -> None:
        for threads in (1, 3):
            with pytest.raises(TypeError, match="texts must be a sequence of texts, not one text"):
                ours.encode("abc", threads=threads)


class TestNearest:
    def test_among_none(self, ours: Embedder) -> None:
        for k in (1, 3):
            assert Nearest(ours, []).find("x", k) == []

    @pytest.mark.parametrize(("k", "rows"), [(-1, []), (0, []), (1, [1]), (2, [1, 0]), (9, [1, 0])])
    def test_as_many_as_asked_for(self, ours: Embedder, k: int, rows: list[int]) -> None:
        found = Nearest(ours, ["quarterly taxes", "a cat"]).find("a kitten", k)
        assert [hit.row for hit in found] == rows


class TestSearch:
    @pytest.mark.parametrize("dims", DIMS)
    @pytest.mark.parametrize("k", [0, 1, 10, 5000])
    def test_the_same_bits_as_sorting_everything(self, kernel: Kernel, dims: int, k: int) -> None:
        rows, scales = random_rows(300, dims, seed=dims)
        rows[100:200] = rows[:100]  # ties
        scales[100:200] = scales[:100]
        query = rows[7]
        dots = rows.astype(np.int64) @ query.astype(np.int64)
        scores = dots.astype(np.float32) * scales
        expected = np.lexsort((np.arange(300), -scores))[:k]
        numbers, got = kernel.search(rows, scales, query, k)
        assert numbers.tolist() == expected.tolist()
        assert (got == scores[expected]).all()

    @pytest.mark.parametrize("share", [0.0, 0.02, 0.5, 1.0])
    def test_filters(self, kernel: Kernel, share: float) -> None:
        rows, scales = random_rows(10_000, 64)
        allow = np.random.default_rng(3).random(10_000) < share
        numbers, _ = kernel.search(rows, scales, rows[0], 20, allow)
        everything, _ = kernel.search(rows, scales, rows[0], 10_000)
        assert numbers.tolist() == everything[allow[everything]][:20].tolist()

    def test_the_largest_sums_fit(self, kernel: Kernel) -> None:
        rows = np.full((3, 16384), -128, np.int8)
        rows[1] = 127
        numbers, scores = kernel.search(rows, np.ones(3, np.float32), rows[0], 3)
        assert numbers.tolist() == [0, 2, 1]
        assert scores.tolist() == [128 * 128 * 16384, 128 * 128 * 16384, -127 * 128 * 16384]

    def test_no_rows(self, kernel: Kernel) -> None:
        numbers, _ = kernel.search(np.empty((0, 8), np.int8), np.empty(0, np.float32), np.ones(8, np.int8), 5)
        assert numbers.tolist() == []


class TestVectors:
    def test_scores_are_cosines(self, kernel: Kernel) -> None:
        values = np.random.default_rng(4).normal(size=(2000, 256)).astype(np.float32)
        hits = Vectors.from_floats(values).search(values[5], 3, kernel=kernel)
        assert hits[0].row == 5
        assert hits[0].score == pytest.approx(1, abs=1e-6)
        cosines = unit(values) @ unit(values)[5]
        assert hits[1].score == pytest.approx(float(cosines[hits[1].row]), abs=0.01)

    def test_threads_change_nothing(self, kernel: Kernel) -> None:
        values = np.random.default_rng(5).normal(size=(1000, 32)).astype(np.float32)
        vectors = Vectors.from_floats(np.concatenate([values, values]))
        allow = np.arange(2000) % 3 > 0
        one = vectors.search(values[0], 50, allow=allow, kernel=kernel)
        assert vectors.search(values[0], 50, allow=allow, threads=3, kernel=kernel) == one

    @pytest.mark.parametrize("threads", [-1, 0, 1, 9])
    @pytest.mark.parametrize("count", [0, 1, 3])
    def test_any_number_of_threads_will_do(self, threads: int, count: int) -> None:
        vectors = Vectors.from_floats(np.eye(count, 8, dtype=np.float32))
        hits = vectors.search(np.ones(8, np.float32), threads=threads)
        assert [hit.row for hit in hits] == list(range(count))

    def test_zeros_are_near_to_nothing(self, kernel: Kernel) -> None:
        vectors = Vectors.from_floats(np.zeros((2, 8), np.float32))
        assert [hit.score for hit in vectors.search(np.ones(8, np.float32), kernel=kernel)] == [0, 0]

    @pytest.mark.parametrize("query", [np.zeros(7, np.float32), np.zeros((1, 8), np.float32)])
    def test_a_query_of_another_size(self, query: Any) -> None:
        with pytest.raises(EmbedError, match="the query has the shape"):
            Vectors.from_floats(np.ones((2, 8), np.float32)).search(query)

    @pytest.mark.parametrize("number", [np.nan, np.inf])
    def test_a_query_that_is_not_finite(self, number: float) -> None:
        query = np.array([1.0, number, *[0.0] * 6], np.float32)
        with pytest.raises(EmbedError, match="NaNs or infinities"):
            Vectors.from_floats(np.ones((2, 8), np.float32)).search(query)
        with pytest.raises(EmbedError, match="vector 1 holds NaNs or infinities"):
            Vectors.from_floats(np.stack([np.ones(8, np.float32), query]))

    def test_a_filter_of_another_size(self) -> None:
        with pytest.raises(EmbedError, match="the filter has the shape"):
            Vectors.from_floats(np.ones((2, 8), np.float32)).search(np.ones(8, np.float32), allow=np.ones(3, np.bool_))


def test_quantizing_keeps_values_within_half_a_step() -> None:
    values = np.random.default_rng(6).normal(size=(50, 40)).astype(np.float32)
    rows, scales = quantize(values)
    assert np.abs(rows * scales[:, None] - values).max() <= scales.max() * 0.5001
    assert (np.abs(rows).max(axis=1) == 127).all()
    lengths = np.linalg.norm(rows * unit_scales(rows)[:, None].astype(np.float64), axis=1)
    assert lengths == pytest.approx(1, abs=1e-6)


class TestArgumentsAreChecked:
    """Buffers come from anywhere: a wrong type, shape or size is an exception, never a crash."""

    @pytest.mark.parametrize("place", range(4))
    def test_types(self, place: int) -> None:
        compiled = pytest.importorskip("onebit.kernels.embed.compiled")
        rows, scales = random_rows(10, 8)
        arguments: list[Any] = [rows, scales, rows[0], 3]
        arguments[place] = "wrong"
        with pytest.raises(TypeError):
            compiled.search(*arguments)

    def test_sizes(self) -> None:
        compiled = pytest.importorskip("onebit.kernels.embed.compiled")
        rows, scales = random_rows(10, 8)
        for changed in ((rows, scales[:9], rows[0]), (rows, scales, rows[0, :7]), (rows[:, :7], scales, rows[0])):
            with pytest.raises((ValueError, TypeError, BufferError)):
                compiled.search(*changed, 3)
        with pytest.raises(ValueError, match="do not fit"):
            compiled.search(rows, scales, rows[0], 3, np.ones(9, np.bool_))

    def test_an_unknown_instruction_set(self) -> None:
        compiled = pytest.importorskip("onebit.kernels.embed.compiled")
        with pytest.raises(ValueError, match="no instruction set"):
            compiled.use("mmx")
