"""Which build is taken, what is remembered about the others, and the registry."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest

from onebit import paths
from onebit.engines import builds
from onebit.engines.builds import Candidate, Manifest, Where, find_build, order
from onebit.engines.device import Device, DeviceKind
from onebit.errors import ConfigError, NoBuild
from tests.engines_builds.conftest import LLVMPIPE, VERSION, fake_server, script

CPU, VULKAN = Device(DeviceKind.CPU), Device(DeviceKind.VULKAN)
CARD = "Vulkan0: AMD Radeon Graphics (98304 MiB, 97211 MiB free)"


def make(version: str, kind: DeviceKind, date: str, *devices: str) -> Path:
    """A finished build in its place, as `engines build` leaves it."""
    folder = paths.builds_dir() / version / kind
    path = fake_server(folder / "llama-server", *devices)
    builds.write_manifest(folder, Manifest(version, kind.value, (), "here", date))
    return path


def candidate(where: Where, kind: DeviceKind | None) -> Candidate:
    return Candidate(Path(f"/{where}/{kind}"), where, kind, "a test")


def test_order_for_a_card_takes_only_what_was_made_for_it_or_is_unknown() -> None:
    cpu = candidate(Where.MADE, DeviceKind.CPU)
    vulkan = candidate(Where.MADE, DeviceKind.VULKAN)
    on_path = candidate(Where.ON_PATH, None)
    assert order([cpu, vulkan, on_path], VULKAN) == [vulkan, on_path]


def test_order_for_the_cpu_prefers_cpu_builds_and_keeps_the_rest() -> None:
    registered = candidate(Where.REGISTERED, DeviceKind.VULKAN)
    cpu = candidate(Where.MADE, DeviceKind.CPU)
    cuda = candidate(Where.MADE, DeviceKind.CUDA)
    on_path = candidate(Where.ON_PATH, None)
    assert order([registered, cuda, cpu, on_path], CPU) == [cpu, registered, cuda, on_path]


def test_nothing_at_all(home: Path) -> None:
    with pytest.raises(NoBuild) as caught:
        find_build(VULKAN)
    assert caught.value.message == "no llama-server for vulkan was found"
    assert caught.value.hint == "onebit engines build vulkan"


def test_the_four_places_in_their_order(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    on_path = fake_server(home / "bin" / "llama-server", CARD)
    monkeypatch.setenv("PATH", f"{on_path.parent}:/usr/bin:/bin")
    assert find_build(VULKAN).path == on_path
    assert find_build(VULKAN).origin == "llama-server on PATH"
    old = make("1", DeviceKind.VULKAN, "2026-01-01", CARD)
    assert find_build(VULKAN).path == old
    new = make("0", DeviceKind.VULKAN, "2026-02-01", CARD)
    assert find_build(VULKAN).path == new
    assert find_build(VULKAN).origin == "made by `onebit engines build vulkan` from 0"
    registered = fake_server(home / "mine" / "llama-server", CARD)
    builds.add(DeviceKind.VULKAN, registered)
    assert find_build(VULKAN).path == registered
    assert "registered for vulkan" in find_build(VULKAN).origin
    explicit = fake_server(home / "explicit" / "llama-server", CARD)
    assert find_build(VULKAN, explicit).path == explicit


def test_the_cpu_is_served_by_a_vulkan_build_until_there_is_its_own(home: Path) -> None:
    vulkan = make("1", DeviceKind.VULKAN, "2026-02-01", CARD)
    assert find_build(CPU).path == vulkan
    cpu = make("1", DeviceKind.CPU, "2026-01-01")
    assert find_build(CPU).path == cpu
    assert find_build(VULKAN).path == vulkan


def test_an_explicit_one_is_never_silently_replaced(home: Path) -> None:
    make("1", DeviceKind.VULKAN, "2026-01-01", CARD)
    broken = script(home / "llama-server", "exit 1")
    with pytest.raises(NoBuild, match="exit code 1"):
        find_build(VULKAN, broken)
    cpu_only = fake_server(home / "cpu" / "llama-server")
    with pytest.raises(NoBuild, match="shows no vulkan device here"):
        find_build(VULKAN, cpu_only)
    with pytest.raises(NoBuild, match=r"shows Vulkan0 only, so there is no vulkan:3"):
        find_build(Device(DeviceKind.VULKAN, 3), fake_server(home / "v" / "llama-server", CARD))


def test_what_does_not_do_is_skipped_and_its_reason_told(home: Path) -> None:
    broken = make("2", DeviceKind.VULKAN, "2026-02-01")
    script(broken, "echo boom; exit 7")
    good = make("1", DeviceKind.VULKAN, "2026-01-01", CARD)
    assert find_build(VULKAN).path == good
    fake_server(good)
    with pytest.raises(NoBuild) as caught:
        find_build(VULKAN)
    assert "exit code 7: boom" in caught.value.message
    assert f"{good} shows no vulkan device here (it shows no device but the CPU)" in caught.value.message
    assert caught.value.message.count("made by `onebit engines build vulkan`") == 2
    assert "onebit engines build vulkan" in (caught.value.hint or "")


def test_a_half_made_build_is_not_seen(home: Path) -> None:
    fake_server(paths.builds_dir() / "1" / "cpu" / "llama-server")
    fake_server(paths.builds_dir() / ".work-1-cpu" / "staged" / "llama-server")
    (paths.builds_dir() / "1" / "vulkan").mkdir()
    (paths.builds_dir() / "1" / "vulkan" / "build.json").write_text('{"version": ')
    assert builds.candidates() == []


def test_add_writes_a_private_file_and_takes_only_what_serves(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = fake_server(home / "llama-server", hidden=LLVMPIPE)
    monkeypatch.chdir(home)
    added = builds.add(DeviceKind.VULKAN, Path("llama-server"))
    assert (added.path, added.version) == (path, VERSION)
    assert builds.registered() == {DeviceKind.VULKAN: path}
    assert stat.S_IMODE(builds.registry_file().stat().st_mode) == 0o600
    with pytest.raises(NoBuild, match="shows no cuda device"):
        builds.add(DeviceKind.CUDA, path)
    builds.add(DeviceKind.CPU, path)
    assert set(builds.registered()) == {DeviceKind.VULKAN, DeviceKind.CPU}
    assert dict(find_build(VULKAN).env) == {"GGML_VK_VISIBLE_DEVICES": "0"}


@pytest.mark.parametrize("content", ["{", "[1]", '{"npu": "/x"}', '{"cpu": 3}'])
def test_a_damaged_registry_is_one_clear_message(home: Path, content: str) -> None:
    builds.registry_file().parent.mkdir(parents=True)
    builds.registry_file().write_text(content)
    with pytest.raises(ConfigError) as caught:
        find_build(CPU)
    assert str(builds.registry_file()) in caught.value.message
    assert caught.value.hint


def test_remove_unregisters_first_and_deletes_made_ones_second(home: Path) -> None:
    path = fake_server(home / "llama-server", CARD)
    builds.add(DeviceKind.VULKAN, path)
    made = make("1", DeviceKind.VULKAN, "2026-01-01", CARD)
    cpu = make("1", DeviceKind.CPU, "2026-01-01")
    assert "no longer registered" in builds.remove(DeviceKind.VULKAN)[0]
    assert path.exists()
    assert find_build(VULKAN).path == made
    assert builds.remove(DeviceKind.VULKAN) == [f"deleted {made.parent}"]
    assert not made.exists()
    assert cpu.exists()
    with pytest.raises(NoBuild, match="nothing to remove for vulkan"):
        builds.remove(DeviceKind.VULKAN)
    builds.remove(DeviceKind.CPU)
    assert list(paths.builds_dir().iterdir()) == []


def test_list_shows_the_broken_ones_too_and_which_one_is_taken(home: Path) -> None:
    broken = make("2", DeviceKind.CPU, "2026-02-01")
    script(broken, "exit 7")
    vulkan = make("1", DeviceKind.VULKAN, "2026-01-01", CARD)
    listed = builds.list_builds()
    assert [(e.candidate.path, e.build is None) for e in listed] == [(broken, True), (vulkan, False)]
    assert "exit code 7" in (listed[0].problem or "")
    for device in (CPU, VULKAN):
        build = builds.taken(listed, device)
        assert build is not None
        assert build.path == vulkan == find_build(device).path
    assert builds.taken(listed, Device(DeviceKind.CUDA)) is None
