"""The snapshot reader finds each cgroup that limits this process, on v1, v2 and hybrid hosts."""

from __future__ import annotations

from pathlib import Path

from tests.unit.memory.trees import (
    GIB,
    HYBRID_V2_MOUNT,
    MIB,
    V1_MOUNT,
    V1_NO_LIMIT,
    V2_MOUNT,
    make_root,
    v1_group,
    v2_group,
)

from kvoffload_agent.memory.guard import headroom
from kvoffload_agent.memory.reader import SnapshotReader

POD = "kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod1f2e.slice"


def test_on_v2_the_pod_slice_above_an_unlimited_container_is_the_limit(tmp_path: Path) -> None:
    root = make_root(
        tmp_path,
        cgroup=f"0::/{POD}/cri-containerd-9c.scope\n",
        mountinfo=V2_MOUNT.format(root="/"),
        files={
            **v2_group(f"{POD}/cri-containerd-9c.scope", limit="max", usage=20 * MIB),
            **v2_group(POD, limit=str(2 * GIB), usage=600 * MIB, inactive_file=100 * MIB),
            **v2_group("kubepods.slice/kubepods-burstable.slice", limit="max"),
            **v2_group("kubepods.slice", limit=str(60 * GIB), usage=10 * GIB),
        },
    )
    snapshot = SnapshotReader(root=root)()
    assert [level.path for level in snapshot.levels] == [
        f"/{POD}/cri-containerd-9c.scope",
        f"/{POD}",
        "/kubepods.slice/kubepods-burstable.slice",
        "/kubepods.slice",
    ]
    room = headroom(snapshot)
    assert room.limit == 2 * GIB
    assert room.bytes == 2 * GIB - (600 - 100) * MIB - 64 * MIB
    assert POD in room.limited_by


def test_on_v2_memory_high_below_memory_max_is_the_limit(tmp_path: Path) -> None:
    root = make_root(
        tmp_path,
        cgroup="0::/kubelet.slice\n",
        mountinfo=V2_MOUNT.format(root="/"),
        files=v2_group("kubelet.slice", limit=str(4 * GIB), high=str(3 * GIB)),
    )
    room = headroom(SnapshotReader(root=root)())
    assert room.limit == 3 * GIB
    assert room.limited_by.startswith("memory.high")


def test_a_cgroup_namespace_shows_the_container_at_the_root(tmp_path: Path) -> None:
    root = make_root(
        tmp_path,
        cgroup="0::/\n",
        mountinfo=V2_MOUNT.format(root="/"),
        files=v2_group("", limit=str(GIB), usage=100 * MIB),
    )
    assert headroom(SnapshotReader(root=root)()).limit == GIB


def test_a_mount_of_a_part_of_the_hierarchy_is_understood(tmp_path: Path) -> None:
    root = make_root(
        tmp_path,
        cgroup="4:memory:/docker/abc/inner\n",
        mountinfo=V1_MOUNT.format(root="/docker/abc"),
        files={
            **v1_group("inner", limit=V1_NO_LIMIT),
            **v1_group("", limit=str(3 * GIB), usage=GIB),
        },
    )
    snapshot = SnapshotReader(root=root)()
    assert [level.path for level in snapshot.levels] == ["/inner", "/"]
    assert headroom(snapshot).limit == 3 * GIB


def test_on_v1_a_hidden_ancestor_counts_by_hierarchical_memory_limit(tmp_path: Path) -> None:
    root = make_root(
        tmp_path,
        cgroup="4:memory:/\n",
        mountinfo=V1_MOUNT.format(root="/"),
        files=v1_group("", limit=V1_NO_LIMIT, usage=200 * MIB, hierarchical=str(512 * MIB)),
    )
    room = headroom(SnapshotReader(root=root)())
    assert room.limit == 512 * MIB
    assert room.bytes == (512 - 200 - 64) * MIB
    assert "hidden ancestor" in room.limited_by


def test_on_a_hybrid_host_the_hierarchy_with_the_memory_controller_counts(
    tmp_path: Path,
) -> None:
    root = make_root(
        tmp_path,
        cgroup="9:name=systemd:/\n4:memory:/jobs/one\n1:cpu,cpuacct:/x\n0::/\n",
        mountinfo="\n".join((HYBRID_V2_MOUNT, V1_MOUNT.format(root="/"), "garbage")),
        files={
            **v1_group("jobs/one", limit=str(GIB), usage=10 * MIB),
            **v1_group("jobs", limit=V1_NO_LIMIT),
            **v1_group("", limit=V1_NO_LIMIT),
            "sys/fs/cgroup/unified/cgroup.procs": "1\n",
        },
    )
    snapshot = SnapshotReader(root=root)()
    assert {level.version for level in snapshot.levels} == {1}
    assert headroom(snapshot).limit == GIB


def test_a_mount_point_with_blanks_is_found(tmp_path: Path) -> None:
    root = make_root(
        tmp_path,
        cgroup="0::/\n",
        mountinfo="30 23 0:26 / /host\\040cgroup rw - cgroup2 cgroup2 rw",
        files={
            "host cgroup/memory.max": f"{GIB}",
            "host cgroup/memory.current": "0",
        },
    )
    assert headroom(SnapshotReader(root=root)()).limit == GIB


def test_the_explicit_limit_counts_against_the_own_groups_usage(tmp_path: Path) -> None:
    root = make_root(
        tmp_path,
        cgroup="0::/\n",
        mountinfo=V2_MOUNT.format(root="/"),
        files=v2_group("", limit="max", usage=300 * MIB),
    )
    room = headroom(SnapshotReader(root=root, explicit_limit=GIB)())
    assert room.bytes == (1024 - 300 - 64) * MIB
    assert room.limited_by == "explicit limit"


def test_without_any_cgroup_the_explicit_limit_counts_against_the_resident_set(
    tmp_path: Path,
) -> None:
    root = make_root(tmp_path, cgroup="", mountinfo="", files={})
    snapshot = SnapshotReader(root=root, explicit_limit=GIB)()
    assert snapshot.levels == ()
    assert headroom(snapshot).bytes == (1024 - 50 - 64) * MIB


def test_the_nodes_available_memory_counts(tmp_path: Path) -> None:
    root = make_root(
        tmp_path,
        cgroup="0::/\n",
        mountinfo=V2_MOUNT.format(root="/"),
        files=v2_group("", limit=str(16 * GIB)),
        available=GIB,
        total=8 * GIB,
    )
    room = headroom(SnapshotReader(root=root)())
    assert room.limited_by == "node (MemAvailable)"
    assert room.bytes == GIB - 8 * GIB // 50
    reserved = headroom(SnapshotReader(root=root)(), reserved=900 * MIB)
    assert reserved.bytes == GIB - 900 * MIB


def test_limits_are_read_again_each_time(tmp_path: Path) -> None:
    files = v2_group("", limit=str(4 * GIB))
    root = make_root(tmp_path, cgroup="0::/\n", mountinfo=V2_MOUNT.format(root="/"), files=files)
    reader = SnapshotReader(root=root)
    assert headroom(reader()).limit == 4 * GIB
    (root / "sys/fs/cgroup/memory.max").write_text(str(2 * GIB))
    assert headroom(reader()).limit == 2 * GIB
