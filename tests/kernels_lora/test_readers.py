"""Reading adapters: the dialects, the scales, and every way in which a file may be bad."""

from __future__ import annotations

import json
import math
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.torch import save_file

from onebit.errors import AdapterError, ModelFileError
from onebit.kernels.lora.adapter import Adapter
from onebit.kernels.lora.readers import read_adapter
from onebit.kernels.lora.safetensors_file import read_header
from tests.kernels_lora.files import factors, write_kohya, write_peft

Q = "model.layers.0.self_attn.q_proj"


def _one(tmp_path: Path, tensors: dict[str, torch.Tensor], metadata: dict[str, str] | None = None) -> Adapter:
    save_file(tensors, tmp_path / "x.safetensors", metadata=metadata)
    return read_adapter(tmp_path / "x.safetensors")


def _pair(down: str, up: str, rank: int = 2, rows: int = 6, cols: int = 4) -> dict[str, torch.Tensor]:
    return {down: torch.ones(rank, cols), up: torch.ones(rows, rank)}


def test_peft(tmp_path: Path) -> None:
    adapter = read_adapter(write_peft(tmp_path / "pirate", rank=4))
    assert (adapter.name, adapter.format, adapter.ranks) == ("pirate", "peft", (4,))
    part = adapter.factors[f"base_model.model.{Q}"]
    b, a = factors(4)[Q]
    assert np.array_equal(part.b.load().array, b.numpy()) and np.array_equal(part.a.load().array, a.numpy())
    assert part.scale(0.5) == 0.5 * 8 / 4


@pytest.mark.parametrize("widened", [False, True])
def test_not_kept_it_is_read_when_wanted(tmp_path: Path, widened: bool) -> None:
    folder = write_peft(tmp_path / "pirate", dtype=torch.bfloat16, fan_in_fan_out=True)
    kept, later = read_adapter(folder), read_adapter(folder, keep=False)
    if widened:
        kept, later = kept.widened(), later.widened()
    assert later.parameters == kept.parameters
    for name, part in later.factors.items():
        wanted = kept.factors[name]
        assert part.weight_shape == wanted.weight_shape
        for got, there in ((part.term(0.5).b, wanted.term(0.5).b), (part.term(0.5).a, wanted.term(0.5).a)):
            assert (got.array.tobytes(), got.number) == (there.array.tobytes(), there.number)
    file = folder / "adapter_model.safetensors"
    file.write_bytes(file.read_bytes()[:-1])
    with pytest.raises(ModelFileError, match="truncated"):
        [part.term(1.0) for part in later.factors.values()]
    file.unlink()
    with pytest.raises(ModelFileError, match="cannot be read any more: No such file"):
        [part.term(1.0) for part in later.factors.values()]


def test_the_file_inside_pefts_folder(tmp_path: Path) -> None:
    folder = write_peft(tmp_path / "pirate")
    assert read_adapter(folder / "adapter_model.safetensors").name == "pirate"


def test_rslora_and_patterns(tmp_path: Path) -> None:
    pattern = {"q_proj": 3, "^model.layers.0.mlp.down_proj": 5, "proj": 99}
    adapter = read_adapter(write_peft(tmp_path / "a", rank=4, use_rslora=True, alpha_pattern=pattern))
    scales = {name.removeprefix("base_model.model."): f.scale(1.0) for name, f in adapter.factors.items()}
    assert scales[Q] == 3 / math.sqrt(4)
    assert scales["model.layers.0.mlp.down_proj"] == 5 / 2
    assert scales["model.layers.1.mlp.down_proj"] == 8 / 2


def test_bfloat16_and_float16(tmp_path: Path) -> None:
    for dtype in (torch.bfloat16, torch.float16):
        adapter = read_adapter(write_peft(tmp_path / str(dtype), dtype=dtype))
        part = adapter.factors[f"base_model.model.{Q}"]
        b, _ = factors(4, dtype)[Q]
        assert np.array_equal(part.b.load().as_float32(), b.float().numpy())
        assert np.array_equal(adapter.widened().factors[part.module].b.load().array, b.float().numpy())


def test_kohya(tmp_path: Path) -> None:
    adapter = read_adapter(write_kohya(tmp_path / "style.safetensors", rank=4, alpha=2.0))
    assert (adapter.name, adapter.format) == ("style", "kohya")
    assert adapter.factors["lora_unet_layers_0_self_attn_q_proj"].scale(1.0) == 0.5
    without = read_adapter(write_kohya(tmp_path / "plain.safetensors", alpha=None))
    assert without.factors["lora_unet_layers_0_self_attn_q_proj"].scale(0.7) == pytest.approx(0.7)


@pytest.mark.parametrize(
    ("down", "up", "module"),
    [
        ("unet.a.to_q.lora.down.weight", "unet.a.to_q.lora.up.weight", "unet.a.to_q"),
        ("unet.a.processor.to_q_lora.down.weight", "unet.a.processor.to_q_lora.up.weight", "unet.a.to_q"),
        ("unet.a.processor.to_out_lora.down.weight", "unet.a.processor.to_out_lora.up.weight", "unet.a.to_out.0"),
        ("transformer.a.lora_A.weight", "transformer.a.lora_B.weight", "transformer.a"),
    ],
)
def test_diffusers(tmp_path: Path, down: str, up: str, module: str) -> None:
    adapter = _one(tmp_path, _pair(down, up))
    assert adapter.format == "diffusers"
    assert adapter.factors[module].scale(1.0) == 1


