"""The kernel of a pure v2 tree tells by itself what the pressure loop listens for.

The loop polls too, so a running agent cannot show that it was told: its listener alone can.
"""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.harness.cgroups import Group
from tests.integration.agent.agent import eventually
from tests.integration.agent.hungry import MIB

pytestmark = pytest.mark.cgroup

# "stalled" is what the group's own PSI trigger says, "news" what memory.events says: below the root
# that it is given is no /proc/pressure.
LISTENING = """
import select, sys, time
from pathlib import Path
from kvoffload_agent.memory.notifications import Notifications
notifications = Notifications(root=Path(sys.argv[1]))
print(*notifications.listening, sep="\\n", end="\\n\\n", flush=True)
waiting = select.poll()
waiting.register(notifications.fileno(), select.POLLIN)
while True:
    waiting.poll()
    print("stalled" if notifications.take() else "news", flush=True)
    time.sleep(0.02)
"""
CACHING = """
import sys
with open(sys.argv[1], "wb") as file:
    for _ in range(96):
        file.write(bytes(1 << 20))
"""
GROWING = "kept = b'x' * (96 << 20)"


@pytest.fixture
def group() -> Iterator[Group]:
    made = Group(None)
    yield made
    made.remove()


class Listener:
    """A process in a group, and what it was told."""

    def __init__(self, group: Group, root: Path) -> None:
        self._process = subprocess.Popen(
            [*group.enter(), sys.executable, "-c", LISTENING, str(root)],
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self._process.stdout is not None
        self.listening = list(iter(self._line, ""))
        self.told: list[str] = []
        self._thread = threading.Thread(target=self._listen, daemon=True)
        self._thread.start()

    def _line(self) -> str:
        assert self._process.stdout is not None
        return self._process.stdout.readline().strip()

    def _listen(self) -> None:
        while line := self._line():
            self.told.append(line)

    def close(self) -> None:
        self._process.kill()
        self._process.wait()
        self._thread.join(timeout=10)
        assert self._process.stdout is not None
        self._process.stdout.close()


@pytest.fixture
def listener(group: Group, tmp_path: Path) -> Iterator[Listener]:
    root = tmp_path / "root"
    (root / "proc").mkdir(parents=True)
    (root / "proc/self").symlink_to("/proc/self")
    (root / "sys").symlink_to("/sys")
    made = Listener(group, root)
    yield made
    made.close()


def test_reclaim_at_memory_high_comes_as_an_event_and_a_throttled_group_as_a_stall(
    group: Group, listener: Listener, tmp_path: Path
) -> None:
    told_by = [line.removeprefix(str(tmp_path / "root")) for line in listener.listening]
    assert told_by == [f"{group.path}/memory.events", f"{group.path}/memory.pressure"]
    assert listener.told == []
    # Page cache beyond it is reclaimed: nobody has to wait for long.
    (group.path / "memory.high").write_text(str(group.usage + 32 * MIB))
    subprocess.run(
        [*group.enter(), sys.executable, "-c", CACHING, str(tmp_path / "cache")],
        timeout=250,
        check=True,
    )
    assert group.figure("memory.events", "high") > 0
    eventually(lambda: "news" in listener.told, what="the news of memory.events")
    # Without swap what a process has itself can't be reclaimed: it is made to wait.
    growing = subprocess.Popen([*group.enter(), sys.executable, "-c", GROWING])
    try:
        eventually(lambda: "stalled" in listener.told, what="the news of a stall")
    finally:
        growing.kill()
        growing.wait()
    assert group.oom_kills == 0
