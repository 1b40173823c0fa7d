"""Tables and tokenisers on disk: right ones are read, wrong ones give one clear message."""

from __future__ import annotations

import json
import os
import random
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

from onebit.errors import EmbedError
from onebit.kernels.embed import Embedder, Table, load_table, save_table
from onebit.kernels.embed.convert import convert
from onebit.kernels.embed.table import default_folder
from onebit.kernels.embed.tokenizer_file import parse_tokenizer, read_tokenizer
from tests.kernels_embed.test_tokenizer import small_tokenizer

BERT = {"clean_text": True, "handle_chinese_chars": True, "strip_accents": None, "lowercase": True}
DIMS = 8


def write_folder(folder: Path, tensors: dict[str, Any], content: dict[str, Any] | None = None) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    save_file(tensors, folder / "model.safetensors")
    (folder / "tokenizer.json").write_text(json.dumps(content or small_tokenizer(BERT)))
    return folder


def some_values(seed: int = 0) -> Any:
    tokens = len(small_tokenizer(BERT)["model"]["vocab"])
    return np.random.default_rng(seed).normal(size=(tokens, DIMS)).astype(np.float32)


def int8_tensors() -> dict[str, Any]:
    tokens = len(some_values())
    return {"embedding": np.ones((tokens, DIMS), np.int8), "scale": np.ones(tokens, np.float32)}


def retype(path: Path, old: str, new: str) -> None:
    """Give tensors of a safetensors file another type of the same size."""
    whole = path.read_bytes()
    end = 8 + int.from_bytes(whole[:8], "little")
    header = whole[8:end].replace(f'"{old}"'.encode(), f'"{new}"'.encode())
    path.write_bytes(len(header).to_bytes(8, "little") + header + whole[end:])


class TestTable:
    def test_what_was_saved_is_loaded(self, tmp_path: Path) -> None:
        folder = write_folder(tmp_path / "a", int8_tensors())
        table = load_table(folder)
        save_table(table, folder / "tokenizer.json", tmp_path / "new" / "b")
        again = load_table(tmp_path / "new" / "b")
        assert (again.rows == table.rows).all() and again.spec == table.spec
        assert again.fingerprint() == table.fingerprint()

    def test_nothing_is_overwritten(self, tmp_path: Path, table: Table) -> None:
        (tmp_path / "mine").mkdir()
        with pytest.raises(EmbedError, match="exists already"):
            save_table(table, default_folder() / "tokenizer.json", tmp_path / "mine")

    @pytest.mark.parametrize("name", ["x" * 300, "file/table"])
    def test_folders_that_cannot_be(self, tmp_path: Path, table: Table, name: str) -> None:
        (tmp_path / "file").touch()
        with pytest.raises(EmbedError, match=r"holds no model\.safetensors"):
            load_table(tmp_path / name)
        with pytest.raises(EmbedError, match=r"holds no model\.safetensors"):
            convert(tmp_path / name, tmp_path / "made")
        with pytest.raises(EmbedError, match="cannot be written"):
            save_table(table, default_folder() / "tokenizer.json", tmp_path / name)

    def test_a_failed_save_leaves_nothing(self, tmp_path: Path, table: Table) -> None:
        with pytest.raises(EmbedError, match="cannot be written"):
            save_table(table, tmp_path / "no tokenizer", tmp_path / "new")
        assert list(tmp_path.iterdir()) == []

    @pytest.mark.parametrize(
        ("change", "message"),
        [
            ({"embedding": np.ones((3, DIMS), np.float32)}, "is no int8 table"),
            ({"embedding": np.ones((3, DIMS), np.int8), "scale": np.ones(3, np.float32)}, "gives ids up to"),
            ({"scale": np.ones(3, np.float32)}, "has the shape"),
            ({"scale": np.full(len(some_values()), np.nan, np.float32)}, "scale of row 0 is not a finite number"),
            ({"embedding": np.ones((len(some_values()), 0), np.int8)}, "0 dimensions"),
            ({"embedding": np.ones((len(some_values()), 16385), np.int8)}, "16,385 dimensions"),
            ({"embedding": np.ones(5, np.int8)}, "has the shape"),
        ],
    )
    def test_wrong_tensors(self, tmp_path: Path, change: dict[str, Any], message: str) -> None:
        with pytest.raises(EmbedError, match=message):
            load_table(write_folder(tmp_path, int8_tensors() | change))

    def test_other_files_are_refused(self, tmp_path: Path) -> None:
        with pytest.raises(EmbedError, match=r"holds no model\.safetensors"):
            load_table(tmp_path)
        (tmp_path / "model.safetensors").write_bytes(b"GGUF" * 100)
        with pytest.raises(EmbedError, match="is no safetensors file"):
            load_table(tmp_path)

    def test_every_truncation_of_a_table_is_noticed(self, tmp_path: Path) -> None:
        folder = write_folder(tmp_path, int8_tensors())
        whole = (folder / "model.safetensors").read_bytes()
        for length in [0, 1, 7, 8, 9, 50, *range(60, len(whole), 997), len(whole) - 1]:
            (folder / "model.safetensors").write_bytes(whole[:length])
            with pytest.raises(EmbedError):
                load_table(folder)

    def test_damaged_bytes_give_a_table_or_a_message(self, tmp_path: Path) -> None:
        folder = write_folder(tmp_path, int8_tensors())
        for name in ("model.safetensors", "tokenizer.json"):
            whole = (folder / name).read_bytes()
            chance = random.Random(name)
            for _ in range(150):
                damaged = bytearray(whole)
                for _ in range(chance.randint(1, 4)):
                    damaged[chance.randrange(min(len(whole), 400))] = chance.randrange(256)
                (folder / name).write_bytes(damaged)
                with suppress(EmbedError):
                    Embedder.load(folder).encode(["a text", "é漢"])
            (folder / name).write_bytes(whole)


