"""Check and time the Triton merge on this machine's GPU, in under five minutes. Prints a page for docs/.

    python scripts/gpu_kernels.py            # the checks, then the table
    python scripts/gpu_kernels.py --check    # the checks alone

Checks: exact mode against the reference bit for bit, the others within their bounds, odd shapes and mixed ranks in
one launch. Times: the median of `triton.testing.do_bench` over four modules taken in turn (so that no weight is in
the cache from the run before), with the bandwidth of a copy and torch's own loop measured beside each. Goals: 4 × the
loop at 4 adapters, 0.8 of the copy's bandwidth for bfloat16 weights.
"""

from __future__ import annotations

import argparse
import itertools
import sys
from collections.abc import Callable

import numpy as np
import torch
import triton

from onebit.kernels.lora import reference
from onebit.kernels.lora.numbers import Matrix, Number, f32_to_bf16, matrix_of
from onebit.kernels.lora.terms import Mode, Term
from onebit.kernels.lora.triton_merge import DeviceTerm, Launch, merge, terms_on

DEVICE = torch.device("cuda")
ODD = [((5, 7), [1]), ((65, 130), [3, 16, 40]), ((513, 257), [8, 64]), ((129, 64), [200])]
SHAPES = ((1536, 32, 4), (3072, 32, 4), (3072, 64, 4), (3072, 64, 8))  # n, rank, adapters
ROTATE = 4  # weights taken in turn: 4 × 18 MB of bfloat16 is more than most caches; the H200's has 50 MB


def main() -> int:
    """Returns the exit code: 1 if a check fails."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--check", action="store_true", help="do not measure")
    options = parser.parse_args()
    if not torch.cuda.is_available():
        print("no GPU that torch can use here; nothing was run", file=sys.stderr)
        return 2
    failures = [line for line in _checks() if line.startswith("FAILED")]
    if not options.check:
        _measure()
    return 1 if failures else 0


def _checks() -> list[str]:
    lines = []
    for weights, factors in itertools.product(Number, Number):
        same = _same_bits(weights, factors)
        lines.append(f"{'ok' if same else 'FAILED'}: exact, weights {weights.name}, factors {factors.name}")
    for mode, bound in ((Mode.ACCURATE, 1e-5), (Mode.FAST, 1e-5), (Mode.BF16, 2.5e-3)):
        error = _error(mode)
        lines.append(f"{'ok' if error < bound else 'FAILED'}: {mode.name.lower()}, error {error:.2e} of {bound:.1e}")
    print("\n".join(lines), flush=True)
    return lines


def _modules(weights: Number, factors: Number) -> list[tuple[Matrix, list[Term]]]:
    rng = np.random.default_rng(0)

    def matrix(rows: int, cols: int, number: Number) -> Matrix:
        values = (rng.standard_normal((rows, cols)) * 0.05).astype(np.float32)
        return Matrix(f32_to_bf16(values) if number is Number.BF16 else values.astype(number.array_dtype), number)

    return [
        (
            matrix(*shape, weights),
            [Term(matrix(shape[0], r, factors), matrix(r, shape[1], factors), rng.uniform(-2, 2)) for r in ranks],
        )
        for shape, ranks in ODD
    ]


def _on_gpu(modules: list[tuple[Matrix, list[Term]]], mode: Mode) -> list[torch.Tensor]:
    work = [(_tensor(weight), terms_on(DEVICE, terms)) for weight, terms in modules]
    merge(work, mode)
    return [weight.cpu() for weight, _ in work]


def _tensor(weight: Matrix) -> torch.Tensor:
    tensor = torch.from_numpy(weight.array.copy())
    return (tensor.view(torch.bfloat16) if weight.number is Number.BF16 else tensor).to(DEVICE)


def _same_bits(weights: Number, factors: Number) -> bool:
    modules = _modules(weights, factors)
    got = _on_gpu(modules, Mode.EXACT)
    for weight, terms in modules:
        reference.merge(weight, terms)
    return all(matrix_of(g).array.tobytes() == w.array.tobytes() for g, (w, _) in zip(got, modules, strict=True))


def _error(mode: Mode) -> float:
    modules = _modules(Number.F32, Number.F32)
    wrong = whole = 0.0
    for got, (weight, terms) in zip(_on_gpu(modules, mode), modules, strict=True):
        exact = sum(t.scale * (t.b.array.astype(np.float64) @ t.a.array) for t in terms)
        wrong += float(np.sum((got.numpy() - weight.array - exact) ** 2))
        whole += float(np.sum(exact**2))
    return (wrong / whole) ** 0.5


def _measure() -> None:
    name, capability = torch.cuda.get_device_name(), torch.cuda.get_device_capability()
    print(f"\n{name} (sm_{capability[0]}{capability[1]}), torch {torch.__version__}, triton {triton.__version__}\n")
    print("| n×rank×adapters | type | mode | loop, µs | ours, µs | × the loop | of copy bandwidth |")
    print("| --- | --- | --- | --- | --- | --- | --- |")
    for n, rank, count in SHAPES:
        for dtype in (torch.float32, torch.bfloat16):
            sets = [_random(n, rank, count, dtype) for _ in range(ROTATE)]
            other = torch.empty_like(sets[0][0])
            copy = _median([lambda w=weight, o=other: o.copy_(w) for weight, _ in sets])
            loop = _median([lambda w=weight, t=terms: _loop(w, t) for weight, terms in sets])
            for mode in Mode:
                ours = _median([Launch([one], mode).run for one in sets])
                # a copy reads and writes a weight once, and so does a merge; the factors come on top
                share = copy / ours
                cells = f"{n}×{rank}×{count} | {str(dtype).removeprefix('torch.')} | {mode.name.lower()}"
                print(f"| {cells} | {loop:.0f} | {ours:.0f} | {loop / ours:.1f} | {share:.2f} |", flush=True)


def _random(n: int, rank: int, count: int, dtype: torch.dtype) -> tuple[torch.Tensor, list[DeviceTerm]]:
    def values(rows: int, cols: int) -> torch.Tensor:
        return (torch.randn(rows, cols, device=DEVICE) * 0.02).to(dtype)

    return values(n, n), [DeviceTerm(values(n, rank), values(rank, n), 1e-3) for _ in range(count)]


def _loop(weight: torch.Tensor, terms: list[DeviceTerm]) -> None:
    for term in terms:
        weight += (term.b @ term.a) * term.scale


def _median(works: list[Callable[[], object]]) -> float:
    """Microseconds of one of `works`, which are called in turn."""
    turn = itertools.cycle(works)
    milliseconds = triton.testing.do_bench(lambda: next(turn)(), warmup=25, rep=100, return_mode="median")
    return float(milliseconds) * 1e3


if __name__ == "__main__":
    sys.exit(main())