def test_diffusers_metadata(tmp_path: Path) -> None:
    settings = {"transformer.lora_alpha": 6, "transformer.r": 2, "transformer.alpha_pattern": {"b.to_q": 1}}
    tensors = _pair("transformer.a.lora_A.weight", "transformer.a.lora_B.weight")
    tensors |= _pair("transformer.b.to_q.lora_A.weight", "transformer.b.to_q.lora_B.weight")
    adapter = _one(tmp_path, tensors, {"lora_adapter_metadata": json.dumps(settings)})
    assert adapter.factors["transformer.a"].scale(1.0) == 3
    assert adapter.factors["transformer.b.to_q"].scale(1.0) == 0.5


def test_a_convolution_is_a_matrix(tmp_path: Path) -> None:
    tensors = {"m.lora_down.weight": torch.randn(2, 3, 3, 3), "m.lora_up.weight": torch.randn(5, 2, 1, 1)}
    part = _one(tmp_path, tensors).factors["m"]
    assert (part.weight_shape, part.kernel) == ((5, 27), (3, 3))


@pytest.mark.parametrize(
    ("tensors", "message"),
    [
        ({"m.dora_scale": (4,)}, "DoRA"),
        ({"m.lora_magnitude_vector.weight": (4,)}, "DoRA"),
        ({"m.hada_w1_a": (4, 2)}, "LoHa"),
        ({"m.lokr_w1": (4, 2)}, "LoKr"),
        ({"m.lora_mid.weight": (2, 2, 3, 3)}, "Tucker"),
        ({"m.lora_embedding_A": (2, 8)}, "LoRA on an embedding"),
        ({"m.lora_B.bias": (6,)}, "biases"),
        ({"m.something.weight": (2, 2)}, "m.something.weight is no part of a LoRA"),
        ({"n.lora_down.weight": (2, 2)}, r"n has no B \(up\)"),
        ({"n.lora_up.weight": (2, 2)}, r"n has no A \(down\)"),
        ({"n.alpha": (1,)}, r"n has no A \(down\) and no B \(up\)"),
        ({"n.lora_down.weight": (3, 2), "n.lora_up.weight": (4, 2)}, r"the ranks of n disagree \(A 3×2, B 4×2\)"),
        ({"n.lora_down.weight": (0, 2), "n.lora_up.weight": (4, 0)}, r"n has rank 0 .*\(A 0×2, B 4×0\)"),
        ({"n.lora_down.weight": (2,), "n.lora_up.weight": (4, 2)}, "n has rank 0 or no matrices"),
        ({"n.lora_down.weight": (2, 3), "n.lora_up.weight": (4, 2, 3, 3)}, "an up convolution larger than 1×1"),
        ({"n.lora_down.weight": (2, 3), "n.lora_up.weight": (4, 2), "n.alpha": (2,)}, "alpha of n is not one number"),
    ],
)
def test_what_cannot_be_merged_is_refused_by_name(
    tmp_path: Path, tensors: dict[str, tuple[int, ...]], message: str
) -> None:
    good = _pair("m.lora_down.weight", "m.lora_up.weight")
    with pytest.raises(AdapterError, match=message):
        _one(tmp_path, good | {name: torch.ones(shape) for name, shape in tensors.items()})


@pytest.mark.parametrize("bad", [math.nan, math.inf])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_nans(tmp_path: Path, bad: float, dtype: torch.dtype) -> None:
    tensors = {name: t.to(dtype) for name, t in _pair("m.lora_down.weight", "m.lora_up.weight").items()}
    tensors["m.lora_up.weight"][5, 1] = bad
    with pytest.raises(AdapterError, match="m has NaNs or infinities in B"):
        _one(tmp_path, tensors)


def test_an_alpha_that_is_no_number(tmp_path: Path) -> None:
    with pytest.raises(AdapterError, match="the alpha of m is nan"):
        _one(tmp_path, _pair("m.lora_down.weight", "m.lora_up.weight") | {"m.alpha": torch.tensor(math.nan)})


def test_types_that_are_not_merged(tmp_path: Path) -> None:
    tensors = {name: t.double() for name, t in _pair("m.lora_down.weight", "m.lora_up.weight").items()}
    with pytest.raises(AdapterError, match=r"m\.lora_down\.weight is F64"):
        _one(tmp_path, tensors)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"use_dora": True}, "use_dora is set. This is DoRA"),
        ({"peft_type": "LOHA"}, "of type LOHA"),
        ({"init_lora_weights": "pissa_niter_4"}, "has changed the base weights"),
        ({"modules_to_save": ["lm_head"]}, "modules_to_save"),
        ({"alpha_pattern": {"(a+)+$": 3}}, "expression"),
        ({"lora_alpha": None}, "lora_alpha or alpha_pattern is missing"),
        ({"lora_alpha": "many"}, "lora_alpha or alpha_pattern is missing"),
        ({"alpha_pattern": ["q_proj"]}, "lora_alpha or alpha_pattern is missing"),
    ],
)
def test_settings_of_peft_that_change_the_meaning(tmp_path: Path, settings: dict[str, Any], message: str) -> None:
    with pytest.raises(AdapterError, match=message):
        read_adapter(write_peft(tmp_path / "a", **settings))


