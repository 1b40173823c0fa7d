"""Our tokenisers against the `tokenizers` package, token for token; both kernels in one class."""

from __future__ import annotations

import itertools
import json
import random
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import tokenizers
from hypothesis import given
from hypothesis import strategies as st

from onebit.errors import EmbedError
from onebit.kernels.embed import Table, twin
from onebit.kernels.embed.kernel import Kernel, Tokenizer, best_kernel, make_tokenizer
from onebit.kernels.embed.lexicon import make_lexicon
from onebit.kernels.embed.table import TOKENIZER, default_folder
from onebit.kernels.embed.tokenizer_file import parse_tokenizer
from tests.kernels_embed.texts import SCRIPTS, generated

PATH = default_folder() / TOKENIZER
THEIRS = tokenizers.Tokenizer.from_file(str(PATH))
CONTENT: dict[str, Any] = json.loads(PATH.read_text("utf-8"))
WORDS = list(CONTENT["model"]["vocab"])


def ids_of(tokenizer: Tokenizer, texts: Sequence[str | bytes]) -> list[list[int]]:
    ids, ends = tokenizer.tokenize(texts)
    bounds = [0, *ends.tolist()]
    return [ids[a:b].tolist() for a, b in itertools.pairwise(bounds)]


def assert_equal(ours: Tokenizer, theirs: tokenizers.Tokenizer, texts: Sequence[str]) -> None:
    expected = theirs.encode_batch(list(texts), add_special_tokens=False)
    for text, got, wanted in zip(texts, ids_of(ours, texts), expected, strict=True):
        assert got == wanted.ids, f"{ascii(text)[:200]}: {wanted.tokens[:30]}"


@pytest.fixture(scope="module")
def ours(kernel: Kernel, table: Table) -> Tokenizer:
    return make_tokenizer(kernel, make_lexicon(table.spec))


class TestTokenizer:
    @pytest.mark.parametrize(
        "text",
        [
            "",
            " ",
            "\x00",
            "Hello, World! It's 5 o'clock.",
            "naïve café, ÅNGSTRÖM, e\u0301\u0327\u0301",
            "[UNK] [PAD] [pad] [UN[UNK]K] [[PAD]] x[UNK]y [PAD",
            "İstanbul ŉ ǰ ß ſ ΑΣ ς",  # small letters of more than one character; no final sigma
            "地図 豈 \u2f00 각 가\u11a8 かが",
            "x\U0001d165\U0001d16dy x\U0001d16d\U0001d165y x\U0001d16d\u0903\U0001d165",  # kept marks, out of order
            "\u302e\u302f a \u302f\u302e a\u302f \u302e",
            "a\u200bb a\u00adb a\u2028b a\u0085b a\u000bb",  # dropped, dropped, space, dropped, dropped
            "👩‍👩‍👧‍👦 👍🏽 1️⃣",
            "a" * 100,
            "a" * 101,  # longer than the longest word
            "a" * 100_000,
            "\u0301" * 1000,
            "\U0001d165\U0001d16d" * 200,
            "." * 2000,
        ],
        ids=lambda text: ascii(text)[:20],
    )
    def test_equals_tokenizers(self, ours: Tokenizer, text: str) -> None:
        assert_equal(ours, THEIRS, [text])

    @pytest.mark.parametrize("script", SCRIPTS)
    def test_equals_tokenizers_in_each_script(self, ours: Tokenizer, script: str) -> None:
        first, last = SCRIPTS[script]
        chance = random.Random(script)
        texts = ["".join(chr(chance.randint(first, last)) for _ in range(30)) for _ in range(40)]
        texts = [text for text in texts if not any(0xD800 <= ord(char) <= 0xDFFF for char in text)]
        assert_equal(ours, THEIRS, texts)

    def test_equals_tokenizers_on_generated_texts(self, ours: Tokenizer) -> None:
        assert_equal(ours, THEIRS, list(generated(1, 2000, WORDS)))

    @pytest.mark.parametrize("wide", ["", "\u201c", "\U0001f600"], ids=["one byte", "two bytes", "four bytes"])
    def test_words_begin_and_end_anywhere_in_a_block(self, ours: Tokenizer, wide: str) -> None:
        """The C kernels look at 64 characters at a time; `wide` decides how many bytes CPython takes for each."""
        chance = random.Random(6)
        parts = ["a", "cat", "internationally", "x" * 63, "x" * 64, "x" * 65, "naïve", "é", "\0", "\xad", "a\xa0b"]
        parts += ["don't", "...", "[UNK]", "[", "(a)", "\t\n ", " ", "", "1.5"]
        parts += [wide, wide + "a", "a" + wide + "b", "cat" + wide]
        texts = [
            before * "a" + chance.choice(["", " "]) + chance.choice([" ", "", "-"]).join(chance.choices(parts, k=8))
            for before in range(66)
            for _ in range(12)
        ]
        assert_equal(ours, THEIRS, [text + wide for text in texts])

    def test_reads_a_text_of_a_megabyte(self, ours: Tokenizer) -> None:
        text = ("".join(generated(2, 2000, WORDS)) * 100)[: 1 << 20]
        assert len(text) == 1 << 20
        assert_equal(ours, THEIRS, [text])

    def test_bytes_are_utf8_and_what_is_not_is_passed_over(self, ours: Tokenizer) -> None:
        chance = random.Random(3)
        texts = [
            chance.randbytes(chance.randint(0, 60)) + "é漢 ab".encode()[: chance.randint(0, 9)] for _ in range(500)
        ]
        assert_equal_bytes = [text.decode("utf-8", "replace") for text in texts]
        assert ids_of(ours, texts) == ids_of(ours, assert_equal_bytes)
        assert_equal(ours, THEIRS, assert_equal_bytes)

    def test_half_characters_read_as_undecodable_bytes(self, ours: Tokenizer) -> None:
        assert ids_of(ours, ["a\ud800b \udfffc"]) == ids_of(ours, ["a\ufffdb \ufffdc"])

    def test_no_texts(self, ours: Tokenizer) -> None:
        assert ids_of(ours, []) == []

    @pytest.mark.parametrize("text", ["abc", b"abc", ""])
    def test_one_text_is_no_list_of_texts(self, ours: Tokenizer, text: Any) -> None:
        with pytest.raises(TypeError, match="texts must be a sequence of texts, not one text"):
            ours.tokenize(text)

    @pytest.mark.parametrize("texts", [[1], [None], ["a", object()]])
    def test_other_things_than_texts_are_refused(self, ours: Tokenizer, texts: Any) -> None:
        with pytest.raises(TypeError, match="a text must be str or bytes"):
            ours.tokenize(texts)

    @pytest.mark.parametrize("switches", list(itertools.product((True, False), repeat=4)), ids=str)
    def test_every_combination_of_switches(self, kernel: Kernel, switches: tuple[bool, ...]) -> None:
        names = ("clean_text", "handle_chinese_chars", "strip_accents", "lowercase")
        content = small_tokenizer(dict(zip(names, switches, strict=True)))
        ours = make_tokenizer(kernel, make_lexicon(parse_tokenizer(content)))
        theirs = tokenizers.Tokenizer.from_str(json.dumps(content))
        assert_equal(ours, theirs, list(generated(4, 400, list(content["model"]["vocab"]))))

    @given(text=st.text(alphabet=st.characters(exclude_categories=["Cs"])))
    def test_any_text(self, ours: Tokenizer, text: str) -> None:
        assert_equal(ours, THEIRS, [text])


