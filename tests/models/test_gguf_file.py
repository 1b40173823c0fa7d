"""Reading headers: what valid files are, and what is said about broken ones."""

from __future__ import annotations

import inspect as introspection
import os
import struct
import tracemalloc
from collections.abc import Mapping
from pathlib import Path

import pytest
from gguf import GGUFReader, GGUFValueType
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from onebit.errors import ModelFileError
from onebit.models.gguf_file import ModelInfo, ModelKind, inspect
from onebit.models.gguf_reader import HOOKS, HeaderReader
from onebit.models.sizes import Sizes
from tests.support.gguf_files import (
    Value,
    array_key,
    header,
    model_metadata,
    tensor_info,
    text,
    write_gguf,
    write_model,
)

# --- valid files --------------------------------------------------------------------------------------------


def test_a_small_model(tmp_path: Path) -> None:
    path = write_model(tmp_path / "m.gguf", extra={"tokenizer.chat_template": "{{ messages }}"})
    assert inspect(path) == ModelInfo(
        path=path,
        architecture="llama",
        name="tiny",
        kind=ModelKind.MODEL,
        size_bytes=path.stat().st_size,
        tensor_bytes=4 * (24 * 16 + 16 + 16),
        parameters=24 * 16 + 16 + 16,
        quantization="F32",
        context_length=128,
        block_count=2,
        embedding_length=16,
        vocab_size=24,
        kv_bytes_per_token=2 * 1 * (8 + 8) * 2,  # layers × kv heads × (key + value) × f16
        has_mtp_head=False,
        mtp_layers=0,
        has_chat_template=True,
        embedding=False,
        split_count=1,
        sizes=Sizes(tied_embedding=4 * 24 * 16, attention_width=2 * 8),
    )


def test_the_demo_model(demo_model: Path) -> None:
    info = inspect(demo_model)
    assert (info.architecture, info.quantization, info.kind) == ("llama", "Q4_1", ModelKind.MODEL)
    assert (info.context_length, info.block_count, info.embedding_length) == (8192, 30, 576)
    assert (info.vocab_size, info.parameters, info.size_bytes) == (49152, 134_515_008, 98_362_432)
    # llama-server says "KV buffer size = 22.50 MiB" for 1,024 tokens of it
    assert info.kv_bytes_per_token * 1024 == 22.5 * 2**20
    assert info.has_chat_template
    assert not info.has_mtp_head


def test_an_mtp_head_is_a_tensor_not_a_key(tmp_path: Path) -> None:
    key: Mapping[str, Value] = {"qwen35.nextn_predict_layers": 1}
    whole = inspect(write_model(tmp_path / "w.gguf", arch="qwen35", blocks=5, head=True, extra=key))
    trunk = inspect(write_model(tmp_path / "t.gguf", arch="qwen35", blocks=5, extra=key))
    head = inspect(write_model(tmp_path / "h.gguf", arch="qwen35", blocks=5, head=True, trunk=False, extra=key))
    assert (whole.kind, whole.has_mtp_head, whole.mtp_layers) == (ModelKind.MODEL, True, 1)
    assert (trunk.kind, trunk.has_mtp_head, trunk.mtp_layers) == (ModelKind.MODEL, False, 0)
    assert (head.kind, head.has_mtp_head, head.mtp_layers) == (ModelKind.MTP_HEAD, True, 1)


def test_a_head_in_another_block_than_the_last_is_none(tmp_path: Path) -> None:
    tensors = {"token_embd.weight": (24, 16), "blk.0.nextn.eh_proj.weight": (16, 32), "blk.1.attn_norm.weight": (16,)}
    path = write_gguf(tmp_path / "m.gguf", arch="llama", metadata=model_metadata(), tensors=tensors)
    assert not inspect(path).has_mtp_head


