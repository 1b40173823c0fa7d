"""The merge of many adapters beside peft's, diffusers' and the plain loop, in one run, its parts interleaved.

A model of a few layers, for adapters are merged into models and not into single weights: eight of 1536 × 1536, or two
of 3072 × 3072. In each, W (n × n) += Σ scaleᵢ · Bᵢ @ Aᵢ, in float32 and bfloat16, on one thread and on two. Goals:
exact has the bits of peft's merge, at 4 × its speed (1536: 2 ×), 0.9 × that of the fast mode and 0.75 of the
multiply-add peak measured beside it; bf16 mode 7.5 × peft at 3072. Needs the extra `bench` (peft, torch) and a C
compiler for the peak.
"""

from __future__ import annotations

import importlib.metadata
import os
import random
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "2")
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # else torch's threads spin on, on the core of the next one's
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import torch
from benchmarks._common import Spread, arguments, report, scratch, table
from peft import LoraConfig, get_peft_model
from torch import nn

from onebit.kernels.lora import fused
from onebit.kernels.lora.numbers import matrix_of
from onebit.kernels.lora.terms import Mode, Term

SHAPES = ((1536, 32, 4), (3072, 32, 4), (3072, 64, 4), (3072, 64, 8))  # n, rank, adapters
OURS_AND_OTHERS = ("plain loop", "diffusers' loop", "one GEMM", *(f"onebit {mode.name.lower()}" for mode in Mode))
TYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}
LAYERS = {1536: 8, 3072: 2}
Work = Callable[[], None]


class Layer:
    """A weight, its adapters, and the others' ways to merge them."""

    def __init__(self, n: int, rank: int, count: int, dtype: torch.dtype) -> None:
        self.base = (torch.randn(n, n) * 0.05).to(dtype)
        self.weight = self.base.clone()
        self.a = [(torch.randn(rank, n) * 0.05).to(dtype) for _ in range(count)]
        self.b = [(torch.randn(n, rank) * 0.05).to(dtype) for _ in range(count)]
        self.scales = [0.3 + 0.1 * i for i in range(count)]
        self._layer = self._peft_layer(n, rank)

    def terms(self) -> list[Term]:
        """The adapters, as onebit takes them."""
        triples = zip(self.b, self.a, self.scales, strict=True)
        return [Term(matrix_of(b), matrix_of(a), scale) for b, a, scale in triples]

    def ways(self) -> dict[str, Work]:
        """By name; each merges into `self.weight`."""
        return {
            "peft": self._peft,
            "plain loop": self._loop,
            "diffusers' loop": self._diffusers,
            "one GEMM": self._one_gemm,
        }

    def _peft_layer(self, n: int, rank: int) -> Any:
        model = nn.Sequential(nn.Linear(n, n, bias=False, dtype=self.base.dtype))
        config = LoraConfig(r=rank, lora_alpha=rank, target_modules=["0"])
        peft_model = get_peft_model(model, config, adapter_name="0", autocast_adapter_dtype=False)
        for i in range(1, len(self.a)):
            peft_model.add_adapter(str(i), config, autocast_adapter_dtype=False)
        layer: Any = peft_model.get_submodule("base_model.model.0")
        layer.base_layer.weight.data = self.weight
        for i, (b, a, scale) in enumerate(zip(self.b, self.a, self.scales, strict=True)):
            layer.lora_A[str(i)].weight.data = a
            layer.lora_B[str(i)].weight.data = b
            layer.set_scale(str(i), scale)
        return layer

    def _peft(self) -> None:
        self._layer.merge(adapter_names=[str(i) for i in range(len(self.a))])
        self._layer.merged_adapters.clear()

    def _loop(self) -> None:
        for b, a, scale in zip(self.b, self.a, self.scales, strict=True):
            self.weight += ((b.float() @ a.float()) * scale).to(self.base.dtype)

    def _diffusers(self) -> None:
        """What diffusers did before it used peft: everything in float32, a batched product, a new weight each time."""
        for b, a, scale in zip(self.b, self.a, self.scales, strict=True):
            fused_weight = self.weight.float() + scale * torch.bmm(b.float()[None], a.float()[None])[0]
            self.weight.copy_(fused_weight.to(self.base.dtype))

    def _one_gemm(self) -> None:
        """Factors concatenated, scales folded in, and one product of torch's library."""
        b = torch.cat([b.float() * s for b, s in zip(self.b, self.scales, strict=True)], 1)
        a = torch.cat([a.float() for a in self.a])
        if self.base.dtype is torch.float32:
            self.weight.addmm_(b, a)
        else:
            self.weight += b @ a


