"""Multi-token prediction and n-gram drafting for real, on tiny models whose head is right, or wrong at a known rate."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import anyio
import pytest

from onebit.engines.device import Build
from tests.support.mtp import Chain, build_chain_model, make_adapter, simulate, split
from tests.support.serving import Serving, serving, standstill

pytestmark = [pytest.mark.anyio, pytest.mark.engine]
COMPLETIONS = "/v1/completions"
ALIAS = ("--alias", "chain", "--device", "cpu", "-c", "1024")


@pytest.fixture(scope="session")
def wrong(demo: Path, tmp_path_factory: pytest.TempPathFactory) -> Chain:
    """Its head is wrong after every third token; a hybrid model, with recurrent state."""
    path = tmp_path_factory.mktemp("mtp") / "wrong.gguf"
    return build_chain_model(path, tokenizer=demo, arch="qwen35", miss=3)


@pytest.mark.parametrize("length", [1, 3])
@pytest.mark.parametrize("kind", ["right", "wrong"])
async def test_the_same_text_with_and_without_and_drafts_as_the_oracle_says(
    cpu_build: Build, right: Chain, wrong: Chain, kind: str, length: int
) -> None:
    chain = right if kind == "right" else wrong
    starts = chain.endless_tokens()[:4]
    count = 24
    plain: dict[int, str] = {}
    async with serving("-m", chain.path, *ALIAS) as server:
        for start in starts:
            plain[start] = (await _answer(server, start, count))[0]
    drafted = accepted = 0
    async with serving("-m", chain.path, *ALIAS, "--mtp", "--draft-max", str(length)) as server:
        (engine,) = await server.engines()
        assert (engine["slots"], engine["draft"]) == (1, "mtp")
        for start in starts:
            text, timings = await _answer(server, start, count)
            assert text == plain[start]
            expected = simulate(chain.perm, chain.drafts, start, count, length)
            assert (timings["draft_n"], timings["draft_n_accepted"]) == expected
            drafted, accepted = drafted + expected[0], accepted + expected[1]
        async with server.session.get(server.url + "/metrics") as response:
            metrics = await response.text()
        assert f'onebit_draft_tokens_total{{engine="cpu",model="chain"}} {float(drafted)}' in metrics
        assert f'onebit_draft_accepted_tokens_total{{engine="cpu",model="chain"}} {float(accepted)}' in metrics
    assert accepted == drafted if kind == "right" else accepted < drafted


async def _answer(server: Serving, start: int, count: int) -> tuple[str, Any]:
    body = {"model": "chain", "prompt": [start], "max_tokens": count, "temperature": 0, "ignore_eos": True}
    status, answer, _ = await server.post(COMPLETIONS, **body)
    assert status == 200, answer
    return answer["choices"][0]["text"], answer["timings"]


async def test_a_head_in_a_file_of_its_own(cpu_build: Build, right: Chain, tmp_path: Path) -> None:
    trunk, head = tmp_path / "trunk.gguf", tmp_path / "mtp-head.gguf"
    split(right.path, trunk, head)
    start = right.endless_tokens()[0]
    async with serving("-m", trunk, *ALIAS, "--mtp-model", head) as server:
        _, timings = await _answer(server, start, 20)
        assert (timings["draft_n"], timings["draft_n_accepted"]) == simulate(right.perm, right.drafts, start, 20, 3)


async def test_one_user_gets_the_drafting_engine_two_get_the_batch(cpu_build: Build, right: Chain) -> None:
    arguments = ("--mtp", "--adaptive", "--parallel", "1,4", "--device", "cpu")
    async with serving("-m", right.path, "--alias", "chain", "-c", "8192", *arguments) as server:
        engines = await server.until(lambda es: all(e["state"] == "ready" for e in es))
        assert [(e["draft"], e["slots"]) for e in engines] == [("mtp", 1), (None, 4)]
        start = right.endless_tokens()[0]
        _, timings = await _answer(server, start, 8)
        assert timings["draft_n"] > 0
        async with anyio.create_task_group() as group:
            with standstill(server):
                for _ in range(3):
                    group.start_soon(_answer, server, start, 8)
                engines = await server.until(lambda es: sum(e["slots_in_use"] for e in es) == 3)
                assert [e["slots_in_use"] for e in engines] == [1, 2]


async def test_logprobs_go_to_the_engine_that_does_not_draft(cpu_build: Build, right: Chain) -> None:
    """Drafted tokens come back with logprob 0.0 and no alternatives."""
    start = right.ids["Ċ"]  # whole words follow; elsewhere, tokens are parts of characters
    body = {"model": "chain", "prompt": [start], "max_tokens": 8, "temperature": 0, "logprobs": 2, "ignore_eos": True}
    async with serving("-m", right.path, *ALIAS, "--mtp", "--adaptive") as server:
        await server.until(lambda es: all(e["state"] == "ready" for e in es))
        for stream in (False, True):
            async with server.session.post(server.url + COMPLETIONS, json={**body, "stream": stream}) as response:
                assert response.status == 200
                assert "draft_n" not in await response.text()
        status, answer, _ = await server.post(COMPLETIONS, **body)
        entries = answer["choices"][0]["logprobs"]["content"]
        assert status == 200 and len(entries) == 8
        assert all(len(entry["top_logprobs"]) == 2 for entry in entries)
    async with serving("-m", right.path, *ALIAS, "--mtp") as server:
        status, answer, _ = await server.post(COMPLETIONS, **body)
        assert (status, answer["error"]["param"]) == (400, "logprobs")
        assert "--adaptive" in answer["error"]["message"]


async def test_an_adapter_is_applied_with_its_scale(cpu_build: Build, right: Chain, tmp_path: Path) -> None:
    """After the first word of the reply comes a word that is not the next one, unless the scale is 0."""
    first, second, other = right.reply[0], right.reply[1], right.reply[9]
    adapter = tmp_path / "a.gguf"
    make_adapter(right.path, adapter, after=first, say=other)
    for scale, expected in (("", other), (":0", second)):
        async with serving("-m", right.path, *ALIAS, "--lora", f"{adapter}{scale}") as server:
            text, _ = await _answer(server, first, 1)
            assert text == right.tokens[expected].replace("Ġ", " ")


async def test_ngram_drafting_works_on_any_model_and_changes_no_text(cpu_build: Build, right: Chain) -> None:
    """The reply cycle repeats itself, so what came before is what comes next."""
    newline = right.ids["Ċ"]
    prompt = [newline, *right.follow(newline, 150)]
    body = {"model": "chain", "prompt": prompt, "max_tokens": 60, "temperature": 0, "ignore_eos": True}
    answers = []
    for arguments in ((), ("--draft", "ngram")):
        async with serving("-m", right.path, *ALIAS, *arguments) as server:
            status, answer, _ = await server.post(COMPLETIONS, **body)
            assert status == 200, answer
            answers.append(answer)
    assert answers[0]["choices"][0]["text"] == answers[1]["choices"][0]["text"]
    assert "draft_n" not in answers[0]["timings"]
    assert answers[1]["timings"]["draft_n_accepted"] > 30