@pytest.mark.parametrize(
    ("arch", "extra", "kind"),
    [
        ("llama", {"general.type": "adapter"}, ModelKind.ADAPTER),
        ("clip", {"general.type": "mmproj"}, ModelKind.OTHER),
        ("eagle3", {}, ModelKind.OTHER),
        ("llama", {"general.type": "model"}, ModelKind.MODEL),
    ],
)
def test_kinds(tmp_path: Path, arch: str, extra: Mapping[str, Value], kind: ModelKind) -> None:
    assert inspect(write_model(tmp_path / "m.gguf", arch=arch, extra=extra)).kind is kind


def test_a_file_without_blocks_is_no_model_to_serve(tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "m.gguf", arch="flux", metadata={}, tensors={"x": (8,)})
    assert inspect(path).kind is ModelKind.OTHER


@pytest.mark.parametrize(
    ("arch", "extra", "embedding"),
    [
        ("bert", {}, True),
        ("qwen3", {"qwen3.pooling_type": 3}, True),
        ("qwen3", {"qwen3.pooling_type": 0}, False),
        ("qwen3", {}, False),
    ],
)
def test_embedding_models(tmp_path: Path, arch: str, extra: Mapping[str, Value], embedding: bool) -> None:
    assert inspect(write_model(tmp_path / "m.gguf", arch=arch, extra=extra)).embedding is embedding


def test_an_unknown_file_type_is_counted_from_the_tensors(tmp_path: Path) -> None:
    assert inspect(write_model(tmp_path / "m.gguf", extra={"general.file_type": 9999})).quantization == "F32"


def test_vocabulary_from_key_then_tokens_then_embedding(tmp_path: Path) -> None:
    said = write_model(tmp_path / "a.gguf", extra={"llama.vocab_size": 7})
    metadata = model_metadata()
    del metadata["tokenizer.ggml.tokens"]
    neither = write_gguf(tmp_path / "b.gguf", arch="llama", metadata=metadata, tensors={"token_embd.weight": (40, 16)})
    assert inspect(said).vocab_size == 7
    assert inspect(neither).vocab_size == 40


def test_names_lose_their_control_characters(tmp_path: Path) -> None:
    assert inspect(write_model(tmp_path / "m.gguf", extra={"general.name": "a\x1b[31m\nb"})).name == "a[31mb"


# --- split files --------------------------------------------------------------------------------------------


def _write_split(folder: Path) -> list[Path]:
    parts = [folder / f"m-{i:05d}-of-00002.gguf" for i in (1, 2)]
    split: dict[str, Value] = {"split.count": 2}
    write_gguf(parts[0], arch="llama", metadata=model_metadata() | split, tensors={"blk.0.attn_norm.weight": (16,)})
    second: dict[str, Value] = {"split.count": 2, "split.no": 1}
    write_gguf(parts[1], arch="llama", metadata=second, tensors={"blk.1.nextn.eh_proj.weight": (16, 32)})
    return parts


def test_a_split_model_is_read_whole(tmp_path: Path) -> None:
    parts = _write_split(tmp_path)
    info = inspect(parts[0])
    assert info.split_count == 2
    assert info.size_bytes == sum(p.stat().st_size for p in parts)
    assert info.parameters == 16 + 16 * 32
    assert info.has_mtp_head  # it lies in the second part


def test_split_models_that_are_not_all_there(tmp_path: Path) -> None:
    parts = _write_split(tmp_path)
    _fails(parts[1], "not the first part", hint=parts[0].name)
    renamed = parts[0].rename(tmp_path / "renamed.gguf")
    _fails(renamed, "not named as one")
    renamed.rename(parts[0])
    parts[1].unlink()
    _fails(parts[0], f"{parts[1].name} is missing")


# --- broken files -------------------------------------------------------------------------------------------


