"""API keys: from where they are kept to their bytes, and never into a message."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from onebit.config.keys import Key, key_warnings, read_keys
from onebit.config.load import check_config, load
from onebit.errors import ConfigError
from onebit.tiers import Tier

SECRET = "hunter2-0123456789"
KEYS = """\
keys:
  - {name: shop, key_env: SHOP_KEY, tier: paid}
  - {name: members, key_file: members.key, tier: subscriber, max_in_flight: 4}
  - {name: robots, key: plain-key, tier: Background}
"""


def write(file: Path, text: str, mode: int = 0o600) -> Path:
    file.write_text(text)
    file.chmod(mode)
    return file


def read(folder: Path, text: str, environ: dict[str, str] | None = None, **given: Any) -> tuple[Key, ...]:
    return read_keys(load(given, write(folder / "onebit.yaml", text)), environ or {})


def mistake(folder: Path, text: str, environ: dict[str, str] | None = None, **given: Any) -> str:
    with pytest.raises(ConfigError) as caught:
        read(folder, text, environ, **given)
    assert SECRET not in f"{caught.value.message} {caught.value.hint} {caught.value!r}"
    return caught.value.message.replace(f"{folder}/", "")


def test_keys_come_from_a_variable_a_file_and_the_config(tmp_path: Path) -> None:
    write(tmp_path / "members.key", "# of the club\nclub-key\r\n")
    assert read(tmp_path, KEYS, {"SHOP_KEY": " shop-key\n"}) == (
        Key("shop", b"shop-key", Tier.PAID),
        Key("members", b"club-key", Tier.SUBSCRIBER, 4),
        Key("robots", b"plain-key", Tier.BACKGROUND),
    )


def test_those_of_the_flags_are_paid_and_have_names(tmp_path: Path) -> None:
    file = write(tmp_path / "keys", "# shop\none\n\n two \n")
    keys = read_keys(load({"api_key": "a, b", "api_key_file": str(file)}))
    assert [(key.name, key.secret, key.tier) for key in keys] == [
        (f"api-key-{i}", secret, Tier.PAID) for i, secret in enumerate((b"a", b"b", b"one", b"two"), 1)
    ]
    assert read_keys(load({})) == ()


def test_a_key_file_may_be_a_pipe(tmp_path: Path) -> None:
    ours, theirs = os.pipe()
    os.write(theirs, b"one\n")
    os.close(theirs)
    try:
        assert [key.secret for key in read_keys(load({"api_key_file": f"/dev/fd/{ours}"}))] == [b"one"]
    finally:
        os.close(ours)


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        ("key_env: SHOP_KEY", "2: keys[0].key_env: the environment variable SHOP_KEY is not set"),
        ("key_env: EMPTY", "2: keys[0].key_env: the environment variable EMPTY is empty; a key like"),
        ("key_env: SPACED", "holds spaces or control characters"),
        ("key_env: hunter2_0123456789", "the environment variable named here is not set"),
        (f"key_env: {SECRET}", "2: keys[0].key_env: letters, digits"),
        ("key_file: none", "2: keys[0].key_file: none does not exist"),
        ("key_file: .", "2: keys[0].key_file: cannot read the key file"),
        ("key_file: open", "2: keys[0].key_file: open can be read by others (mode 0644); run: chmod 600 "),
        ("key_file: group", "(mode 0640); run: chmod 600 "),
        ("key_file: empty", "2: keys[0].key_file: empty is empty"),
        ("key_file: two", "two holds 2 keys"),
        ("key_file: binary", "cannot read the key file binary: it is not text"),
        ("key_file: large", "large is over 1 MiB: not a key file"),
        ('key: " "', "2: keys[0].key: it is empty"),
        ("key: 12345", "2: keys[0].key: it is text: put it in quotes"),
        (f"key: [{SECRET}]", "2: keys[0].key: it is text: put it in quotes"),
        (
            f"key: {SECRET}, key_env: SHOP_KEY",
            "2: keys[0]: it takes one of key_env, key_file and key; there is key_env and",
        ),
        ("max_in_flight: 1", "2: keys[0]: it takes one of key_env, key_file and key; there is none"),
        (f"key: {SECRET}, max_in_flight: 0", "2: keys[0].max_in_flight: input should be greater"),
        (
            f"key: {SECRET}, max_inflight: 0",
            "keys[0].max_inflight: there is no such setting; did you mean max_in_flight?",
        ),
    ],
)
def test_a_key_that_cannot_be_had(tmp_path: Path, entry: str, message: str) -> None:
    write(tmp_path / "open", SECRET, 0o644)
    write(tmp_path / "group", SECRET, 0o640)
    write(tmp_path / "empty", "# nothing\n")
    write(tmp_path / "two", f"{SECRET}\n{SECRET}2\n")
    write(tmp_path / "large", SECRET + "x" * (1 << 20))
    write(tmp_path / "binary", "").write_bytes(SECRET.encode() + b"\xff")
    text = f"keys:\n  - {{name: shop, tier: paid, {entry}}}\n"
    told = mistake(tmp_path, text, {"EMPTY": " ", "SPACED": SECRET.replace("-", " ")})
    assert message in told and len(told.splitlines()) == 1


@pytest.mark.parametrize(
    ("tier", "message"),
    [
        ("tier: pro", "there is no tier 'pro'; tiers are paid, subscriber, free and background"),
        ("tier: subscribers", "did you mean subscriber?"),
        ("tier: none", "there is no tier 'none'"),
        ("tier: 3", "there is no tier 3"),
        ("tier:", "there is no tier None"),
        ("max_in_flight: 1", "tier: it is missing (paid, subscriber, free or background)"),
    ],
)
def test_a_tier_that_is_none(tmp_path: Path, tier: str, message: str) -> None:
    assert message in mistake(tmp_path, f"keys:\n  - name: shop\n    key_env: K\n    {tier}\n", {"K": "k"})


@pytest.mark.parametrize("name", ["a b", "", "-a", "ä", "x" * 65, 'a"b', "a\\n"])
def test_a_name_that_is_no_label(tmp_path: Path, name: str) -> None:
    quoted = name.replace('"', '\\"')
    assert "2: keys[0].name: " in mistake(tmp_path, f'keys:\n  - {{name: "{quoted}", key: k, tier: paid}}\n')


def test_two_of_one_name_or_one_key(tmp_path: Path) -> None:
    twice = "keys:\n  - {name: a, key: k1, tier: paid}\n  - {name: a, key: k2, tier: free}\n"
    assert "3: keys[1].name: a is the name of keys[0] too" in mistake(tmp_path, twice)
    same = f"keys:\n  - {{name: a, key: {SECRET}, tier: paid}}\n  - {{name: b, key_env: B, tier: free}}\n"
    assert "3: keys[1].key_env: b has the same key as a" in mistake(tmp_path, same, {"B": SECRET})
    told = mistake(tmp_path, same, {"B": "other"}, api_key=SECRET)
    assert told == "--api-key (or ONEBIT_API_KEY): api-key-1 has the same key as a; a key belongs to one name"
    with pytest.raises(ConfigError) as caught:
        read(tmp_path, same, {"B": "other"}, api_key=SECRET)
    assert "unset ONEBIT_API_KEY before you serve" in str(caught.value.hint)
    with pytest.raises(ConfigError) as caught:
        read(tmp_path, same, {"B": SECRET}, api_key="other")
    assert "unset" not in str(caught.value.hint)
    clash = "keys:\n  - {name: api-key-1, key: k1, tier: paid}\n"
    assert "api-key-1 is the name of two keys" in mistake(tmp_path, clash, api_key="k2")


def test_every_bad_key_is_told_at_once(tmp_path: Path) -> None:
    (tmp_path / "members.key").touch(0o600)
    assert len(mistake(tmp_path, KEYS, {}, api_key=",").splitlines()) == 3


def test_an_empty_key_is_a_mistake_not_an_open_door(tmp_path: Path) -> None:
    file = write(tmp_path / "keys", "\n")
    for given in ({"api_key_file": str(file)}, {"api_key": " , "}, {"api_key": ""}):
        with pytest.raises(ConfigError, match="empty"):
            read_keys(load(given))


def test_a_key_is_not_shown(tmp_path: Path) -> None:
    (tmp_path / "members.key").touch(0o600)
    config = load({"api_key": SECRET}, write(tmp_path / "o.yaml", KEYS.replace("plain-key", SECRET + "2")))
    assert SECRET not in repr(config) + str(config.model_dump()) + config.model_dump_json()
    assert SECRET not in repr(Key("shop", SECRET.encode(), Tier.PAID))


@pytest.mark.parametrize(("mode", "warned"), [(0o600, False), (0o640, True), (0o644, True)])
def test_a_key_in_a_config_that_others_can_read_is_warned_of(tmp_path: Path, mode: int, warned: bool) -> None:
    (tmp_path / "members.key").touch(0o600)
    file = write(tmp_path / "onebit.yaml", KEYS + f"api_key: {SECRET}\n", mode)
    told = key_warnings(load({}, file))
    assert [w.split(" a key ")[0] for w in told] == (
        [f"{file}:4: keys[2].key:", f"{file}:5: api_key:"] if warned else []
    )
    assert all(f"chmod 600 {file}" in w and SECRET not in w and "plain-key" not in w for w in told)


def test_a_key_of_a_flag_is_not_in_the_file(tmp_path: Path) -> None:
    file = write(tmp_path / "onebit.yaml", f"api_key: {SECRET}\n", 0o644)
    assert key_warnings(load({"api_key": "other"}, file)) == ()


def test_an_open_door_is_told() -> None:
    network = {"host": "0.0.0.0"}  # noqa: S104
    assert "anyone who can reach 0.0.0.0" in key_warnings(load(network))[0]
    assert key_warnings(load({**network, "api_key": "k"})) == ()
    assert key_warnings(load({**network, "default_tier": "free"})) == ()  # it was meant
    assert key_warnings(load({})) == ()


@pytest.mark.parametrize(
    ("given", "tier"),
    [
        ({}, Tier.FREE),
        ({"api_key": "k"}, None),
        ({"api_key": "k", "default_tier": "background"}, Tier.BACKGROUND),
        ({"api_key": "k", "default_tier": "None"}, None),
        ({"default_tier": "paid"}, Tier.PAID),
    ],
)
def test_the_tier_without_a_key(given: dict[str, str], tier: Tier | None) -> None:
    assert load(given).keyless_tier is tier


def test_a_server_that_lets_nobody_in_is_a_mistake() -> None:
    with pytest.raises(ConfigError, match="refuses every request without a key, and there are no keys"):
        load({"default_tier": "none"})


def test_a_checked_configuration_is_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "members.key").touch(0o600)
    file = write(tmp_path / "onebit.yaml", KEYS, 0o644)
    monkeypatch.setenv("SHOP_KEY", "s")
    with pytest.raises(ConfigError, match=r"members\.key is empty"):
        check_config(file)
    write(tmp_path / "members.key", "m")
    checked = check_config(file, {"port": 0})
    assert [key.name for key in checked.keys] == ["shop", "members", "robots"]
    assert (checked.config.port, [m.name for m in checked.models], len(checked.warnings)) == (0, ["demo"], 1)
