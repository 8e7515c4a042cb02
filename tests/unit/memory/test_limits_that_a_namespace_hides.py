"""A mount of the host's cgroup tree and a file of the Downward API tell limits that are hidden."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.unit.memory.trees import (
    GIB,
    MIB,
    V1_MOUNT,
    V2_MOUNT,
    make_root,
    v1_group,
    v2_group,
)

from kvoffload_agent.memory.guard import Admit, Refuse, decide, headroom
from kvoffload_agent.memory.hosttree import HostTree
from kvoffload_agent.memory.pressure import tightest
from kvoffload_agent.memory.reader import SnapshotReader

POD = "kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod1f2e.slice"
CONTAINER = f"{POD}/cri-containerd-9c.scope"
V2_HOST = "host/sys/fs/cgroup"


def hosts(files: dict[str, str]) -> dict[str, str]:
    """Return files of groups as they lie in the mount of the host's tree."""
    return {f"host/{name}": text for name, text in files.items()}


def v2_container(root: Path, *, pod_limit: int = 2 * GIB) -> Path:
    """Record a container in a namespace of its own: the same group at both places.

    A symbolic link stands for what two mounts of one hierarchy share: device and inode.
    """
    make_root(
        root,
        cgroup="0::/\n",
        mountinfo=V2_MOUNT.format(root="/"),
        files=hosts(
            {
                **v2_group(CONTAINER, limit="max", usage=100 * MIB),
                **v2_group(f"{POD}/cri-containerd-other.scope", limit=str(100 * MIB)),
                **v2_group(POD, limit=str(pod_limit), usage=600 * MIB, inactive_file=100 * MIB),
                **v2_group("kubepods.slice/kubepods-burstable.slice", limit="max"),
                **v2_group("kubepods.slice", limit=str(60 * GIB), usage=10 * GIB),
            }
        ),
    )
    (root / "sys/fs").mkdir(parents=True)
    (root / "sys/fs/cgroup").symlink_to(root / V2_HOST / CONTAINER)
    return root


def test_on_v2_the_hosts_tree_shows_the_pods_limit_that_the_namespace_hides(
    tmp_path: Path,
) -> None:
    root = v2_container(tmp_path)
    assert headroom(SnapshotReader(root=root)()).limit == 64 * GIB, "hidden: the node's memory"
    snapshot = SnapshotReader(root=root, host_cgroups=root / V2_HOST)()
    assert [level.path for level in snapshot.levels] == [
        f"/{CONTAINER}",
        f"/{POD}",
        "/kubepods.slice/kubepods-burstable.slice",
        "/kubepods.slice",
    ]
    room = headroom(snapshot)
    assert room.limit == 2 * GIB
    assert room.bytes == 2 * GIB - (600 - 100) * MIB - 64 * MIB
    assert POD in room.limited_by


def test_on_v1_the_hosts_tree_shows_the_pods_usage_too(tmp_path: Path) -> None:
    limit = str(2 * GIB)
    make_root(
        tmp_path,
        cgroup="5:memory:/\n",
        mountinfo=V1_MOUNT.format(root="/"),
        files=hosts(
            {
                **v1_group(CONTAINER, limit="9223372036854771712", hierarchical=limit, usage=MIB),
                **v1_group(POD, limit=limit, usage=1536 * MIB),
            }
        ),
    )
    (tmp_path / "sys/fs/cgroup").mkdir(parents=True)
    memory = tmp_path / V2_HOST / "memory"
    (tmp_path / "sys/fs/cgroup/memory").symlink_to(memory / CONTAINER)
    alone = headroom(SnapshotReader(root=tmp_path)())
    seen = headroom(SnapshotReader(root=tmp_path, host_cgroups=tmp_path / V2_HOST)())
    assert alone.bytes == 2 * GIB - MIB - 64 * MIB, "a neighbour in the pod is not seen"
    assert seen.bytes == 512 * MIB - 64 * MIB
    assert POD in seen.limited_by


def test_a_process_that_is_moved_is_found_again(tmp_path: Path) -> None:
    root = v2_container(tmp_path)
    reader = SnapshotReader(root=root, host_cgroups=root / V2_HOST)
    assert headroom(reader()).limit == 2 * GIB
    link = root / "sys/fs/cgroup"
    link.unlink()
    link.symlink_to(root / V2_HOST / f"{POD}/cri-containerd-other.scope")
    assert headroom(reader()).limit == 100 * MIB


@pytest.mark.parametrize("tree", ["nowhere", f"{V2_HOST}/system.slice"])
def test_a_tree_without_the_own_group_permits_nothing_and_says_so(
    tmp_path: Path, tree: str
) -> None:
    root = v2_container(tmp_path)
    (root / V2_HOST / "system.slice").mkdir()
    snapshot = SnapshotReader(root=root, host_cgroups=root / tree)()
    verdict = decide(snapshot, MIB, None)
    assert isinstance(verdict, Refuse)
    assert "is not in it" in verdict.reason
    assert "host cgroup tree" in " ".join(level.path for level in snapshot.bounds())


def test_what_is_visible_is_still_relieved_where_the_hosts_tree_is_wrong(tmp_path: Path) -> None:
    root = make_root(
        tmp_path,
        cgroup="0::/pod\n",
        mountinfo=V2_MOUNT.format(root="/"),
        files=v2_group("pod", limit=str(GIB), usage=GIB),
    )
    slack = tightest(SnapshotReader(root=root, host_cgroups=root / "nowhere")())
    assert slack is not None
    assert slack.bytes == 0


def test_a_tree_where_no_cgroup_is_visible_permits_nothing(tmp_path: Path) -> None:
    (level,) = HostTree(tree=tmp_path, root=tmp_path).levels()
    assert level.problem == "no memory cgroup of this process is visible"


def test_the_file_of_the_downward_api_is_followed_both_ways(tmp_path: Path) -> None:
    root = make_root(tmp_path, cgroup="", mountinfo="", files={"etc/podinfo/limit": f"{GIB}\n"})
    file = root / "etc/podinfo/limit"
    reader = SnapshotReader(root=root, limit_file=file)
    assert headroom(reader()).limit == GIB
    file.write_text(str(256 * MIB))
    assert headroom(reader()).limit == 256 * MIB
    file.write_text(str(2 * GIB))
    assert headroom(reader()).limit == 2 * GIB


def test_of_a_stated_limit_and_a_file_the_smaller_counts(tmp_path: Path) -> None:
    root = make_root(tmp_path, cgroup="", mountinfo="", files={"limit": str(2 * GIB)})
    reader = SnapshotReader(root=root, explicit_limit=GIB, limit_file=root / "limit")
    assert headroom(reader()).limit == GIB
    (root / "limit").write_text(str(512 * MIB))
    assert headroom(reader()).limit == 512 * MIB


@pytest.mark.parametrize("text", ["", "0", "max", "-1", "1e9", "12\N{SUPERSCRIPT TWO}", None])
def test_a_file_that_holds_no_limit_permits_nothing_until_it_does(
    tmp_path: Path, text: str | None
) -> None:
    root = make_root(tmp_path, cgroup="", mountinfo="", files={})
    file = root / "limit"
    if text is not None:
        file.write_text(text)
    reader = SnapshotReader(root=root, limit_file=file)
    assert isinstance(decide(reader(), MIB, None), Refuse)
    assert "memory limit file" in " ".join(level.path for level in reader().bounds())
    file.write_text(str(GIB))
    assert isinstance(decide(reader(), MIB, None), Admit)
