"""What only a cgroup v2 tree can show; run by ``python -m tests.guest``, not on the host."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.harness.cgroups import ROOT, Group, version

MIB = 1 << 20
pytestmark = pytest.mark.cgroup


@pytest.fixture
def groups() -> Iterator[list[Group]]:
    """Hold groups, outermost first; removed last first."""
    assert version() == 2
    made: list[Group] = []
    yield made
    for group in reversed(made):
        group.remove()


def test_no_v1_hierarchy_is_mounted_and_pressure_is_reported() -> None:
    assert " cgroup " not in Path("/proc/self/mountinfo").read_text()
    assert "memory" in (ROOT / "cgroup.controllers").read_text().split()
    assert Path("/proc/pressure/memory").read_text().startswith("some avg10=")


def test_the_kernel_kills_who_fills_shared_memory_past_memory_max(groups: list[Group]) -> None:
    groups.append(Group(64 * MIB))
    # Close to the limit: the kernel sleeps up to 2 s for each 256 KiB above memory.high.
    (groups[0].path / "memory.high").write_text(str(62 * MIB))
    code = (
        "import os, mmap\n"
        "fd = os.memfd_create('x'); os.ftruncate(fd, 128 << 20); m = mmap.mmap(fd, 128 << 20)\n"
        "m.madvise(23)  # MADV_POPULATE_WRITE\n"
    )
    done = subprocess.run(
        [*groups[0].enter(), sys.executable, "-c", code], timeout=250, check=False
    )
    assert done.returncode == -9
    assert groups[0].oom_kills == 1
    assert groups[0].figure("memory.events", "high") > 0
    assert groups[0].figure("memory.events", "max") > 0
    pressure = (groups[0].path / "memory.pressure").read_text()
    assert int(pressure.splitlines()[0].rpartition("total=")[2]) > 0