def _fails(path: Path, *words: str, hint: str = "") -> None:
    with pytest.raises(ModelFileError) as caught:
        inspect(path)
    assert path.name in caught.value.message
    assert "\n" not in caught.value.message
    for word in words:
        assert word in caught.value.message
    assert hint in (caught.value.hint or "")
    assert caught.value.hint


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "is empty"),
        (b"<!DOCTYPE html>\n<html>login</html>", "web page"),
        (b"\n <html>", "web page"),
        (b"version https://git-lfs.github.com/spec/v1\noid", "Git LFS"),
        (b'\x10\0\0\0\0\0\0\0{"__metadata__":', "safetensors"),
        (b'{"error": "x"}', "JSON"),
        (b"PK\x03\x04" + bytes(30), "ZIP"),
        (b"tjgg" + bytes(30), "GGML"),
        (bytes(4096), "zeros"),
        (b"hello world, this is no model", "68 65 6c 6c"),
        (b"GGUF", "truncated"),
        (header(version=1), "version 1"),
        (header(version=77), "version 77"),
        (header(order=">"), "byte order"),
        (header(tensors=0), "no tensors"),
        (header(tensors=2**60), "announces"),
        (header(keys=2**63), "announces"),
        (header(tensors=5), "truncated"),
        (header(keys=1) + text(b"k", 2**62), "a text of"),
        (header(keys=1) + text(b"k", 1000), "truncated"),
        (header(keys=1) + array_key(b"k", GGUFValueType.STRING, 2**61), "a list of"),
        (header(keys=1) + array_key(b"k", GGUFValueType.STRING, 3_000_000), "truncated"),
        (header(keys=1) + array_key(b"k", GGUFValueType.STRING, 2, text(b"a") + text(b"b", 2**40)), "truncated"),
        (header(keys=1) + array_key(b"k", GGUFValueType.FLOAT64, 2**61), "truncated"),
        (header(keys=1) + array_key(b"k", GGUFValueType.ARRAY, 1), "array inside"),
        (header(keys=1) + text(b"k") + struct.pack("<I", 99), "99"),
        (header(keys=2) + 2 * (text(b"k") + struct.pack("<IB", 0, 1)), "Duplicate"),
        (header(keys=1) + text(b"\xff\xfe") + struct.pack("<IB", 0, 1), "header"),
        (header() + tensor_info(b"x", [2**40, 2**40, 1, 1]), "impossible"),
        (header() + tensor_info(b"x", [1] * 9), "impossible"),
        (header() + tensor_info(b"x", [2**32]), "truncated"),
        (header() + tensor_info(b"x", [8], offset=2**64 - 32), "truncated"),
        (header() + tensor_info(b"x", [8], kind=250) + bytes(64), "250"),
        (header() + tensor_info(b"x", [8]) + bytes(96), "architecture"),
        (header() + text(b"x", 2**63), "a text of"),
    ],
)
def test_broken_files_get_one_sentence_and_little_memory(tmp_path: Path, content: bytes, words: str) -> None:
    path = tmp_path / "broken.gguf"
    path.write_bytes(content)
    tracemalloc.start()
    try:
        _fails(path, words)
        assert tracemalloc.get_traced_memory()[1] < 16 << 20
    finally:
        tracemalloc.stop()


def test_things_that_are_no_files(tmp_path: Path) -> None:
    _fails(tmp_path / "missing.gguf", "does not exist")
    _fails(tmp_path / "x" / "missing.gguf", "does not exist")
    write_model(tmp_path / "inside.gguf")
    _fails(tmp_path, "is a folder", hint="inside.gguf")
    pipe = tmp_path / "pipe.gguf"
    os.mkfifo(pipe)
    _fails(pipe, "not a regular file")
    with pytest.raises(ModelFileError, match="NUL"):
        inspect(Path("a\0b"))
    with pytest.raises(ModelFileError, match="cannot be read"):
        inspect(Path("x" * 5000))


def test_no_permission(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*args: object) -> None:
        raise PermissionError(13, "Permission denied")

    path = write_model(tmp_path / "m.gguf")
    monkeypatch.setattr(Path, "open", refuse)  # the tests may run as root, who may read everything
    _fails(path, "Permission denied", hint="permissions")


