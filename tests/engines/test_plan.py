"""From settings to engines, with plain values."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from onebit.config.load import load
from onebit.engines.device import Build, Device, DeviceKind
from onebit.engines.plan import Plan, plan
from onebit.engines.spec import DraftKind
from onebit.errors import ConfigError, NoBuild
from onebit.models.gguf_file import ModelInfo, ModelKind
from tests.engines.specs import CARD, CARD_BUILD, CPU_BUILD, LLVMPIPE, ROCM

MODEL = ModelInfo(
    path=Path("/m/qwen.gguf"),
    architecture="qwen35",
    name="Qwen",
    kind=ModelKind.MODEL,
    size_bytes=1,
    tensor_bytes=1,
    parameters=1,
    quantization="Q4_K_M",
    context_length=32768,
    block_count=4,
    embedding_length=64,
    vocab_size=100,
    kv_bytes_per_token=1,
    has_mtp_head=True,
    mtp_layers=1,
    has_chat_template=True,
    embedding=False,
    split_count=1,
)
ROCM_BUILD = replace(CPU_BUILD, path=Path("/b/rocm"), devices=(ROCM,))
SOFT_BUILD = replace(CARD_BUILD, devices=(LLVMPIPE,))
STRIX = {DeviceKind.CPU: CPU_BUILD, DeviceKind.VULKAN: CARD_BUILD, DeviceKind.ROCM: ROCM_BUILD}


def decide(
    builds: dict[DeviceKind, Build] | None = None, info: ModelInfo = MODEL, cores: int = 8, **given: Any
) -> Plan:
    known = STRIX if builds is None else builds

    def find(device: Device) -> Build:
        if device.kind not in known:
            raise NoBuild(f"no llama-server for {device}")
        return known[device.kind]

    [served] = load({"model": "/m/qwen.gguf", **given}).served()
    return plan(served.settings, info, find, lambda path: replace(info, path=path), cores)


def shape(decided: Plan) -> list[tuple[str, int, int]]:
    return [(e.name, e.slots, e.rank) for e in decided.engines]


def test_one_engine_on_the_best_device_there_is() -> None:
    assert shape(decide()) == [("rocm", 4, 0)]
    assert shape(decide({DeviceKind.CPU: CPU_BUILD, DeviceKind.VULKAN: CARD_BUILD})) == [("vulkan", 4, 0)]
    assert shape(decide({DeviceKind.CPU: CPU_BUILD})) == [("cpu", 4, 0)]


def test_software_vulkan_is_never_chosen_by_itself_but_may_be_asked_for() -> None:
    builds = {DeviceKind.CPU: CPU_BUILD, DeviceKind.VULKAN: SOFT_BUILD}
    assert shape(decide(builds)) == [("cpu", 4, 0)]
    asked = decide(builds, device="vulkan")
    assert shape(asked) == [("vulkan", 4, 0)]
    assert "in software" in asked.notes[0]
    assert asked.engines[0].batch == 128  # it is a CPU


def test_the_demo_needs_no_card() -> None:
    assert shape(decide(model="demo")) == [("cpu", 4, 0)]


def test_adaptive_is_vulkan_first_and_rocm_for_the_crowd() -> None:
    decided = decide(adaptive=True)
    assert shape(decided) == [("vulkan", 8, 0), ("rocm", 16, 1)]
    assert [e.row_limit for e in decided.engines] == [8, None]


def test_adaptive_on_one_device_is_two_engines_on_it() -> None:
    assert shape(decide({DeviceKind.CPU: CPU_BUILD}, adaptive=True)) == [("cpu-1", 8, 0), ("cpu-2", 16, 1)]


@pytest.mark.parametrize(
    ("given", "slots"),
    [
        ({"parallel": "16"}, [8, 16]),  # a slot over the limit would cost its KV cache and never be used
        ({"parallel": "4,12"}, [4, 12]),
        ({"parallel": "16", "adaptive_at": 12}, [12, 16]),
        ({"mtp": True}, [1, 16]),  # drafting is for a single user
        ({"mtp": True, "parallel": "8"}, [2, 8]),  # 8 rows are 2 requests of 3 drafted tokens and one more
        ({"draft": "ngram"}, [1, 16]),
    ],
)
def test_slots_of_two_engines(given: dict[str, Any], slots: list[int]) -> None:
    assert [e.slots for e in decide(adaptive=True, **given).engines] == slots


def test_every_engine_may_have_its_own_layers_and_threads() -> None:
    engines = decide(device="vulkan,rocm", n_gpu_layers=[10, None], threads="2,3", parallel=[None, 2]).engines
    assert [(e.slots, e.gpu_layers, e.threads) for e in engines] == [(4, 10, 2), (2, None, 3)]
    both = decide(device="vulkan,rocm", n_gpu_layers="7", threads=[None, 3]).engines
    assert [(e.gpu_layers, e.threads) for e in both] == [(7, 4), (7, 3)]
    with pytest.raises(ConfigError, match=r"--threads 1,2: there are fewer engines \(1\)"):
        decide(device="vulkan", threads="1,2")


@pytest.mark.parametrize(("parallel", "slots"), [([4, None], [4, 16]), ([None, 12], [8, 12])])
def test_an_engine_without_slots_of_its_own_has_the_usual_ones(parallel: list[int | None], slots: list[int]) -> None:
    assert [e.slots for e in decide(adaptive=True, parallel=parallel).engines] == slots


def test_two_devices_without_adaptive_share_the_load_evenly() -> None:
    decided = decide(device="vulkan,rocm", parallel="6")
    assert shape(decided) == [("vulkan", 6, 0), ("rocm", 6, 0)]
    assert [e.row_limit for e in decided.engines] == [None, None]
    assert [e.slots for e in decide(device="vulkan,rocm", parallel="6,2").engines] == [6, 2]
    with pytest.raises(ConfigError, match="takes two"):
        decide(device="vulkan,rocm,cpu", adaptive=True)


@pytest.mark.parametrize(
    "arg", ["-np", "--ctx-size", "--host", "--port=1", "-m", "--alias", "--api-key", "--spec-type"]
)
def test_what_onebit_relies_on_is_not_the_users_after_the_dashes(arg: str) -> None:
    with pytest.raises(ConfigError, match="onebit's to set"):
        decide(engine_args=[arg, "1"])


def test_only_the_first_of_two_engines_drafts() -> None:
    first, second = decide(adaptive=True, mtp=True).engines
    assert first.draft is not None and first.draft.kind is DraftKind.MTP and first.draft.length == 3
    assert second.draft is None
    assert (first.rows_per_sequence, second.rows_per_sequence) == (4, 1)


def test_mtp_alone_gives_one_slot_unless_more_are_asked_for() -> None:
    assert [e.slots for e in decide(mtp=True).engines] == [1]
    more = decide(mtp=True, parallel="4")
    assert [e.slots for e in more.engines] == [4]
    assert "--adaptive" in more.notes[0]


@pytest.mark.parametrize(
    ("given", "context"),
    [({}, 4096), ({"ctx_size": 0}, 32768), ({"ctx_size": 8192}, 8192), ({"ctx_size": 32768}, 32768)],
)
def test_the_context_is_per_slot(given: dict[str, Any], context: int) -> None:
    assert decide(**given).engines[0].context == context


def test_a_context_beyond_the_training_is_refused_unless_it_is_stretched() -> None:
    with pytest.raises(ConfigError, match="trained for 32768"):
        decide(ctx_size=65536)
    assert decide(ctx_size=65536, engine_args=["--rope-scaling", "yarn"]).context == 65536
    assert decide(info=replace(MODEL, context_length=1000)).context == 1000


@pytest.mark.parametrize(
    ("builds", "given", "threads"),
    [
        ({DeviceKind.CPU: CPU_BUILD}, {}, [7]),
        ({DeviceKind.CPU: CPU_BUILD}, {"adaptive": True}, [3, 3]),
        (
            {DeviceKind.CPU: CPU_BUILD, DeviceKind.VULKAN: SOFT_BUILD},
            {"adaptive": True, "device": "cpu,vulkan"},
            [3, 3],
        ),
        (STRIX, {"adaptive": True}, [4, 4]),
        (STRIX, {"threads": 5}, [5]),
    ],
)
def test_a_core_is_left_for_the_router(builds: Any, given: dict[str, Any], threads: list[int]) -> None:
    assert [e.threads for e in decide(builds, cores=8, **given).engines] == threads


def test_on_one_or_two_cores_there_is_still_a_thread() -> None:
    for cores in (1, 2):
        decided = decide({DeviceKind.CPU: CPU_BUILD}, cores=cores, adaptive=True)
        assert [e.threads for e in decided.engines] == [1, 1]


def test_a_batch_for_mean_pooling_divides_among_the_slots() -> None:
    """llama.cpp aborts at its start with 1024 on 3 slots."""
    engine = decide({DeviceKind.CPU: CPU_BUILD}, embeddings=True, parallel="3", ctx_size=1024).engines[0]
    assert (engine.batch, engine.pooling) == (1026, "mean")
    own = decide(info=replace(MODEL, embedding=True)).engines[0]
    assert own.embeddings and own.pooling is None  # an embedding model knows how it pools


def test_every_device_of_a_build_by_its_index() -> None:
    two = replace(CARD_BUILD, devices=(CARD, replace(CARD, id="Vulkan1")))
    builds = {DeviceKind.VULKAN: two}
    decided = decide(builds, adaptive=True, device="vulkan:0,vulkan:1")
    assert [(e.name, str(e.device)) for e in decided.engines] == [("vulkan0", "vulkan:0"), ("vulkan1", "vulkan:1")]