def _set(*path: str, to: Any) -> Callable[[dict[str, Any]], None]:
    def change(content: dict[str, Any]) -> None:
        for key in path[:-1]:
            content = content[key]
        content[path[-1]] = to

    return change


class TestTokenizerFile:
    @pytest.mark.parametrize(
        ("change", "message"),
        [
            (_set("model", to=None), "no 'model' object"),
            (_set("model", "type", to="BPE"), "the model is 'BPE'"),
            (_set("model", "continuing_subword_prefix", to="@@"), "prefix of word pieces is '@@'"),
            (_set("model", "unk_token", to="<none>"), "'<none>', is not in the vocabulary"),
            (_set("model", "unk_token", to=["x"]), "is not in the vocabulary"),
            (_set("model", "vocab", to={}), "the vocabulary has 0 tokens"),
            (_set("model", "vocab", to={"[UNK]": -1}), "the id of '\\[UNK\\]' is -1"),
            (_set("model", "vocab", to={"[UNK]": True}), "the id of '\\[UNK\\]' is True"),
            (_set("model", "vocab", to={"[UNK]": 2**40}), "the id of"),
            (_set("model", "max_input_chars_per_word", to=0), "max_input_chars_per_word is 0"),
            (_set("model", "max_input_chars_per_word", to=10**9), "max_input_chars_per_word is 1000000000"),
            (_set("normalizer", to=None), "no 'normalizer' object"),
            (_set("normalizer", "type", to="NFC"), "the normaliser is 'NFC'"),
            (_set("normalizer", "lowercase", to="yes"), "lowercase is 'yes'"),
            (_set("pre_tokenizer", "type", to="Whitespace"), "the pre-tokeniser is 'Whitespace'"),
            (_set("added_tokens", to={"a": 1}), "added_tokens is not a list"),
            (_set("added_tokens", to=[1]), "an added token is 1"),
            (_set("added_tokens", to=[{"content": "", "id": 1}]), "without content"),
            (_set("added_tokens", to=[{"content": "x", "id": 1, "single_word": True}]), "single_word"),
            (_set("added_tokens", to=[{"content": "x", "id": 1, "normalized": True}]), "normalized"),
        ],
    )
    def test_what_would_tokenize_otherwise_is_refused(
        self, change: Callable[[dict[str, Any]], None], message: str
    ) -> None:
        content = small_tokenizer(BERT)
        change(content)
        with pytest.raises(EmbedError, match=message):
            parse_tokenizer(content)

    @pytest.mark.parametrize("content", [b"", b"{", b"[]", b"null", b"\xff", b"[" * 100_000])
    def test_other_files(self, tmp_path: Path, content: bytes) -> None:
        (tmp_path / "tokenizer.json").write_bytes(content)
        with pytest.raises(EmbedError, match=r"tokenizer\.json"):
            read_tokenizer(tmp_path / "tokenizer.json")

    def test_a_missing_file(self, tmp_path: Path) -> None:
        with pytest.raises(EmbedError, match="cannot be read"):
            read_tokenizer(tmp_path / "tokenizer.json")


