"""What processes hold: a real one, and DRM clients laid out as files."""

from __future__ import annotations

import os
import subprocess
import sys

import psutil
import pytest

from onebit.memory.footprint import process_bytes, seen_free
from tests.memory.trees import Machine

MIB = 1 << 20
PID = 4242
AMD_OLD = """drm-driver:\tamdgpu
drm-client-id:\t{client}
drm-pdev:\t0000:c5:00.0
drm-memory-vram:\t1024 KiB
drm-memory-gtt: \t3 MiB
drm-memory-cpu: \t512 KiB
drm-engine-gfx:\t12345 ns"""
AMD_NEW = """drm-driver:\tamdgpu
drm-client-id:\t{client}
drm-pdev:\t0000:c5:00.0
drm-total-vram:\t9 MiB
drm-shared-vram:\t0
drm-resident-vram:\t2 MiB
drm-memory-vram:\t2 MiB
drm-total-gtt:\t1048576
drm-total-cpu:\t7 MiB"""
XE = """drm-driver:\txe
drm-client-id:\t{client}
drm-pdev:\t0000:03:00.0
drm-total-vram0:\t23992 KiB
drm-resident-vram0:\t1 MiB
drm-resident-system:\t0"""

pytestmark = pytest.mark.anyio


@pytest.mark.skipif(sys.platform != "linux", reason="/proc")
def test_a_real_process_holds_what_it_touched() -> None:
    code = "import sys; held = bytes(1) * (64 << 20); print('ready', flush=True); sys.stdin.read()"
    with subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        assert child.stdin is not None and child.stdout is not None
        child.stdout.readline()
        held = process_bytes(child.pid, True)
        assert held is not None
        assert held >= 64 * MIB
        assert held == pytest.approx(psutil.Process(child.pid).memory_full_info().pss, abs=MIB)
        assert process_bytes(child.pid, False) is None  # it has no card open
        child.stdin.close()
    assert process_bytes(child.pid, True) is None  # gone


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        (AMD_OLD, 4 * MIB),  # what was moved out to "cpu" is not the card's
        (AMD_NEW, 3 * MIB),  # resident before total; a figure without a unit is bytes
        (XE, MIB),
        ("drm-driver:\tnouveau\ndrm-client-id:\t{client}", 0),
    ],
)
def test_the_memory_of_a_drm_client(machine: Machine, lines: str, expected: int) -> None:
    machine.client(PID, 5, lines.format(client=1))
    machine.client(PID, 6, lines.format(client=1))  # a duplicate of the same open device
    machine.client(PID, 7, "eventfd-count: 0")
    assert process_bytes(PID, False, proc=machine.proc, sys=machine.sys) == expected
    machine.client(PID, 8, lines.format(client=2))
    assert process_bytes(PID, False, proc=machine.proc, sys=machine.sys) == 2 * expected


def test_the_same_client_number_on_two_cards_is_two_clients(machine: Machine) -> None:
    machine.client(PID, 5, AMD_OLD.format(client=1))
    machine.client(PID, 6, XE.format(client=1))
    assert process_bytes(PID, False, proc=machine.proc, sys=machine.sys) == 5 * MIB


def test_the_compute_side_counts_where_it_says_more(machine: Machine) -> None:
    machine.client(PID, 5, AMD_OLD.format(client=1))
    machine.write({f"sys/class/kfd/kfd/proc/{PID}/vram_{card}": 10 * MIB for card in (3011, 45)})
    assert process_bytes(PID, False, proc=machine.proc, sys=machine.sys) == 20 * MIB


def test_nothing_known_is_none(machine: Machine) -> None:
    assert process_bytes(PID, False, proc=machine.proc, sys=machine.sys) is None
    machine.client(PID, 5, "pos: 0")
    assert process_bytes(PID, False, proc=machine.proc, sys=machine.sys) is None
    machine.write({f"sys/class/kfd/kfd/proc/{PID}/vram_1": "", f"proc/{PID}/smaps_rollup": "Rss: 12 kB"})
    assert process_bytes(PID, False, proc=machine.proc, sys=machine.sys) is None
    assert process_bytes(PID, True, proc=machine.proc, sys=machine.sys) is None


@pytest.mark.parametrize(("said", "expected"), [(7, 7), (None, 4 * MIB)])
def test_nvml_comes_first(machine: Machine, said: int | None, expected: int) -> None:
    machine.client(PID, 5, AMD_OLD.format(client=1))

    def nvidia(pid: int) -> int | None:
        assert pid == PID
        return said

    assert process_bytes(PID, False, nvidia=nvidia, proc=machine.proc, sys=machine.sys) == expected


# --- freed? -------------------------------------------------------------------------------------------------


async def test_freed_memory_is_seen_when_the_driver_is_late() -> None:
    readings = iter([10, 10, 55, 90])
    assert await seen_free(lambda: next(readings), 50, every=0)
    assert next(readings) == 90  # it stopped asking


async def test_memory_that_is_never_freed_is_not_believed_free() -> None:
    assert not await seen_free(lambda: 10, 50, timeout=0.01, every=0)


async def test_where_nobody_can_know_the_gone_process_is_the_evidence() -> None:
    assert await seen_free(lambda: None, 50)


@pytest.mark.skipif(os.name != "posix", reason="processes")
def test_another_users_process_is_not_known(machine: Machine) -> None:
    machine.client(PID, 5, AMD_OLD.format(client=1))
    (machine.proc / str(PID) / "fdinfo").rename(machine.proc / str(PID) / "closed")
    assert process_bytes(PID, False, proc=machine.proc, sys=machine.sys) is None