def small_tokenizer(switches: dict[str, Any]) -> dict[str, Any]:
    """A vocabulary of single characters of all scripts, and pairs of them: each character's fate can be seen."""
    chance = random.Random(5)
    vocab = {"[UNK]": 0, "<added>": 1}
    for first, last in SCRIPTS.values():
        for _ in range(60):
            char = chr(chance.randint(first, last))
            if not 0xD800 <= ord(char) <= 0xDFFF:
                for token in (char, "##" + char, char + "e", "##e" + char):
                    vocab.setdefault(token, len(vocab))
    added = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    return {
        "version": "1.0",
        "added_tokens": [{"id": 1, "content": "<added>", **added}],
        "normalizer": {"type": "BertNormalizer", **switches},
        "pre_tokenizer": {"type": "BertPreTokenizer"},
        "model": {"type": "WordPiece", "unk_token": "[UNK]", "continuing_subword_prefix": "##", "vocab": vocab}
        | {"max_input_chars_per_word": 20},
    }


class TestAddedTokens:
    """The ids that a file has for added tokens are not those that `tokenizers` takes, where the two contradict."""

    def content(self, added: Sequence[tuple[str, int]]) -> dict[str, Any]:
        switches = {"clean_text": True, "handle_chinese_chars": True, "strip_accents": None, "lowercase": True}
        content = small_tokenizer(switches)
        content["model"]["vocab"] = {"[UNK]": 0, "a": 1, "b": 2, "##b": 3, "c": 4}
        (flags,) = content["added_tokens"]
        content["added_tokens"] = [flags | {"content": token, "id": number} for token, number in added]
        return content

    @pytest.mark.parametrize(
        "added",
        [
            pytest.param([("b", 5)], id="in the vocabulary with another id"),
            pytest.param([("<x>", 1)], id="the id of a token of the vocabulary"),
            pytest.param([("<x>", 5), ("<y>", 5)], id="one id for two"),
            pytest.param([("<x>", 6)], id="a gap"),
            pytest.param([("<x>", 6), ("<y>", 5)], id="out of order"),
            pytest.param([("<x>", 5), ("<x>", 6)], id="twice, with two ids"),
        ],
    )
    def test_ids_that_contradict_the_vocabulary_are_refused(self, added: Sequence[tuple[str, int]]) -> None:
        with pytest.raises(EmbedError, match=r"added token .* has the id .* takes"):
            parse_tokenizer(self.content(added))

    @pytest.mark.parametrize(
        "added", [[("<x>", 5), ("<y>", 6)], [("b", 2), ("<x>", 5)], [("<x>", 5), ("c", 4), ("<x>", 5), ("<y>", 6)]]
    )
    def test_others_are_read(self, added: Sequence[tuple[str, int]]) -> None:
        assert parse_tokenizer(self.content(added)).added == dict(added)

    @given(
        added=st.lists(
            st.tuples(st.sampled_from(["<x>", "<x", "a<", "b", "##b", "[UNK]"]), st.integers(0, 9)), max_size=4
        )
    )
    def test_what_is_read_is_read_as_tokenizers_does(self, added: list[tuple[str, int]]) -> None:
        content = self.content(added)
        try:
            ours = make_tokenizer(best_kernel(), make_lexicon(parse_tokenizer(content)))
        except EmbedError:
            return
        theirs = tokenizers.Tokenizer.from_str(json.dumps(content))
        assert_equal(ours, theirs, ["a<x> b<x [UNK]", "abb ##b c <x>"])