class TestConvert:
    """Folders as model2vec and sentence-transformers save them."""

    def check(self, source: Path, expected: Any) -> None:
        convert(source, source.parent / "made")
        table = load_table(source.parent / "made")
        got = table.rows * table.scales[:, None]
        assert np.abs(got - expected).max() <= np.abs(expected).max() / 250  # half of one of 127 steps

    @pytest.mark.parametrize("kind", [np.float32, np.float16])
    def test_sentence_transformers(self, tmp_path: Path, kind: Any) -> None:
        source = tmp_path / "model"
        write_folder(source / "0_StaticEmbedding", {"embedding.weight": some_values().astype(kind)})
        self.check(source, some_values())

    def test_bfloat16(self, tmp_path: Path) -> None:
        """numpy has no such type, so neither the library's reader nor its writer for numpy knows it."""
        bits = (some_values().view(np.uint32) >> 16).astype(np.uint16)
        source = write_folder(tmp_path / "model", {"first": np.zeros(3, np.int8), "embedding.weight": bits})
        retype(source / "model.safetensors", "U16", "BF16")
        self.check(source, (bits.astype(np.uint32) << 16).view(np.float32))

    @pytest.mark.parametrize("kind", ["F8_E4M3", "F8_E8M0", "U8"])
    def test_other_types_are_named(self, tmp_path: Path, kind: str) -> None:
        source = write_folder(tmp_path / "model", {"embeddings": np.ones((9, DIMS), np.uint8)})
        retype(source / "model.safetensors", "U8", kind)
        with pytest.raises(EmbedError, match=f"of the type ({kind}|uint8)") as caught:
            convert(source, tmp_path / "made")
        assert "F32, F16, BF16" in str(caught.value.hint)

    def test_a_folder_whose_name_is_not_utf8(self, tmp_path: Path) -> None:
        source = write_folder(tmp_path / os.fsdecode(b"caf\xff"), {"embeddings": some_values()})
        convert(source, tmp_path / "made")
        assert load_table(tmp_path / "made").metadata["source"] == "caf?"

    @pytest.mark.filterwarnings("error")
    def test_what_float32_cannot_hold_is_refused_without_a_warning(self, tmp_path: Path) -> None:
        huge = np.full(len(some_values()), 1e300)
        source = write_folder(tmp_path / "model", {"embeddings": some_values(), "weights": huge})
        with pytest.raises(EmbedError, match="not a finite number"):
            convert(source, tmp_path / "made")

    def test_model2vec(self, tmp_path: Path) -> None:
        expected = some_values()
        expected[0] = 0  # it passes over unknown words
        self.check(write_folder(tmp_path / "model", {"embeddings": some_values()}), expected)

    def test_model2vec_with_weights_and_fewer_rows(self, tmp_path: Path) -> None:
        rows = some_values()[:50]
        mapping = np.random.default_rng(1).integers(0, 50, len(some_values()))
        weights = np.random.default_rng(2).uniform(0.1, 2, len(some_values()))
        expected = rows[mapping] * weights[:, None]
        expected[0] = 0
        source = write_folder(tmp_path / "m", {"embeddings": rows, "mapping": mapping, "weights": weights})
        self.check(source, expected)

    def test_fewer_dimensions(self, tmp_path: Path) -> None:
        source = write_folder(tmp_path / "model", {"embeddings": some_values()})
        assert convert(source, tmp_path / "made", dims=4).dims == 4
        with pytest.raises(EmbedError, match="9 dimensions cannot be kept"):
            convert(source, tmp_path / "more", dims=9)

    @pytest.mark.parametrize(
        ("tensors", "message"),
        [
            ({"weight": some_values()}, "it holds weight, none of"),
            ({"embeddings": some_values()[:5]}, "the tokeniser gives ids up to"),
            ({"embeddings": some_values() * np.float32(np.inf)}, "not a finite number"),
            ({"embeddings": some_values(), "weights": np.ones(3)}, "`weights` has the shape"),
            ({"embeddings": some_values(), "weights": np.ones(len(some_values()), np.complex64)}, "the type complex64"),
            ({"embeddings": some_values(), "mapping": np.full(len(some_values()), 10**6)}, "leads outside"),
            ({"embeddings": some_values()[0]}, "the table has the shape"),
        ],
    )
    def test_wrong_tables(self, tmp_path: Path, tensors: dict[str, Any], message: str) -> None:
        with pytest.raises(EmbedError, match=message):
            convert(write_folder(tmp_path / "model", tensors), tmp_path / "made")
        assert not (tmp_path / "made").exists()

    def test_nothing_to_convert(self, tmp_path: Path) -> None:
        with pytest.raises(EmbedError, match=r"holds no model\.safetensors"):
            convert(tmp_path, tmp_path / "made")
