"""Folders that look like /proc and /sys/fs/cgroup of some machine, as a process in it sees them.

Paths and texts follow what kind (v2), EKS and GKE nodes (v2), a kubelet on v1 and this project's
own development machine (v1 and hybrid) show; figures are made up where a test needs them.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

MIB = 1 << 20
GIB = 1 << 30
V1_NO_LIMIT = "9223372036854771712"

V2_MOUNT = "30 23 0:26 {root} /sys/fs/cgroup rw,nosuid shared:9 - cgroup2 cgroup2 rw,nsdelegate"
V1_MOUNT = "35 31 0:32 {root} /sys/fs/cgroup/memory rw,relatime - cgroup cgroup rw,memory"
HYBRID_V2_MOUNT = "41 31 0:38 / /sys/fs/cgroup/unified rw,relatime - cgroup2 cgroup2 rw"


def make_root(
    root: Path,
    *,
    cgroup: str,
    mountinfo: str,
    files: Mapping[str, str],
    available: int = 32 * GIB,
    total: int = 64 * GIB,
) -> Path:
    """Write the files and return the root; ``files`` are relative to it."""
    every = {
        "proc/self/cgroup": cgroup,
        "proc/self/mountinfo": mountinfo,
        "proc/meminfo": f"MemTotal: {total // 1024} kB\nMemAvailable:   {available // 1024} kB\n",
        "proc/self/status": "Name:\tagent\nVmRSS:\t   51200 kB\n",
        **files,
    }
    for name, text in every.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


def v2_group(
    path: str, *, limit: str, high: str = "max", usage: int = 0, inactive_file: int = 0
) -> dict[str, str]:
    """Return the files of one v2 group."""
    folder = f"sys/fs/cgroup/{path}".rstrip("/")
    return {
        f"{folder}/memory.max": f"{limit}\n",
        f"{folder}/memory.high": f"{high}\n",
        f"{folder}/memory.current": f"{usage}\n",
        f"{folder}/memory.stat": f"anon 0\nfile {inactive_file}\ninactive_file {inactive_file}\n",
    }


def v1_group(
    path: str,
    *,
    limit: str,
    usage: int = 0,
    inactive_file: int = 0,
    hierarchical: str = V1_NO_LIMIT,
) -> dict[str, str]:
    """Return the files of one v1 group."""
    folder = f"sys/fs/cgroup/memory/{path}".rstrip("/")
    return {
        f"{folder}/memory.limit_in_bytes": f"{limit}\n",
        f"{folder}/memory.usage_in_bytes": f"{usage}\n",
        f"{folder}/memory.stat": (
            f"inactive_file 1\nhierarchical_memory_limit {hierarchical}\n"
            f"total_inactive_file {inactive_file}\n"
        ),
    }
