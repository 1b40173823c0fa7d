"""Who is who: keys, tiers, what may lower them, and what the answer says of it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import openai
import pytest

from tests.situations.client import CHAT, ask, count, headers, sdk, stream
from tests.situations.conftest import Fakes
from tests.support.serving import Serving

pytestmark = pytest.mark.anyio

KEYS = """\
keys:
  - {name: shop, key_env: SHOP, tier: paid}
  - {name: members, key_file: members.key, tier: subscriber}
  - {name: batch, key_env: BATCH, tier: background}
"""
ENV = {"SHOP": "sk-shop", "BATCH": "sk-batch"}


@pytest.fixture
async def server(fakes: Fakes) -> AsyncIterator[Serving]:
    """Keys from the environment and from a file; who has none gets the tier free."""
    write_key_file(fakes)
    async with fakes.serve(fakes.model("x"), top=f"{KEYS}default_tier: free\n", env=ENV) as running:
        yield running


def write_key_file(fakes: Fakes) -> None:
    file = fakes.folder / "members.key"
    file.write_text("# of the club\nsk-members\n")
    file.chmod(0o600)


async def test_the_key_gives_the_tier_and_nothing_raises_it(server: Serving) -> None:
    """One server for all cases: each line is a key, what the request asks for, and the tier that serves it."""
    cases: list[tuple[str, dict[str, Any], str, str]] = [
        ("sk-shop", {}, "", "paid"),
        ("sk-members", {}, "", "subscriber"),
        ("sk-batch", {}, "", "background"),
        ("", {}, "", "free"),
        ("sk-shop", {"service_tier": "auto"}, "", "paid"),
        ("sk-shop", {"service_tier": "priority"}, "", "paid"),
        ("sk-shop", {"service_tier": "default"}, "", "subscriber"),
        ("sk-shop", {"service_tier": "flex"}, "", "background"),
        ("sk-shop", {}, "free", "free"),
        ("sk-shop", {"service_tier": "default"}, "free", "free"),  # the lower of the two
        ("sk-shop", {"service_tier": "flex"}, "subscriber", "background"),
        ("sk-members", {"service_tier": "priority"}, "", "subscriber"),
        ("sk-members", {}, "paid", "subscriber"),
        ("", {"service_tier": "priority"}, "", "free"),
        ("", {}, "paid", "free"),
        ("sk-batch", {"service_tier": "priority"}, "paid", "background"),
    ]
    for key, fields, tier, expected in cases:
        for asked in (ask, stream):
            answer = await asked(server, "x", key=key, tier=tier, **fields)
            assert (answer.status, answer.headers["X-Onebit-Tier"]) == (200, expected), (key, fields, tier)
    for tier in ("paid", "subscriber", "free", "background"):
        expected_count = 2 * sum(case[3] == tier for case in cases)
        assert await count(server, "onebit_requests_total", key="sk-shop", tier=tier) == expected_count


async def test_a_tier_that_there_is_not_is_named(server: Serving) -> None:
    answer = await ask(server, "x", tier="gold")
    assert answer.status == 400 and "gold" in answer.body["error"]["message"]
    assert "paid, subscriber, free, background" in answer.body["error"]["message"]
    answer = await ask(server, "x", service_tier="scale")
    assert (answer.status, answer.body["error"]["param"]) == (400, "service_tier")


async def test_the_sdk_and_its_service_tier(server: Serving) -> None:
    async with sdk(server, "sk-shop") as client:
        raw = await client.chat.completions.with_raw_response.create(
            model="x", messages=[{"role": "user", "content": "hi"}], service_tier="flex"
        )
        assert raw.headers["x-onebit-tier"] == "background"
        assert raw.parse().choices[0].message.content


async def test_a_wrong_key_is_401_and_is_not_taken_for_none(server: Serving) -> None:
    """Not even where requests without a key are served: who has a key should hear that it is wrong."""
    async with sdk(server, "sk-wrong") as client:
        with pytest.raises(openai.AuthenticationError) as refused:
            await client.chat.completions.create(model="x", messages=[{"role": "user", "content": "hi"}])
        assert refused.value.code == "invalid_api_key"
        assert refused.value.response.headers["x-should-retry"] == "false"
    assert "sk-wrong" not in server.text and "sk-shop" not in server.text
    for path in ("/v1/engines", "/metrics"):  # the operator's
        async with server.session.get(server.url + path) as response:
            assert response.status == 401
        async with server.session.get(server.url + path, headers=headers("sk-batch")) as response:
            assert response.status == 200


async def test_default_tier_none_refuses_who_has_no_key(fakes: Fakes) -> None:
    write_key_file(fakes)
    async with fakes.serve(fakes.model("x"), top=f"{KEYS}default_tier: none\n", env=ENV) as server:
        async with server.session.post(server.url + CHAT, json={"model": "x", "messages": []}) as response:
            assert response.status == 401 and response.headers["WWW-Authenticate"] == "Bearer"
        assert (await ask(server, "x", key="sk-members")).status == 200
        async with server.session.get(f"{server.url}/health") as response:
            assert response.status == 200  # a health check needs none