def test_100_000_texts() -> None:
    """The fast kernel, which can afford it; the twin is compared with it in the other tests."""
    ours = make_tokenizer(best_kernel(), make_lexicon(parse_tokenizer(CONTENT)))
    for seed in range(20):
        assert_equal(ours, THEIRS, list(generated(100 + seed, 5000, WORDS)))


def test_every_character() -> None:
    ours = make_tokenizer(best_kernel(), make_lexicon(parse_tokenizer(CONTENT)))
    points = [point for point in range(0x110000) if not 0xD800 <= point <= 0xDFFF]
    texts = [
        "".join(f"a{chr(p)}b{chr(p)}\U0001d165 " for p in points[at : at + 64]) for at in range(0, len(points), 64)
    ]
    assert_equal(ours, THEIRS, texts)


class TestTablesAreChecked:
    """The C tokeniser trusts no table: one that leads outside of another would read foreign memory."""

    @pytest.mark.parametrize(
        ("name", "value"),
        [
            ("units", np.zeros(5, np.uint32)),
            ("units", np.full(0x110000, 0xFFFF, np.uint32)),  # a label beyond the alphabet
            ("units", np.full(0x110000, 6 << 21 | 5_000_000 & 0x1FFFFF, np.uint32)),  # a run beyond the runs
            ("runs", np.zeros(0, np.uint32)),
            ("longest_word", 100_000),
            ("first", (np.array([2, 1], np.uint16), np.array([1, 2], np.uint32), np.zeros(2, np.uint32))),
            ("first", (np.array([1, 1], np.uint16), np.array([1, 2], np.uint32), np.zeros(2, np.uint32))),
            ("first", (np.array([1, 2], np.uint16), np.array([9, 2], np.uint32), np.zeros(2, np.uint32))),
            ("first", (np.array([1, 2], np.uint16), np.array([1], np.uint32), np.zeros(2, np.uint32))),
            ("added", [("", 1)]),
        ],
    )
    def test_wrong_values(self, table: Table, name: str, value: Any) -> None:
        compiled = pytest.importorskip("onebit.kernels.embed.compiled")
        with pytest.raises(ValueError, match=r"fit|sorted|differ|empty"):
            compiled.Tokenizer(**(_arguments(table) | {name: value}))

    @pytest.mark.parametrize(
        ("name", "value"),
        [("units", np.zeros(0x110000)), ("runs", b"1234"), ("first", ()), ("added", [1]), ("unknown", "x")],
    )
    def test_wrong_types(self, table: Table, name: str, value: Any) -> None:
        compiled = pytest.importorskip("onebit.kernels.embed.compiled")
        with pytest.raises(TypeError):
            compiled.Tokenizer(**(_arguments(table) | {name: value}))


def _arguments(table: Table) -> dict[str, Any]:
    lexicon = make_lexicon(table.spec)
    first, later = ((p.labels, p.ends, p.ids) for p in (lexicon.first, lexicon.later))
    arguments: dict[str, Any] = {"units": lexicon.chars.units, "runs": lexicon.chars.runs, "first": first}
    arguments |= {"later": later, "added": lexicon.added, "unknown": lexicon.unknown}
    assert twin.Tokenizer(**arguments, longest_word=lexicon.longest_word)
    return arguments | {"longest_word": lexicon.longest_word}
