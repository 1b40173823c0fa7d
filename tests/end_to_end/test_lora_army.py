"""Adapters that requests choose, on the real engine: every answer is the one that a server started afresh gives."""

from __future__ import annotations

import itertools
import random
import signal
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import anyio
import pytest

from onebit.engines.device import Build
from tests.support.adapters import write_adapter
from tests.support.mtp import Arch, build_chain_model
from tests.support.serving import Serving, serving, standstill

pytestmark = [pytest.mark.anyio, pytest.mark.engine]

COMPLETIONS, CHAT, RESPONSES = "/v1/completions", "/v1/chat/completions", "/v1/responses"
PROMPT = list(range(100, 260))  # one prompt for all: a cache shared between adapters would show
SETS: Mapping[str, Any] = {
    "none": None,
    "pirate": "pirate",
    "brief": ["brief"],
    "pirate,brief": [{"name": "pirate", "scale": 0.5}, "brief"],
}


@dataclass(frozen=True, slots=True)
class Warm:
    """A config, and what a server with it says that has served nothing before, by set."""

    config: Path
    texts: Mapping[str, str]


def write_config(folder: Path, tokenizer: Path, arch: Arch) -> Path:
    """A model of random weights, whose attention is real, and two adapters that change what it says."""
    model = folder / "noise.gguf"
    build_chain_model(model, tokenizer=tokenizer, arch=arch, nextn=0, quant="f32", random_weights=True)
    write_adapter(model, folder / "a.gguf", seed=1)
    write_adapter(model, folder / "b.gguf", seed=2, description="Answers in very few words")
    file = folder / "onebit.yaml"
    file.write_text("""\
models:
  noise:
    path: noise.gguf
    ctx_size: 1024
    engines: [{device: cpu, parallel: 3}]
    preload: true
    adapters:
      pirate: {path: a.gguf, about: Talks like a pirate captain of the high seas}
      brief: {path: b.gguf}
""")
    return file