@pytest.mark.parametrize(
    ("extra", "words"),
    [
        ({"llama.block_count": "two"}, "llama.block_count"),
        ({"llama.block_count": 100_000}, "100,000 layers"),
        ({"llama.attention.head_count": 1.5}, "head_count"),
        ({"general.alignment": 7}, "alignment"),
        ({"general.name": 7}, "general.name"),
    ],
)
def test_values_that_make_no_sense(tmp_path: Path, extra: Mapping[str, Value], words: str) -> None:
    metadata = model_metadata() | dict(extra)
    alignment = metadata.pop("general.alignment", None)
    path = write_gguf(tmp_path / "m.gguf", arch="llama", metadata=metadata, tensors={"x": (8,)})
    if alignment is not None:  # the writer would obey it
        content = path.read_bytes()
        assert content.count(b"general.file_type") == 1
        path.write_bytes(
            content.replace(
                b"general.file_type" + struct.pack("<II", 4, 0), b"general.alignment" + struct.pack("<II", 4, 7)
            )
        )
    _fails(path, words)


def test_cutting_a_file_anywhere_is_noticed(tmp_path: Path) -> None:
    # small, for each of its some 400 bytes is tried, but with every sort of value
    metadata: dict[str, Value] = {"k.t": "text", "k.s": ["a", "bc"], "k.n": [1, 2], "k.f": 0.5, "k.b": True}
    tensors = {"token_embd.weight": (3, 8), "x": (8,)}
    whole = write_gguf(tmp_path / "whole.gguf", arch="k", metadata=metadata, tensors=tensors).read_bytes()
    path = tmp_path / "cut.gguf"
    for length in range(len(whole)):
        path.write_bytes(whole[:length])
        with pytest.raises(ModelFileError) as caught:
            inspect(path)
        assert str(path) in caught.value.message
    path.write_bytes(whole)
    assert inspect(path).vocab_size == 3


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_damaged_bytes_never_give_another_error(tmp_path: Path, data: st.DataObject) -> None:
    content = bytearray(
        write_model(tmp_path / "m.gguf", head=True, extra={"llama.nextn_predict_layers": 1}).read_bytes()
    )
    at = data.draw(st.integers(0, len(content) - 9))
    damage = data.draw(st.binary(min_size=1, max_size=8))
    content[at : at + len(damage)] = damage
    path = tmp_path / "damaged.gguf"
    path.write_bytes(content)
    try:
        info = inspect(path)
    except ModelFileError:
        return  # refused with a sentence; any other exception fails
    assert 0 <= info.tensor_bytes <= info.size_bytes  # accepted: then the file has all it promises


# --- the library's private parts ----------------------------------------------------------------------------


@pytest.mark.parametrize("name", HOOKS)
def test_the_library_still_has_the_methods_we_replace(name: str) -> None:
    theirs = GGUFReader.__dict__[name]
    assert tuple(introspection.signature(theirs).parameters)[1:] == HOOKS[name]
    assert name in HeaderReader.__dict__


def test_long_arrays_are_skipped_and_short_ones_read(tmp_path: Path) -> None:
    extra: dict[str, Value] = {
        "x.texts": [f"token {i}" for i in range(5000)],
        "x.long": list(range(5000)),
        "x.short": [3, 1, 2],
    }
    path = write_model(tmp_path / "m.gguf", extra=extra)
    ours, theirs = HeaderReader(path), GGUFReader(path)
    assert ours.array_length("x.texts") == ours.array_length("x.long") == 5000
    assert ours.array_length("x.short") == 3
    assert ours.array_length("general.name") == ours.array_length("nothing") == 0
    assert len(ours.fields["x.texts"].parts) == len(ours.fields["x.long"].parts) == 5
    assert ours.fields["x.short"].contents() == [3, 1, 2]
    # and everything else is as the library reads it
    assert ours.fields.keys() == theirs.fields.keys()
    assert [(t.name, t.n_bytes, t.data_offset) for t in ours.tensors] == [
        (t.name, t.n_bytes, t.data_offset) for t in theirs.tensors
    ]