@pytest.mark.parametrize(
    ("file", "message"),
    [("adapter_model.bin", r"only adapter_model\.bin: a pickle.*never opened"), ("other", r"no adapter_model\.safe")],
)
def test_a_folder_without_safetensors(tmp_path: Path, file: str, message: str) -> None:
    (tmp_path / file).write_bytes(b"PK")
    with pytest.raises(AdapterError, match=message):
        read_adapter(tmp_path)


def test_peft_without_its_config(tmp_path: Path) -> None:
    folder = write_peft(tmp_path / "a")
    (folder / "adapter_config.json").unlink()
    with pytest.raises(AdapterError, match=r"has no adapter_config\.json beside it, which says its alpha"):
        read_adapter(folder)


@pytest.mark.parametrize("content", [b"", b"[1]", b"{", b"\xff", b"[" * 100_000])
def test_a_damaged_config(tmp_path: Path, content: bytes) -> None:
    folder = write_peft(tmp_path / "a")
    (folder / "adapter_config.json").write_bytes(content)
    with pytest.raises(AdapterError, match=r"adapter_config\.json"):
        read_adapter(folder)


# --- files that are damaged ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "it is empty"),
        (b"PK\x03\x04 and more", "PyTorch checkpoint"),
        (b"\x80\x02}q\x00 more", "PyTorch checkpoint"),
        (b"GGUF\x03\x00\x00\x00\x00\x00", "it is GGUF"),
        (b"version https://git-lfs", "Git LFS pointer"),
        (struct.pack("<Q", 2**40) + b"{}", "announces a header of"),
        (struct.pack("<Q", 100) + b"{}", "ends inside its header"),
        (struct.pack("<Q", 2) + b"{]", "damaged header"),
        (struct.pack("<Q", 14) + b'{"a":1,"a":2}}', "damaged header"),
    ],
)
def test_what_is_no_safetensors_file(tmp_path: Path, content: bytes, message: str) -> None:
    path = tmp_path / "x.safetensors"
    path.write_bytes(content)
    with pytest.raises(ModelFileError, match=message):
        read_adapter(path)


def test_a_missing_file(tmp_path: Path) -> None:
    with pytest.raises(ModelFileError, match="No such file"):
        read_adapter(tmp_path / "none.safetensors")


def _raw(header: object, data: bytes) -> bytes:
    text = json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + data


@pytest.mark.parametrize(
    ("header", "message"),
    [
        ({"a": {"dtype": "F32", "shape": [2], "data_offsets": [0, 4]}}, "which is not what F32"),
        ({"a": {"dtype": "F32", "shape": [-1], "data_offsets": [0, 4]}}, "impossible shape"),
        ({"a": {"dtype": "F32", "shape": [1.0], "data_offsets": [0, 4]}}, "impossible shape"),
        ({"a": {"dtype": "F32", "shape": [True], "data_offsets": [0, 4]}}, "impossible shape"),
        ({"a": {"dtype": "F32", "shape": [1] * 99, "data_offsets": [0, 4]}}, "impossible shape"),
        ({"a": {"dtype": "F32", "shape": [1], "data_offsets": [4, 8]}}, "overlaps or leaves a gap"),
        ({"a": {"dtype": "F32", "shape": [1]}}, "damaged header"),
        ({"a": [1]}, "damaged header"),
        ({"a": {"dtype": "F32", "shape": [4], "data_offsets": [0, 16]}}, "truncated"),
        (
            {n: {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]} for n in "ab"},
            "overlaps or leaves a gap",
        ),
    ],
)
def test_headers_that_lie(tmp_path: Path, header: object, message: str) -> None:
    path = tmp_path / "x.safetensors"
    path.write_bytes(_raw(header, b"\0" * 8))
    with pytest.raises(ModelFileError, match=message):
        read_header(path)


@settings(max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(cut=st.integers(0, 10_000), flips=st.lists(st.tuples(st.integers(0, 10_000), st.integers(1, 255)), max_size=3))
def test_any_damage_is_one_message(tmp_path: Path, cut: int, flips: list[tuple[int, int]]) -> None:
    """Cut anywhere and flip any bytes: the file is read, or one of our errors says why not."""
    path = tmp_path / "whole.safetensors"
    if not path.exists():
        write_kohya(path)
    data = bytearray(path.read_bytes())
    for at, bits in flips:
        data[at % len(data)] ^= bits
    hurt = tmp_path / "hurt.safetensors"
    hurt.write_bytes(data[: cut % (len(data) + 1)] if cut % 3 else data)
    message = str(hurt)
    try:
        read_adapter(hurt)
    except (AdapterError, ModelFileError) as error:
        message = error.message
    assert str(hurt) in message
