"""Settings from everywhere, and one good message for each mistake."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from onebit.config.load import load
from onebit.errors import ConfigError


def write(tmp_path: Path, text: str) -> Path:
    file = tmp_path / "onebit.yaml"
    file.write_text(text)
    return file


def test_a_flag_beats_the_file_and_the_file_beats_the_default(tmp_path: Path) -> None:
    file = write(tmp_path, "parallel: 8\nport: 9000\nmax-wait: 2m\nmax_body: 1MiB\ndevice: cpu\n")
    config = load({"port": 9001, "device": "vulkan,rocm", "parallel": "8,16"}, file)
    assert (config.port, config.host) == (9001, "127.0.0.1")
    assert config.device == ("vulkan", "rocm")
    assert config.parallel == (8, 16)
    assert (config.max_wait, config.max_body) == (120, 1 << 20)
    assert load({}, file).parallel == (8,)


def test_an_empty_file_is_no_settings(tmp_path: Path) -> None:
    assert load({}, write(tmp_path, "# nothing yet\n")) == load({})


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("port: 8080\nparalel: 8\n", ":2: paralel: there is no such setting; did you mean parallel?"),
        ("parallel: 0\n", ":1: parallel: input should be greater than or equal to 1"),
        ("\n\nport: many\n", ":3: port: "),
        ("max_body: 24 gigs\n", "a size is a number with an optional unit"),
        ("max_body: inf\n", "a size is a number"),
        ("max_body: 1e400\n", ":1: max_body: "),
        ("alias: 2024-13-01\n", "not valid YAML"),
        ("max_wait: soon\n", ":1: max_wait: "),
        ("draft: magic\n", ":1: draft: input should be 'ngram'"),
        ("llama_server: /nowhere/llama-server\n", "/nowhere/llama-server does not exist"),
        (
            "default_tier: pro\n",
            ":1: default_tier: there is no tier 'pro'; tiers are paid, subscriber, free, background",
        ),
        ("log_format: jsn\n", ":1: log_format: input should be 'auto', 'human' or 'json'; did you mean json?"),
        ("memory: 80%\n", ":1: memory: '80%' is not a size"),
        ("device: [cpu, vulcan]\n", ":1: device[1]: unknown device 'vulcan'; did you mean vulkan?"),
        ("device: cpu,vulcan\n", ":1: device: unknown device 'vulcan'"),
        ("alias: qwen:8b\n", ":1: alias: a model's name has no colon"),
        ("max-wait: 1\nmax_wait: 2\n", ":2: max_wait is set twice, first on line 1"),
        ("keys: {name: a}\n", ":1: keys: it is a list"),
        ("parallel: 1.5\n", ":1: parallel: a whole number, or a list of them, like `[8, 16]`"),
        ('engine_args: "--temp 0.2"\n', ':1: engine_args: it is a list, like `["--temp", "0.2"]`'),
        ("port: 1\nmodels: {}\n", ":2: models is empty; name a model below it"),
        ("keys:\n- a\n", ":2: keys[0]: settings stand below it"),
        ("pin: true\nidle_unload: 1m\n", ":2: idle_unload: a pinned model never leaves"),
        ("port: 1\nport: 2\n", ":2: port is set twice, first on line 1"),
        ("- a\n- b\n", "a config file holds settings"),
        ("just words\n", "a config file holds settings"),
        ("a: [1,\n", ":2: not valid YAML"),
        ("a: !!python/object/apply:os.system ['true']\n", "not valid YAML"),
    ],
)
def test_a_mistake_in_the_file_names_file_line_and_fix(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load({}, write(tmp_path, text))
    assert message in caught.value.message
    assert str(tmp_path / "onebit.yaml") in caught.value.message or "does not exist" in caught.value.message
    assert caught.value.exit_code == 2


def test_all_mistakes_are_told_at_once(tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        load({"port": 70000}, write(tmp_path, "parallel: 0\nfoo: 1\n"))
    lines = caught.value.message.splitlines()
    assert len(lines) == 3
    assert any(line.startswith("--port (or ONEBIT_PORT): ") for line in lines)


def test_mistakes_stand_in_the_order_of_their_lines(tmp_path: Path) -> None:
    text = (
        "models:\n  a: {path: demo, prot: 1}\nprotect: 10 min\nkeys:\n- {name: a, tier: no, key: k}\nmemory: 24 gigs\n"
    )
    with pytest.raises(ConfigError) as caught:
        load({"port": "x"}, write(tmp_path, text))
    assert [line.split(": ")[0].rpartition(":")[2] for line in caught.value.message.splitlines()] == [
        "--port (or ONEBIT_PORT)",
        *("2", "3", "5", "6"),
    ]


def test_the_settings_of_the_server(tmp_path: Path) -> None:
    text = "memory: 24GiB\nprotect: 2m\nmin-residency: 0\nmax_hold: 10s\nmax_wait_boost: 5m\nlog_format: json\n"
    config = load({}, write(tmp_path, text))
    assert (config.memory, config.protect, config.min_residency) == (24 << 30, 120, 0)
    assert (config.max_hold, config.max_wait_boost, config.log_format) == (10, 300, "json")
    plain = load({})
    assert (plain.memory, plain.protect, plain.min_residency, plain.max_hold) == (None, 60, 5, 30)
    assert (plain.max_wait_boost, plain.log_format, plain.default_tier) == (None, "auto", None)


def test_names_are_text_however_yaml_reads_them(tmp_path: Path) -> None:
    text = "models:\n  on: {path: demo}\n  70: {path: demo}\n  null: {path: demo}\n  a-b: {path: demo, ctx-size: 64}\n"
    served = load({}, write(tmp_path, text)).served()
    assert [model.name for model in served] == ["on", "70", "null", "a-b"]
    assert served[-1].settings.ctx_size == 64


def test_what_is_shared_in_yaml_may_be_set_again_beside_it(tmp_path: Path) -> None:
    text = """\
