"""Merging into files: safetensors whole and in shards, GGUF; whole or not at all."""

from __future__ import annotations

import errno
import json
import os
import re
import shutil
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType, GGUFReader, GGUFWriter, quants
from safetensors.torch import load_file, save_file

from onebit.checkpoints.merge import merge_files
from onebit.errors import AdapterError, ModelFileError
from onebit.kernels.lora.adapter import Adapter
from onebit.kernels.lora.lora_set import LoraSet
from onebit.kernels.lora.readers import read_adapter
from tests.kernels_lora.files import Tensors, factors, model_weights, stock_loop, write_kohya, write_peft


@pytest.fixture
def adapter(tmp_path: Path) -> Adapter:
    return read_adapter(write_peft(tmp_path / "pirate"))


def _same(path: Path, wanted: Tensors) -> bool:
    got = load_file(path)
    return got.keys() == wanted.keys() and all(torch.equal(got[name], wanted[name]) for name in wanted)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_one_file(tmp_path: Path, adapter: Adapter, dtype: torch.dtype) -> None:
    base = tmp_path / "base.safetensors"
    save_file(model_weights(dtype), base, metadata={"format": "pt"})
    steps: list[tuple[int, int | None]] = []
    out = tmp_path / "new" / "out.safetensors"
    done = merge_files(base, [(adapter, 0.8)], out, report=lambda _, done, total: steps.append((done, total)))
    assert (done.changed, done.tensors) == (6, 9)
    assert _same(out, stock_loop(model_weights(dtype), (factors(4), 0.8 * 2)))
    length = 8 + int.from_bytes(base.read_bytes()[:8], "little")
    assert out.read_bytes()[:length] == base.read_bytes()[:length]  # header and metadata as they were
    assert steps[-1] == (base.stat().st_size, base.stat().st_size)


def test_shards(tmp_path: Path, adapter: Adapter) -> None:
    folder, weights = tmp_path / "base", model_weights()
    folder.mkdir()
    names = list(weights)
    index: dict[str, str] = {}
    for number, some in enumerate((names[:4], names[4:]), 1):
        file = f"model-{number:05d}-of-00002.safetensors"
        save_file({name: weights[name] for name in some}, folder / file)
        index |= dict.fromkeys(some, file)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": index}))
    (folder / "config.json").write_text("{}")
    (folder / "pytorch_model.bin").write_bytes(b"not needed")
    (folder / "pytorch_model.bin.index.json").write_text("{}")
    out = tmp_path / "out"
    done = merge_files(folder, [(adapter, 1.0)], out)
    assert done.left_behind == ("pytorch_model.bin",)
    wanted = stock_loop(model_weights(), (factors(4), 2.0))
    got = {name: w for path in out.glob("*.safetensors") for name, w in load_file(path).items()}
    assert all(torch.equal(got[name], wanted[name]) for name in wanted)
    files = {path.name for path in out.iterdir()}
    assert files == {path.name for path in folder.iterdir() if not path.name.startswith("pytorch")}
    (folder / "model-00002-of-00002.safetensors").unlink()
    with pytest.raises(ModelFileError, match=r"model-00002-of-00002\.safetensors: missing"):
        merge_files(folder, [(adapter, 1.0)], tmp_path / "other")


def test_a_folder_with_several_models(tmp_path: Path, adapter: Adapter) -> None:
    """One is merged, and no copy that nothing was merged into goes along with it."""
    folder, out = tmp_path / "base", tmp_path / "out"
    folder.mkdir()
    other = {f"layers.{number}.weight": torch.ones(2, 2) for number in range(3)}
    save_file(model_weights(), folder / "model.safetensors")
    save_file(other, folder / "consolidated.safetensors")
    done = merge_files(folder, [(adapter, 1.0)], out)
    assert (done.tensors, done.left_behind) == (9, ("consolidated.safetensors",))
    assert [path.name for path in out.iterdir()] == ["model.safetensors"]
    names = ("model.safetensors", "model.fp16.safetensors")
    for name, part in zip(names, ("a.safetensors", "b.safetensors"), strict=True):
        save_file(model_weights(), folder / part)
        index = {"weight_map": dict.fromkeys(model_weights(), part)}
        (folder / f"{name}.index.json").write_text(json.dumps(index))
    with pytest.raises(ModelFileError, match=r"several models: model\.fp16\.\S+, model\.safetensors\.index\.json"):
        merge_files(folder, [(adapter, 1.0)], tmp_path / "other")
    merge_files(folder / "model.fp16.safetensors.index.json", [(adapter, 1.0)], tmp_path / "one")
    assert {path.name for path in (tmp_path / "one").iterdir()} == {
        "b.safetensors",
        "model.fp16.safetensors.index.json",
    }


