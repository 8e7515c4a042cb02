"""What cannot be read is never taken for "no limit"."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.unit.memory.trees import GIB, MIB, V1_MOUNT, V2_MOUNT, make_root, v1_group, v2_group

from kvoffload_agent.memory.guard import Refuse, decide
from kvoffload_agent.memory.reader import SnapshotReader


@pytest.mark.parametrize("text", ["", "-1", "12 MB", "0x10", "\x00\x01", "\uff11\uff12", "max max"])
def test_a_damaged_v2_limit_refuses(tmp_path: Path, text: str) -> None:
    root = make_root(
        tmp_path,
        cgroup="0::/a\n",
        mountinfo=V2_MOUNT.format(root="/"),
        files={**v2_group("a", limit=str(4 * GIB)), "sys/fs/cgroup/a/memory.max": text},
    )
    verdict = decide(SnapshotReader(root=root)(), MIB, None)
    assert isinstance(verdict, Refuse)
    assert "memory.max" in verdict.reason


@pytest.mark.parametrize("missing", ["memory.current", "memory.usage_in_bytes"])
def test_a_limit_without_usage_refuses(tmp_path: Path, missing: str) -> None:
    old = missing.endswith("in_bytes")
    root = make_root(
        tmp_path,
        cgroup="4:memory:/a\n" if old else "0::/a\n",
        mountinfo=(V1_MOUNT if old else V2_MOUNT).format(root="/"),
        files=v1_group("a", limit=str(GIB)) if old else v2_group("a", limit=str(GIB)),
    )
    (root / "sys/fs/cgroup" / ("memory/a" if old else "a") / missing).unlink()
    assert isinstance(decide(SnapshotReader(root=root)(), MIB, None), Refuse)


def test_binary_garbage_in_a_figure_refuses(tmp_path: Path) -> None:
    root = make_root(
        tmp_path,
        cgroup="0::/a\n",
        mountinfo=V2_MOUNT.format(root="/"),
        files=v2_group("a", limit=str(GIB)),
    )
    (root / "sys/fs/cgroup/a/memory.current").write_bytes(b"\xff\xfe\x00")
    assert isinstance(decide(SnapshotReader(root=root)(), MIB, None), Refuse)


def test_without_memory_stat_no_page_cache_is_credited(tmp_path: Path) -> None:
    root = make_root(
        tmp_path,
        cgroup="0::/a\n",
        mountinfo=V2_MOUNT.format(root="/"),
        files=v2_group("a", limit=str(GIB), usage=GIB - MIB, inactive_file=500 * MIB),
    )
    (root / "sys/fs/cgroup/a/memory.stat").unlink()
    assert isinstance(decide(SnapshotReader(root=root)(), MIB, None), Refuse)


def test_with_nothing_readable_at_all_the_guard_refuses(tmp_path: Path) -> None:
    snapshot = SnapshotReader(root=tmp_path)()
    verdict = decide(snapshot, MIB, None)
    assert isinstance(verdict, Refuse)
    assert verdict.limited_by == "no memory limit or figure is readable"
    assert len(snapshot.problems) == 2


def test_a_path_that_climbs_out_of_the_mount_falls_back_to_the_mount_itself(
    tmp_path: Path,
) -> None:
    root = make_root(
        tmp_path,
        cgroup="0::/../../elsewhere\n",
        mountinfo=V2_MOUNT.format(root="/"),
        files=v2_group("", limit=str(GIB), usage=GIB),
    )
    assert isinstance(decide(SnapshotReader(root=root)(), MIB, None), Refuse)
