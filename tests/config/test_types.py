"""Times, sizes, tiers and devices: what is taken, and what a message shows instead."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import TypeAdapter, ValidationError

from onebit.config.types import DEVICE_KINDS, DeviceName, LoraFile, ModelName, Seconds, Size, TierName, lora_parts
from onebit.engines.device import DeviceKind
from onebit.tiers import TIERS


def check(kind: Any, value: object) -> Any:
    return TypeAdapter(kind).validate_python(value)


@pytest.mark.parametrize(
    ("text", "size"),
    [
        (4096, 4096),
        ("4096", 4096),
        ("512K", 512 << 10),
        ("64MiB", 64 << 20),
        ("64 mb", 64 << 20),
        ("24GiB", 24 << 30),
        ("1.5g", 3 << 29),
        ("2TiB", 2 << 40),
    ],
)
def test_sizes(text: object, size: int) -> None:
    assert check(Size, text) == size


@pytest.mark.parametrize(
    ("text", "seconds"),
    [(90, 90), (0.5, 0.5), ("90", 90), ("90s", 90), ("2m", 120), ("10 m", 600), ("1.5h", 5400), ("0", 0)],
)
def test_times(text: object, seconds: float) -> None:
    assert check(Seconds, text) == seconds


@pytest.mark.parametrize(
    ("kind", "text", "message"),
    [
        (Size, "24 gigs", "like 24GiB"),
        (Size, "24 gibibytes", "like 24GiB"),
        (Size, "80%", "'80%' is not a size: a size is a number with an optional unit, like 64MiB"),
        (Size, "-1G", "not a size"),
        (Size, "1e400", "no size"),
        (Size, "12", "greater than or equal to 1024"),
        (Seconds, "10 min", "like 10m"),
        (Seconds, "2 hours", "like 2h"),
        (Seconds, "500ms", "like 90, 90s, 2m or 1h"),
        (Seconds, "soon", "not a time"),
        (Seconds, "", "not a time"),
        (Seconds, "48h", "less than or equal to 86400"),
        (Seconds, float("nan"), "greater than or equal to 0"),
        (TierName, "payed", "did you mean paid? tiers are paid, subscriber, free and background"),
        (TierName, 3, "there is no tier 3"),
        (DeviceName, "vulcan", "did you mean vulkan?"),
        (DeviceName, "cuda:x", "unknown device 'cuda:x'; devices are cpu, "),
        (ModelName, "chat:1", "no colon"),
        (ModelName, "chat\n", "printable"),
        (ModelName, "chat\x1b[31m", "printable"),
        (ModelName, " chat", "printable"),
        (ModelName, "", "at least 1 character"),
        (ModelName, "x" * 129, "at most 128 characters"),
        (LoraFile, "/nowhere/a.gguf:0.5", "/nowhere/a.gguf does not exist, there is no folder /nowhere either"),
    ],
)
def test_a_message_shows_the_right_form(kind: Any, text: object, message: str) -> None:
    with pytest.raises(ValidationError) as caught:
        check(kind, text)
    assert message in str(caught.value)


@given(st.text())
def test_any_text_is_a_value_or_a_message(text: str) -> None:
    for kind in (Size, Seconds, TierName, DeviceName, ModelName):
        with suppress(ValidationError):  # and nothing else: no OverflowError of a size, no IndexError of a unit
            check(kind, text)


def test_the_devices_are_those_of_the_engines() -> None:
    assert tuple(kind.value for kind in DeviceKind) == DEVICE_KINDS
    assert [check(DeviceName, kind) for kind in DEVICE_KINDS] == list(DEVICE_KINDS)
    assert check(DeviceName, "Vulkan:1") == "vulkan:1"


def test_tiers_by_label() -> None:
    assert [check(TierName, label) for label in TIERS] == list(TIERS.values())


def test_the_scale_of_an_adapter() -> None:
    assert [(str(p), s) for p, s in map(lora_parts, ("a.gguf", "a.gguf:0.5", "a:b.gguf:-2"))] == [
        ("a.gguf", 1),
        ("a.gguf", 0.5),
        ("a:b.gguf", -2),
    ]