def test_an_index_may_not_point_elsewhere(tmp_path: Path, adapter: Adapter) -> None:
    (tmp_path / "m").mkdir()
    index = {"weight_map": {"a": "../secret.safetensors"}}
    (tmp_path / "m" / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(ModelFileError, match="which is no file beside it"):
        merge_files(tmp_path / "m", [(adapter, 1.0)], tmp_path / "out")


def test_skipping_what_is_missing(tmp_path: Path) -> None:
    base, extra = tmp_path / "base.safetensors", {
        "lora_te_text_model.lora_down.weight": torch.ones(2, 4),
        "lora_te_text_model.lora_up.weight": torch.ones(6, 2),
    }  # fmt: skip
    save_file(model_weights(), base)
    adapter = read_adapter(write_kohya(tmp_path / "style.safetensors", extra=extra))
    message = r"adapter style: the model has no lora_te_text_model \(B 6×2 @ A 2×4\)"
    with pytest.raises(AdapterError, match=message) as caught:
        merge_files(base, [(adapter, 1.0)], tmp_path / "out.safetensors")
    assert "--skip-missing" in (caught.value.hint or "")
    with pytest.raises(AdapterError, match=message) as caught:
        LoraSet(model_weights()).add(adapter)
    assert "--skip-missing" not in (caught.value.hint or "")
    done = merge_files(base, [(adapter, 1.0)], tmp_path / "out.safetensors", allow_missing=True)
    assert done.skipped == {"style": ("lora_te_text_model",)}
    assert _same(tmp_path / "out.safetensors", stock_loop(model_weights(), (factors(4), 0.5)))


def test_nothing_is_left_where_it_fails(tmp_path: Path, adapter: Adapter) -> None:
    weights = model_weights()
    weights["model.layers.1.mlp.down_proj.weight"][0, 0] = torch.nan
    base, out = tmp_path / "base.safetensors", tmp_path / "out" / "x.safetensors"
    save_file(weights, base)
    with pytest.raises(
        AdapterError, match=r"model\.layers\.1\.mlp\.down_proj\.weight has NaNs or infinities once pirate:1"
    ):
        merge_files(base, [(adapter, 1.0)], out)
    assert list(out.parent.iterdir()) == []


def test_an_output_that_exists(tmp_path: Path, adapter: Adapter) -> None:
    base, out = tmp_path / "base.safetensors", tmp_path / "out.safetensors"
    save_file(model_weights(), base)
    out.write_bytes(b"precious")
    with pytest.raises(ModelFileError, match="exists already"):
        merge_files(base, [(adapter, 1.0)], out)
    assert out.read_bytes() == b"precious"
    with pytest.raises(ModelFileError, match="is the base itself"):
        merge_files(base, [(adapter, 1.0)], base, overwrite=True)
    with pytest.raises(ModelFileError, match="is the adapter pirate itself"):
        merge_files(base, [(adapter, 1.0)], adapter.path, overwrite=True)
    namesake = read_adapter(write_peft(tmp_path / "other" / "pirate"))
    with pytest.raises(ModelFileError, match="is the adapter pirate itself"):
        merge_files(base, [(adapter, 1.0), (namesake, 1.0)], adapter.path, overwrite=True)
    with pytest.raises(ModelFileError, match="is a folder, and one file is to be written"):
        merge_files(base, [(adapter, 1.0)], tmp_path, overwrite=True)
    merge_files(base, [(adapter, 1.0)], out, overwrite=True)
    assert _same(out, stock_loop(model_weights(), (factors(4), 2.0)))


def test_an_output_that_is_no_file(tmp_path: Path, adapter: Adapter) -> None:
    """As root, /dev/null would become one."""
    base, pipe = tmp_path / "base.safetensors", tmp_path / "pipe"
    save_file(model_weights(), base)
    os.mkfifo(pipe)
    with pytest.raises(ModelFileError, match="is a device, a pipe or a socket"):
        merge_files(base, [(adapter, 1.0)], pipe, overwrite=True)
    assert pipe.is_fifo()


def test_a_full_disk(tmp_path: Path, adapter: Adapter, monkeypatch: pytest.MonkeyPatch) -> None:
    base, out = tmp_path / "base.safetensors", tmp_path / "out" / "x.safetensors"
    save_file(model_weights(), base)

    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(ModelFileError, match="the disk is full"):
        merge_files(base, [(adapter, 1.0)], out)
    assert list(out.parent.iterdir()) == []
    usage = shutil.disk_usage(tmp_path)._replace(free=10)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage)
    with pytest.raises(ModelFileError, match="are free on its disk"):
        merge_files(base, [(adapter, 1.0)], out)