models:
  a: &base {path: demo, ctx_size: 64, threads: 1}
  b: {<<: *base, ctx_size: 128}
  c: {<<: [*base], ctxsize: 1}
"""
    with pytest.raises(ConfigError, match=r":4: models\.c\.ctxsize: there is no such setting; did you mean ctx_size"):
        load({}, write(tmp_path, text))
    a, b = load({}, write(tmp_path, text[: text.index("  c:")])).served()
    assert (a.settings.ctx_size, b.settings.ctx_size, b.settings.threads) == (64, 128, (1,))


def test_a_byte_order_mark_is_no_setting(tmp_path: Path) -> None:
    file = tmp_path / "onebit.yaml"
    file.write_bytes(b"\xef\xbb\xbfport: 1\r\n")
    assert load({}, file).port == 1


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a: &a [*a]\n", "a: there is no such setting"),
        ("models: &m\n  a: *m\n", "there is no such setting"),
        ("? [a, b]\n: 1\n", ":1: the name of a setting is plain text"),
        ("<<: 5\n", ":1: not valid YAML: expected a mapping"),
        ("models:\n  <<: {a: {path: demo}}\n  b: {paht: demo}\n", ":3: models.b.paht: "),
        ("a: " + "[" * 3000 + "]" * 3000, "onebit.yaml"),
        ("a: &a [x,x,x,x,x,x,x,x]\n" + "".join(
            f"{n}: &{n} [{','.join(['*' + m] * 8)}]\n" for m, n in zip("abcdefgh", "bcdefghi", strict=True)
        ), "it has over 100,000 settings"),
        ("port: 1\n" + "# " + "x" * (1 << 20), "over 1 MiB"),
        ("port: 1\nalias: a\0b\n", ":2: not valid YAML: the character U+0000 is not allowed"),
        ("port: 1\nalias: a\x1b[31mb\n", ":2: not valid YAML: the character U+001B is not allowed"),
        ("pin: !!bool maybe\n", ":1: not valid YAML: what stands here is no valid bool"),
        ("port: 1\nalias: 2024-13-01\n", ":2: not valid YAML: what stands here is no valid timestamp; put"),
        ("port: !!int ''\n", "no valid int"),
        ("port: " + "9" * 5000, "no valid int"),
        ("grace: " + "1:" * 250 + "1.5\n", "no valid float"),
        ("alias: !!timestamp x\n", "no valid timestamp"),
        ('llama_server: "\\ud83d"\n', "no valid str; write characters as they are, not as \\u"),
        ('models: {"\\ud83d": {path: demo}}\n', "no valid str"),
    ],
    ids=["itself", "models-in-itself", "list-as-name", "merged-number", "merged-models", "deep", "laughs", "large",
         "nul", "escape", "bool", "date", "no-digits", "many-digits", "many-sixties", "no-date", "half", "half-name"],
)  # fmt: skip
def test_odd_yaml_is_a_message_too(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load({}, write(tmp_path, text))
    assert message in caught.value.message


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="does not exist"):
        load({}, tmp_path / "no.yaml")


def test_a_file_that_is_not_text(tmp_path: Path) -> None:
    file = tmp_path / "model.gguf"
    file.write_bytes(b"GGUF\xff\xfe\x00")
    with pytest.raises(ConfigError, match=r"cannot read config file .*model\.gguf: it is not UTF-8: .* at byte 4"):
        load({}, file)


def test_a_folder(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=f"cannot read config file {tmp_path}: Is a directory"):
        load({}, tmp_path)


def test_a_pipe_that_does_not_end(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    with ThreadPoolExecutor() as other:
        other.submit(pipe.write_bytes, b"#" * (2 << 20))  # its reader leaves before
        with pytest.raises(ConfigError, match="over 1 MiB"):
            load({}, pipe)


@pytest.mark.parametrize("name", ["lora", "llama_server", "mtp_model", "api_key_file"])
@pytest.mark.parametrize(
    ("path", "message"), [("~nobody-is-called-so/x", "home of a user"), ("/x/\udcff", "/x/\\udcff does not exist")]
)
def test_paths_that_there_cannot_be(name: str, path: str, message: str) -> None:
    """On the command line a path may have any bytes, which Python shows as halves of surrogate pairs."""
    with pytest.raises(ConfigError) as caught:
        load({name: path})
    assert message in caught.value.message
