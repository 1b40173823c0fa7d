"""The test models themselves: their files, their language and their oracle. That the engine agrees is tested
where the engine runs.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from gguf import GGUFReader
from gguf.quants import dequantize
from hypothesis import given
from hypothesis import strategies as st

from onebit.models.gguf_file import ModelKind, inspect
from tests.support.mtp import Arch, build_chain_model, make_adapter, simulate, split

# a ring of five, drafted wrongly after 0
_PERM, _DRAFTS = (1, 2, 3, 4, 0), (3, 2, 3, 4, 0)


@pytest.mark.parametrize("arch", ["mimo2", "qwen35"])
def test_a_chain_model_and_its_halves(tmp_path: Path, demo_model: Path, arch: Arch) -> None:
    chain = build_chain_model(tmp_path / "c.gguf", tokenizer=demo_model, arch=arch, nextn=1, miss=3, d=128, ff=64)
    split(chain.path, tmp_path / "trunk.gguf", tmp_path / "head.gguf")
    whole, trunk, head = (inspect(tmp_path / f"{name}.gguf") for name in ("c", "trunk", "head"))
    assert (whole.kind, whole.has_mtp_head, whole.block_count) == (ModelKind.MODEL, True, 5)
    assert (trunk.kind, trunk.has_mtp_head, trunk.block_count) == (ModelKind.MODEL, False, 4)
    assert (head.kind, head.has_mtp_head, head.block_count) == (ModelKind.MTP_HEAD, True, 5)
    assert whole.vocab_size == len(chain.tokens) == 2048
    assert sorted(chain.perm) == sorted(chain.drafts) == list(range(2048))
    wrong = {i for i in range(2048) if chain.perm[i] != chain.drafts[i]}
    assert wrong == set(range(0, 2048, 3))


def test_the_language_of_a_chain_model(tmp_path: Path, demo_model: Path) -> None:
    chain = build_chain_model(tmp_path / "c.gguf", tokenizer=demo_model, nextn=0, reply=5, d=64)
    newline, end = chain.ids["Ċ"], chain.ids["<|im_end|>"]
    assert chain.follow(newline, 7) == [*chain.reply, end, newline]
    assert len(chain.reply_text().split()) == 5
    cycle = chain.endless_tokens()
    assert not {newline, end, *chain.reply} & set(cycle)
    assert len(cycle) == 2048 - 17 - 6  # without the special tokens, of which the end token is one
    assert not inspect(chain.path).has_mtp_head


def test_an_adapter_changes_one_token(tmp_path: Path, demo_model: Path) -> None:
    chain = build_chain_model(tmp_path / "c.gguf", tokenizer=demo_model, d=64, quant="f32")
    after, say = chain.endless_tokens()[0], chain.endless_tokens()[9]
    make_adapter(chain.path, tmp_path / "a.gguf", after=after, say=say)
    assert inspect(tmp_path / "a.gguf").kind is ModelKind.ADAPTER
    model = {t.name: dequantize(t.data, t.tensor_type) for t in GGUFReader(chain.path).tensors if "blk" not in t.name}
    adapter = {t.name: t.data for t in GGUFReader(tmp_path / "a.gguf").tensors}
    merged = model["output.weight"] + adapter["output.weight.lora_b"] @ adapter["output.weight.lora_a"]
    for token in (after, *chain.endless_tokens()[1:20]):
        said = int((merged @ model["token_embd.weight"][token]).argmax())
        assert said == (say if token == after else chain.perm[token])


def test_the_oracle_by_hand() -> None:
    # after 4: 0 is made from the prompt; [3] is drafted for 1 and wrong; then 2, 3 are right and bring 4
    assert simulate(_PERM, _DRAFTS, last=4, n_predict=2, n_max=1) == (0, 0)
    assert simulate(_PERM, _DRAFTS, last=4, n_predict=3, n_max=1) == (1, 0)
    assert simulate(_PERM, _DRAFTS, last=4, n_predict=6, n_max=2) == (1 + 1 + 2, 2)


@given(st.integers(0, 4), st.integers(1, 60), st.integers(1, 8))
def test_the_oracle_in_general(last: int, n_predict: int, n_max: int) -> None:
    drafted, accepted = simulate(_PERM, _PERM, last, n_predict, n_max)
    assert drafted == accepted <= n_predict - 1  # a right head is always believed
    drafted, accepted = simulate(_PERM, [(x + 1) % 5 for x in _PERM], last, n_predict, n_max)
    assert accepted == 0  # and a wrong one never
    assert drafted <= n_max * n_predict