@pytest.fixture(scope="module")
def config(cpu_build: Build, demo: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_config(tmp_path_factory.mktemp("army"), demo, "mimo2")


@pytest.fixture(scope="module", params=["mimo2", "qwen35"])  # plain attention; a hybrid with recurrent state
def warm(
    request: pytest.FixtureRequest, cpu_build: Build, demo: Path, tmp_path_factory: pytest.TempPathFactory
) -> Warm:
    config = write_config(tmp_path_factory.mktemp("army"), demo, request.param)

    async def first(lora: Any) -> str:
        async with serving("--config", config) as server:
            text, cached, _ = await ask(server, lora, PROMPT)
            assert cached == 0
            return text

    texts = {name: anyio.run(first, lora) for name, lora in SETS.items()}
    assert len(set(texts.values())) == len(texts), "an adapter has no visible effect"
    return Warm(config, texts)


async def ask(server: Serving, lora: Any, prompt: list[int], count: int = 12, **more: Any) -> tuple[str, int, str]:
    """(the text, tokens that came out of a cache, which adapters it says it used)."""
    body = {"model": "noise", "prompt": prompt, "max_tokens": count, "temperature": 0, "ignore_eos": True, **more}
    status, answer, headers = await server.post(COMPLETIONS, **body, **({} if lora is None else {"lora": lora}))
    assert status == 200, answer
    return answer["choices"][0]["text"], answer["timings"]["cache_n"], headers["x-onebit-lora"]


async def test_every_answer_is_that_of_a_cold_server(warm: Warm) -> None:
    async with serving("--config", warm.config) as server:
        used = 0
        for before, after in itertools.product(SETS, SETS):  # each set after each, in whatever slot that leaves
            for name in (before, after):
                text, cached, said = await ask(server, SETS[name], PROMPT)
                assert (name, text, said) == (name, warm.texts[name], name)
                used += cached
        assert used > 3 * (len(PROMPT) - 10), "where the set is the same, the cache is to be used"


async def test_so_it_is_when_many_ask_at_once(warm: Warm) -> None:
    chance = random.Random(7)
    names = [chance.choice(list(SETS)) for _ in range(40)]
    async with serving("--config", warm.config) as server:

        async def one(name: str) -> None:
            await anyio.sleep(chance.random())
            text, _, said = await ask(server, SETS[name], PROMPT, stream=False)
            assert (name, text, said) == (name, warm.texts[name], name)

        async with anyio.create_task_group() as group:
            for name in names:
                group.start_soon(one, name)


async def test_a_prompt_that_left_its_slot_does_not_come_back_for_other_adapters(warm: Warm) -> None:
    """llama-server keeps prompts in main memory too, without noting whose they are; ours must not."""
    async with serving("--config", warm.config) as server:
        for _ in range(3):
            await ask(server, "brief", PROMPT)
        for start in range(300, 900, 200):  # push it out of every slot, with the adapter that asks for it next
            await ask(server, "pirate", list(range(start, start + 160)), 1)
        text, _, _ = await ask(server, "pirate", PROMPT)
        assert text == warm.texts["pirate"]


LISTS = {
    "reordered": "brief: {path: b.gguf}, pirate: {path: a.gguf}",
    "one less": "brief: {path: b.gguf}",
    "none": "",
}


@pytest.mark.parametrize("then", LISTS)
async def test_a_reload_numbers_the_adapters_anew(cpu_build: Build, demo: Path, tmp_path: Path, then: str) -> None:
    """Those in line chose by the old numbers; nobody may be answered by an adapter that it did not name."""
    file = write_config(tmp_path, demo, "mimo2")
    answers: dict[str, tuple[int, Any, Any]] = {}
    async with serving("--config", file) as server:
        texts = {name: (await ask(server, SETS[name], PROMPT))[0] for name in ("none", "pirate", "brief")}
        assert len(set(texts.values())) == 3

        async def one(name: str, number: int, count: int = 12) -> None:
            body = {"model": "noise", "prompt": PROMPT, "max_tokens": count, "temperature": 0, "ignore_eos": True}
            answers[f"{name}-{number}"] = await server.post(COMPLETIONS, **body, lora=name)

        async with anyio.create_task_group() as group:
            with standstill(server):
                for number in range(3):  # all slots
                    group.start_soon(one, "none", number, 2)
                await server.until(lambda es: es[0]["slots_in_use"] == 3)
                for name in texts:
                    group.start_soon(one, name, 3)
                await server.until(lambda es: es[0]["waiting"] == 3)
                old = (await server.engines())[0]["pid"]
                listed = f"    adapters: {{{LISTS[then]}}}\n" if LISTS[then] else ""
                file.write_text(file.read_text().split("    adapters:")[0] + listed)
                server.process.send_signal(signal.SIGHUP)
                with anyio.fail_after(server.patience):
                    while "the config was applied" not in server.text:
                        await anyio.sleep(0.02)
        assert (await server.engines())[0]["pid"] != old
        for name in texts:  # and those that come afterwards
            await one(name, 4)
        for name, text in texts.items():
            for status, answer, headers in (answers[f"{name}-3"], answers[f"{name}-4"]):
                if name == "none" or name in LISTS[then]:
                    assert (status, answer["choices"][0]["text"]) == (200, text)
                else:
                    assert status == 400 and answer["error"]["param"] == "lora"
                assert headers.get("x-onebit-lora") in (name, None)
        async with server.session.get(server.url + "/v1/models") as response:
            names = [model["id"] for model in (await response.json())["data"]]
        assert names == ["noise", *(f"noise:{name}" for name in ("brief", "pirate") if name in LISTS[then])]


async def test_adapters_in_chats_streams_and_responses(config: Path) -> None:
    messages = [{"role": "user", "content": "ahoy"}]
    more = {"temperature": 0, "max_tokens": 8, "ignore_eos": True}
    async with serving("--config", config) as server:
        said = []
        for model, extra in (("noise", {}), ("noise:pirate", {}), ("noise", {"lora": "pirate"})):
            status, answer, headers = await server.post(CHAT, model=model, messages=messages, **more, **extra)
            assert status == 200, answer
            said.append((answer["choices"][0]["message"]["content"], headers["x-onebit-lora"]))
        assert said[0] != said[1] == said[2]
        assert [name for _, name in said] == ["none", "pirate", "pirate"]
        _, answer, _ = await server.post(CHAT, model="noise:pirate", messages=messages, n=2, **more)
        assert [choice["message"]["content"] for choice in answer["choices"]] == [said[1][0]] * 2
        body = {"model": "noise:pirate", "messages": messages, "stream": True, **more}
        async with server.session.post(server.url + CHAT, json=body) as response:
            assert response.headers["x-onebit-lora"] == "pirate"
            assert (await response.text()).endswith("data: [DONE]\n\n")
        texts = []
        for model in ("noise", "noise:pirate", "noise"):
            body = {"model": model, "input": "ahoy", "max_output_tokens": 8, "temperature": 0}
            status, answer, headers = await server.post(RESPONSES, **body)
            assert status == 200, answer
            texts.append(answer["output"][-1]["content"][0]["text"])
        assert texts[0] == texts[2] != texts[1]


async def test_the_message_chooses(config: Path) -> None:
    async with serving("--config", config) as server:
        for text, expected in (
            ("Arr, talk like a pirate on a ship of the sea!", "pirate"),
            ("answer in few words please", "brief"),
            ("what is the derivative of x squared", "none"),
            ("", "none"),
        ):
            messages = [{"role": "user", "content": "hello"}, {"role": "user", "content": text}]
            status, answer, headers = await server.post(
                CHAT, model="noise", messages=messages, max_tokens=1, lora="auto"
            )
            assert (status, headers.get("x-onebit-lora")) == (200, expected), answer


async def test_what_there_is_and_what_there_is_not(config: Path) -> None:
    async with serving("--config", config) as server:
        async with server.session.get(server.url + "/v1/models") as response:
            models = {m["id"]: m for m in (await response.json())["data"]}
        assert list(models) == ["noise", "noise:pirate", "noise:brief"]
        assert models["noise:brief"]["parent"] == "noise"
        assert models["noise:brief"]["meta"]["about"] == "Answers in very few words"
        messages = [{"role": "user", "content": "x"}]
        for fields, status, param in (
            ({"model": "noise:pirat"}, 404, "model"),
            ({"model": "noise", "lora": "pirat"}, 400, "lora"),
            ({"model": "noise", "lora": [{"id": 0, "scale": 1}]}, 400, "lora"),
        ):
            code, answer, _ = await server.post(CHAT, messages=messages, **fields)
            assert (code, answer["error"]["param"]) == (status, param)
            assert (param == "lora" and "id" in str(fields)) or "did you mean pirate?" in answer["error"]["message"]
        code, answer, _ = await server.post("/v1/messages", model="noise", messages=messages, max_tokens=1)
        assert code == 400 and "/v1/chat/completions" in answer["error"]["message"]
        code, answer, _ = await server.post("/v1/embeddings", model="noise", input="x")
        assert code == 400 and "without adapters" in answer["error"]["message"]
        code, answer, _ = await server.post("/tokenize", model="noise:pirate", content="a")
        assert code == 200