def test_a_truncated_base(tmp_path: Path, adapter: Adapter) -> None:
    base = tmp_path / "base.safetensors"
    save_file(model_weights(), base)
    base.write_bytes(base.read_bytes()[:-10])
    with pytest.raises(ModelFileError, match="truncated"):
        merge_files(base, [(adapter, 1.0)], tmp_path / "out.safetensors")


@pytest.mark.skipif(sys.platform != "linux", reason="asks /proc for the highest memory")
def test_memory_is_bounded_by_the_largest_tensor(tmp_path: Path) -> None:
    """60 tensors of 4 MB and their factors of 1 MB: the highest memory may rise by a few of them, not by all 300 MB."""
    one, factor = torch.zeros(1024, 1024), torch.ones(128, 1024)
    save_file({f"m{i}.weight": one + i for i in range(60)}, tmp_path / "base.safetensors")
    factor_tensors: Tensors = {}
    for i in range(60):
        factor_tensors |= {f"m{i}.lora_down.weight": factor + i, f"m{i}.lora_up.weight": factor.T.contiguous()}
    save_file(factor_tensors, tmp_path / "a.safetensors")
    del factor_tensors
    Path("/proc/self/clear_refs").write_text("5")  # the mark of the highest memory begins anew
    before = _highest_memory()
    adapters = [(read_adapter(tmp_path / "a.safetensors", name, keep=False), 1.0) for name in ("one", "two")]
    merge_files(tmp_path / "base.safetensors", adapters, tmp_path / "out.safetensors")
    assert _highest_memory() - before < 60e6


def _highest_memory() -> int:
    status = Path("/proc/self/status").read_text()
    return 1024 * int(re.search(r"VmHWM:\s+(\d+) kB", status)[1])  # type: ignore[index]


# --- GGUF ----------------------------------------------------------------------------------------------------

HEADS, KV_HEADS = 4, 2
NAMES = {"self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k", "mlp.down_proj": "ffn_down"}
MERGED = ("F32", "F16", "BF16", "Q8_0")


def _permuted(weight: np.ndarray, heads: int) -> np.ndarray:
    """As llama.cpp's converter orders query and key rows."""
    return weight.reshape(heads, 2, -1, weight.shape[1]).swapaxes(1, 2).reshape(weight.shape)


def _wide(tensors: Tensors) -> Tensors:
    """Columns in multiples of 32, Q8_0's block: each matrix and its factors repeated sideways."""
    return {name: torch.cat([w] * 4, 1) if w.ndim == 2 else w for name, w in tensors.items()}


def _gguf_name(name: str) -> str:
    _, _, layer, rest = name.removesuffix(".weight").split(".", 3)
    return f"blk.{layer}.{NAMES[rest]}.weight"


