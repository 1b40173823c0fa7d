"""The command line of an engine."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest

from onebit.engines.device import Build, Device, DeviceKind
from onebit.engines.llama_server import Address, address_for, arguments, environment
from onebit.engines.spec import Adapter, Draft, DraftKind
from tests.engines.specs import CARD_BUILD, CPU_BUILD, spec

SOCKET = Address(Path("/run/x.sock"))


def pairs(args: list[str]) -> dict[str, str]:
    return dict(itertools.pairwise(args))


def test_slots_and_context_are_explicit_and_the_context_is_per_slot() -> None:
    args = arguments(spec(slots=8, context=1000), SOCKET)
    assert pairs(args)["-np"] == "8"
    assert pairs(args)["-c"] == str(8 * 1024)  # rounded up to 256, as llama-server does for each slot
    assert "--no-kv-unified" in args


def test_a_socket_or_a_port_of_its_own_choice() -> None:
    assert pairs(arguments(spec(), SOCKET))["--host"] == "/run/x.sock"
    args = pairs(arguments(spec(), Address()))
    assert (args["--host"], args["--port"]) == ("127.0.0.1", "0")


def test_a_path_too_long_for_a_socket_falls_back_to_a_port(tmp_path: Path) -> None:
    assert address_for(Path("/run/user/0/onebit/1"), "cpu").socket is not None
    assert address_for(tmp_path / ("x" * 100), "cpu").socket is None
    assert address_for(tmp_path / ("é" * 50), "cpu").socket is None  # bytes count, not characters


def test_the_cpu_switches_every_device_off() -> None:
    args = pairs(arguments(spec(build=CARD_BUILD), SOCKET))
    assert (args["--device"], args["-ngl"]) == ("none", "0")


def test_a_card_gets_all_layers_or_as_many_as_asked_for() -> None:
    card = spec(build=CARD_BUILD, device=Device(DeviceKind.VULKAN))
    assert pairs(arguments(card, SOCKET))["--device"] == "Vulkan0"
    assert pairs(arguments(card, SOCKET))["-ngl"] == "999"
    some = spec(build=CARD_BUILD, device=Device(DeviceKind.VULKAN), gpu_layers=10)
    assert pairs(arguments(some, SOCKET))["-ngl"] == "10"


def test_drafting() -> None:
    mtp = pairs(arguments(spec(draft=Draft(DraftKind.MTP, 3)), SOCKET))
    assert (mtp["--spec-type"], mtp["--spec-draft-n-max"]) == ("draft-mtp", "3")
    assert "-md" not in mtp
    head = pairs(arguments(spec(draft=Draft(DraftKind.MTP, 2, Path("/m/head.gguf"))), SOCKET))
    assert head["-md"] == "/m/head.gguf"
    ngram = pairs(arguments(spec(draft=Draft(DraftKind.NGRAM, 16)), SOCKET))
    assert ngram["--spec-type"] == "ngram-simple"
    assert ngram["--spec-ngram-simple-size-m"] == "16"
    assert "--spec-type" not in arguments(spec(), SOCKET)  # n-max 0 does not switch drafting off


def test_adapters_and_the_users_own_arguments_come_last_and_untouched() -> None:
    args = arguments(spec(adapters=(Adapter(Path("/a.gguf"), 0.5),), extra=("--temp", "0", "-np", "3")), SOCKET)
    assert pairs(args)["--lora-scaled"] == "/a.gguf:0.5"
    assert args[-4:] == ["--temp", "0", "-np", "3"]


def test_the_key_is_in_the_environment_and_nowhere_else() -> None:
    base = {"PATH": "/bin", "ONEBIT_API_KEY": "secret", "LLAMA_ARG_PORT": "1", "LLAMA_API_KEY": "old"}
    env = environment(spec(), "new", base)
    assert env == {"PATH": "/bin", "LLAMA_API_KEY": "new"}
    assert not any("new" in arg or "secret" in arg for arg in arguments(spec(), SOCKET))


@pytest.mark.parametrize("build", [CPU_BUILD, CARD_BUILD])
def test_adapters_to_choose_from_wait_at_scale_zero_and_no_prompt_is_kept_without_its_set(build: Build) -> None:
    """llama-server's cache in main memory does not know which adapters a prompt was computed with."""
    device = Device(DeviceKind.CPU if build is CPU_BUILD else DeviceKind.VULKAN)
    chosen = (Adapter(Path("/b.gguf"), 0.5), Adapter(Path("/c.gguf")))
    args = arguments(
        spec(build=build, device=device, adapters=(Adapter(Path("/a.gguf"), 2.0),), choice=chosen), Address(port=0)
    )
    loras = [args[i + 1] for i, arg in enumerate(args) if arg == "--lora-scaled"]
    assert loras == ["/a.gguf:2", "/b.gguf:0", "/c.gguf:0"]
    assert args[args.index("--cache-ram") + 1] == "0"