class Case:
    """A model of a few layers of one shape and type."""

    def __init__(self, n: int, rank: int, count: int, dtype: torch.dtype, threads: int) -> None:
        torch.manual_seed(0)
        self.layers = [Layer(n, rank, count, dtype) for _ in range(LAYERS[n])]
        self.flop = 2 * n * n * rank * count * len(self.layers)
        self.threads = threads
        self._work = [(matrix_of(layer.weight), layer.terms()) for layer in self.layers]

    def ways(self) -> dict[str, Work]:
        """By name; each merges all layers, one after the other."""
        each = [layer.ways() for layer in self.layers]
        others: dict[str, Work] = {name: partial(_in_turn, [ways[name] for ways in each]) for name in each[0]}
        return others | {f"onebit {mode.name.lower()}": partial(self._onebit, mode) for mode in Mode}

    def _onebit(self, mode: Mode) -> None:
        assert fused.merge_many(self._work, mode, threads=self.threads) is None

    def reset(self) -> None:
        """The weights as they were before any merge."""
        for layer in self.layers:
            layer.weight.copy_(layer.base)

    def weights(self) -> list[torch.Tensor]:
        """What was merged, to compare."""
        return [layer.weight.clone() for layer in self.layers]


def _in_turn(works: Sequence[Work]) -> None:
    for work in works:
        work()


def measure(case: Case, rounds: int, peak: Callable[[], float]) -> dict[str, list[float]]:
    """Seconds of every way in every round, and the peak (operations a second) measured in the middle of each."""
    ways = case.ways()
    seconds: dict[str, list[float]] = {name: [] for name in (*ways, "peak")}
    for number in range(rounds + 1):  # the first fills caches, and is not counted
        results = {}
        order = list(ways.items())
        random.Random(number).shuffle(order)  # who comes after torch finds its threads on the other core
        for place, (name, work) in enumerate(order):
            if place == len(ways) // 2:
                seconds["peak"].append(peak())
            case.reset()
            began = time.perf_counter()
            work()
            seconds[name].append(time.perf_counter() - began)
            if number == 0 and name in ("peft", "plain loop", "onebit exact"):
                results[name] = case.weights()
        if number == 0:
            for other in ("peft", "plain loop"):
                pairs = zip(results[other], results["onebit exact"], strict=True)
                assert all(torch.equal(theirs, ours) for theirs, ours in pairs), f"exact differs from the {other}"
    return {name: values[1:] for name, values in seconds.items()}


def peak_program(folder: Path) -> Callable[[], float]:
    """Compile fma_peak.c for this processor. What is returned runs it for some 30 ms and gives operations a second."""
    program = folder / "fma_peak"
    compiler = os.environ.get("CC", "cc")
    source = Path(__file__).with_name("fma_peak.c")
    subprocess.run([compiler, "-O3", "-march=native", str(source), "-o", str(program)], check=True)

    def run() -> float:
        out = subprocess.run([str(program), "15000000"], check=True, capture_output=True, text=True).stdout
        return float(out.split()[0]) * 1e9

    return run


def main() -> None:
    """Run all cases and print their tables."""
    parser = arguments(__doc__)
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2], help="how many at once; 1 and 2 if not said")
    parser.add_argument("--types", nargs="+", choices=TYPES, default=list(TYPES))
    parser.add_argument("--rounds", type=int, default=5, help="of each case, after one that is not counted")
    options = parser.parse_args()
    rounds = 2 if options.quick else options.rounds
    cases = [
        (threads, kind, shape)
        for threads in options.threads
        for kind in options.types
        for shape in (SHAPES[:1] if options.quick else SHAPES)
    ]
    rows, figures = [], {}
    with scratch() as folder, suppress(KeyboardInterrupt):  # Ctrl-C: the rows that are done are shown
        peak = peak_program(folder)
        for threads, kind, shape in cases:
            label = f"{'×'.join(map(str, shape))} {kind}, {threads} threads"
            print(f"{label} …", file=sys.stderr)
            torch.set_num_threads(threads)
            case = Case(*shape, TYPES[kind], threads)
            figures[label] = measure(case, rounds, peak)
            rows.append([label, *_cells(case, figures[label])])
    head = ["n×rank×adapters", "peft", *OURS_AND_OTHERS, "exact / fast", "exact of FMA peak"]
    versions = ", ".join(f"{name} {importlib.metadata.version(name)}" for name in ("torch", "peft", "numpy"))
    note = (
        f"Times faster than peft's merge, median of {rounds} interleaved rounds; exact has peft's bits in every row. "
        f"Variant {fused.variants()[0]}; {versions}."
    )
    report(options, "Merging adapters", [table(head, rows), note], {"seconds": figures})


def _cells(case: Case, seconds: dict[str, list[float]]) -> list[str]:
    """One row: peft's time, everybody's ratio to it, and how exact stands to fast and to the peak."""
    exact = seconds["onebit exact"]
    rate = [case.flop / s / p / case.threads for s, p in zip(exact, seconds["peak"], strict=True)]
    return [
        f"{Spread.of(seconds['peft']).median * 1e3:.0f} ms",
        *(f"{Spread.of(_over(seconds['peft'], seconds[name])).median:.1f}" for name in OURS_AND_OTHERS),
        f"{Spread.of(_over(seconds['onebit fast'], exact)).median:.2f}",
        Spread.of(rate).text(),
    ]


def _over(numerators: list[float], denominators: list[float]) -> list[float]:
    return [n / d for n, d in zip(numerators, denominators, strict=True)]


if __name__ == "__main__":
    main()