def _write_gguf(path: Path, weights: Tensors, kind: str, arch: str) -> Path:
    writer = GGUFWriter(path, arch)
    writer.add_block_count(2)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KV_HEADS)
    writer.add_context_length(64)
    writer.add_embedding_length(64)
    writer.add_array("tokenizer.ggml.tokens", ["a", "b"])
    for name, weight in weights.items():
        if "proj" not in name:
            continue
        values = weight.numpy()
        if arch == "llama" and "mlp" not in name:
            values = _permuted(values, HEADS if "q_proj" in name else KV_HEADS)
        code = GGMLQuantizationType[kind]
        writer.add_tensor(_gguf_name(name), quants.quantize(np.ascontiguousarray(values), code), raw_dtype=code)
    writer.add_tensor("output_norm.weight", np.ones(64, np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _read_gguf(path: Path) -> dict[str, np.ndarray]:
    return {t.name: quants.dequantize(t.data, t.tensor_type) for t in GGUFReader(path).tensors}


def _wide_adapter(folder: Path, keep: bool = True) -> Adapter:
    write_peft(folder)
    file = folder / "adapter_model.safetensors"
    save_file({n: torch.cat([t] * 4, 1) if "lora_A" in n else t for n, t in load_file(file).items()}, file)
    return read_adapter(folder, keep=keep)


@pytest.mark.parametrize("keep", [True, False])
@pytest.mark.parametrize("kind", MERGED)
@pytest.mark.parametrize("arch", ["llama", "qwen2"])
def test_gguf(tmp_path: Path, kind: str, arch: str, keep: bool) -> None:
    weights = _wide(model_weights())
    base = _write_gguf(tmp_path / "base.gguf", weights, kind, arch)
    done = merge_files(base, [(_wide_adapter(tmp_path / "a", keep), 1.0)], tmp_path / "out.gguf")
    assert (done.changed, done.tensors) == (6, 7)
    # what the stock loop gives on the rounded base, converted and rounded again
    rounded = {}
    for name, weight in weights.items():
        if "proj" in name:
            code = GGMLQuantizationType[kind]
            rounded[name] = torch.from_numpy(quants.dequantize(quants.quantize(weight.numpy(), code), code).copy())
    wide = {module: (b, torch.cat([a] * 4, 1)) for module, (b, a) in factors(4).items()}
    wanted = stock_loop(rounded, (wide, 2.0))
    expected = _read_gguf(_write_gguf(tmp_path / "expected.gguf", wanted, kind, arch))
    got = _read_gguf(tmp_path / "out.gguf")
    assert all(np.array_equal(got[name], expected[name]) for name in expected)
    assert (tmp_path / "out.gguf").stat().st_size == base.stat().st_size


@pytest.mark.parametrize("kind", MERGED)
def test_more_than_its_type_can_hold(tmp_path: Path, kind: str) -> None:
    base = _write_gguf(tmp_path / "base.gguf", _wide(model_weights()), kind, "qwen2")
    strength = 1e39 if kind in ("F32", "BF16") else 1e9
    with pytest.raises(AdapterError, match="has NaNs or infinities once a:"):
        merge_files(base, [(_wide_adapter(tmp_path / "a"), strength)], tmp_path / "out.gguf")
    assert not (tmp_path / "out.gguf").exists()


def test_gguf_of_an_architecture_not_known(tmp_path: Path) -> None:
    base = _write_gguf(tmp_path / "base.gguf", _wide(model_weights()), "F32", "falcon")
    with pytest.raises(AdapterError, match="changed the weights of falcon models is not known"):
        merge_files(base, [(_wide_adapter(tmp_path / "a"), 1.0)], tmp_path / "out.gguf")


def test_gguf_of_a_type_that_is_not_merged(tmp_path: Path) -> None:
    base = _write_gguf(tmp_path / "base.gguf", _wide(model_weights()), "Q4_0", "qwen2")
    with pytest.raises(AdapterError, match=r"blk\.0\.ffn_down\.weight is Q4_0; F32, F16, BF16 and Q8_0"):
        merge_files(base, [(_wide_adapter(tmp_path / "a"), 1.0)], tmp_path / "out.gguf")
    assert not (tmp_path / "out.gguf").exists()


def test_gguf_without_a_module(tmp_path: Path) -> None:
    """It is named as the adapter's file names it."""
    weights = {name: w for name, w in _wide(model_weights()).items() if "1.mlp.down_proj" not in name}
    base = _write_gguf(tmp_path / "base.gguf", weights, "F32", "qwen2")
    with pytest.raises(AdapterError, match=r"the model has no base_model\.model\.model\.layers\.1\.mlp\.down_proj \("):
        merge_files(base, [(_wide_adapter(tmp_path / "a"), 1.0)], tmp_path / "out.gguf")


def test_gguf_truncated(tmp_path: Path) -> None:
    base = _write_gguf(tmp_path / "base.gguf", _wide(model_weights()), "F32", "qwen2")
    base.write_bytes(base.read_bytes()[:-100])
    with pytest.raises(ModelFileError, match="truncated"):
        merge_files(base, [(_wide_adapter(tmp_path / "a"), 1.0)], tmp_path / "out.gguf")
