"""Estimates against what a real llama-server prints and then holds, and what makes them grow."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from onebit.engines.device import Build, Device, DeviceKind
from onebit.engines.spec import Adapter, Draft, DraftKind, EngineSpec
from onebit.memory.estimate import Estimate, corrected, estimate
from onebit.models.gguf_file import inspect
from tests.engines import specs
from tests.memory.printed import MIB, printed
from tests.support.gguf_files import write_model
from tests.support.mtp import Chain, build_chain_model, make_adapter, split

MTP = Draft(DraftKind.MTP, 3)


@pytest.fixture(scope="session")
def hybrid(demo: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three delta-net layers and one of attention, and an MTP head."""
    path = tmp_path_factory.mktemp("hybrid") / "hybrid.gguf"
    build_chain_model(path, tokenizer=demo, arch="qwen35")
    return path


def spec(model: Path, build: Build, slots: int, context: int, batch: int, draft: Draft | None = None) -> EngineSpec:
    return specs.spec(model=model, build=build, slots=slots, context=context, batch=batch, draft=draft)


def check(spec: EngineSpec, folder: Path, *extra: Path, copies: float = 0, over: float = 100) -> None:
    """Tensors and cache to the printed digit, buffers for computing at most 2.3 times, the whole `over` MiB too high.

    `copies`: by how many MiB the tensors may be over it.
    """
    said = printed(spec, folder)
    guess = estimate(inspect(spec.model), spec, [inspect(path) for path in extra])
    digits = 0.005 * said.lines
    assert said.weights - digits <= guess.weights / MIB <= said.weights + digits + copies
    assert guess.cache / MIB == pytest.approx(said.cache, abs=digits)
    assert said.compute - digits <= guess.compute / MIB <= 2.3 * said.compute
    assert said.held <= guess.total / MIB <= max(said.held, said.weights + said.cache + said.compute) + over
    assert corrected(guess, int(said.held * MIB), host=True) >= said.held * MIB


@pytest.mark.engine
@pytest.mark.parametrize(("slots", "context", "batch"), [(1, 512, 128), (4, 4096, 128), (8, 1000, 512)])
def test_the_demo_model(cpu_build: Build, demo: Path, tmp_path: Path, slots: int, context: int, batch: int) -> None:
    check(spec(demo, cpu_build, slots, context, batch), tmp_path)


@pytest.mark.engine
@pytest.mark.parametrize("draft", [None, MTP, replace(MTP, length=8), Draft(DraftKind.NGRAM, 16)])
@pytest.mark.parametrize(("slots", "context"), [(1, 1024), (4, 4096)])
def test_models_with_a_head(
    cpu_build: Build, right: Chain, hybrid: Path, tmp_path: Path, draft: Draft | None, slots: int, context: int
) -> None:
    check(spec(right.path, cpu_build, slots, context, 128, draft), tmp_path)
    if draft is None or draft.kind is DraftKind.MTP:
        check(spec(hybrid, cpu_build, slots, context, 128, draft), tmp_path)


@pytest.mark.engine
def test_a_head_and_an_adapter_in_files_of_their_own(cpu_build: Build, right: Chain, tmp_path: Path) -> None:
    trunk, head, adapter = (tmp_path / f"{name}.gguf" for name in ("trunk", "head", "adapter"))
    split(right.path, trunk, head)
    check(spec(trunk, cpu_build, 2, 1024, 128, replace(MTP, model=head)), tmp_path, head)
    make_adapter(right.path, adapter, after=right.reply[0], say=right.reply[9])
    plain = spec(right.path, cpu_build, 2, 1024, 128)
    check(replace(plain, adapters=(Adapter(adapter),)), tmp_path, adapter)


@pytest.mark.engine
def test_logits_for_every_token_where_embeddings_are_offered(cpu_build: Build, demo: Path, tmp_path: Path) -> None:
    plain = spec(demo, cpu_build, 4, 1024, 1024)
    check(replace(plain, embeddings=True, pooling="mean"), tmp_path)


@pytest.mark.engine
def test_the_cpu_keeps_a_second_copy_of_some_types(cpu_build: Build, demo: Path, tmp_path: Path) -> None:
    """Some processors reorder these matrices, others do not: the estimate counts the copy."""
    path = tmp_path / "q4.gguf"
    build_chain_model(path, tokenizer=demo, quant="q4_0", nextn=0)
    copied = inspect(path).sizes.repacked
    assert copied > inspect(path).tensor_bytes // 2
    check(spec(path, cpu_build, 1, 512, 128), tmp_path, copies=copied / MIB)
    check(replace(spec(path, cpu_build, 1, 512, 128), extra=("--no-repack",)), tmp_path)


@pytest.mark.vulkan
@pytest.mark.timeout(300)  # shaders are compiled on the CPU
def test_on_vulkan_a_tied_embedding_is_there_twice(vulkan_build: Build, demo: Path, tmp_path: Path) -> None:
    if not all(d.software for d in vulkan_build.devices):
        pytest.skip("a process's PSS says nothing about a real card")
    engine = replace(spec(demo, vulkan_build, 2, 1024, 512), device=Device(DeviceKind.VULKAN))
    check(engine, tmp_path, over=350)  # llvmpipe's own share was anything from 120 to 286 MiB


def test_more_of_anything_never_needs_less(tmp_path: Path) -> None:
    info = inspect(write_model(tmp_path / "m.gguf", blocks=3))
    base = specs.spec(slots=2, context=512, batch=64)
    for more in (
        {"slots": 3},
        {"context": 1024},
        {"batch": 128},
        {"draft": MTP},
        {"device": Device(DeviceKind.VULKAN)},
    ):
        build = specs.CARD_BUILD if "device" in more else specs.CPU_BUILD
        assert estimate(info, replace(base, build=build, **more)).total > estimate(info, base).total


def test_what_was_measured_corrects_the_estimate() -> None:
    guess = Estimate(weights=100, cache=50, compute=20, base=30)
    assert corrected(guess, None, host=True) == corrected(guess, None, host=False) == 200
    assert corrected(guess, 140, host=False) == 140  # a card's allocations are there at once
    assert corrected(guess, 170, host=True) == 190  # the buffers may not have been touched yet
    assert corrected(guess, 120, host=True) == 170  # nor all of a mapped file
