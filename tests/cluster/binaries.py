"""Where the control plane's programs are, and what they are built from."""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tools.progress import cache_directory

HERE = Path(__file__).resolve().parent
# What envtest's users set to a folder with etcd, kube-apiserver and kubectl.
ASSETS_VARIABLE = "KUBEBUILDER_ASSETS"
BUILD_COMMAND = "python3 tools/setup.py cluster"


class MissingBinaryError(Exception):
    """A program of the control plane was not built yet; the message says how to build it."""


@dataclass(frozen=True, kw_only=True)
class Binary:
    """One program: its name, the folder of the Go module that pins it, its Go package."""

    name: str
    module: str
    package: str


# The order of the build: kubectl and kube-controller-manager reuse what kube-apiserver compiled.
BINARIES = (
    Binary(name="etcd", module="etcd", package="go.etcd.io/etcd/server/v3"),
    *(
        Binary(name=name, module="kubernetes", package=f"k8s.io/kubernetes/cmd/{name}")
        for name in ("kube-apiserver", "kubectl", "kube-controller-manager")
    ),
)

# What tests of the chart need besides; it has a folder of its own in the cache, so that neither a
# new Helm nor a new Kubernetes builds the other again.
HELM = Binary(name="helm", module="helm", package="helm.sh/helm/v4/cmd/helm")
HELM_BUILD_COMMAND = "python -m tests.cluster build --helm"

# What the node level needs besides. Each group has a folder of its own in the cache, as Helm does.
# Debian's containerd is too old for this kubelet.
NODE_BINARIES = (
    *(
        Binary(name=name, module="node", package=f"k8s.io/kubernetes/cmd/{name}")
        for name in ("kubelet", "kube-scheduler")
    ),
    *(
        Binary(
            name=name,
            module="containerd",
            package=f"github.com/containerd/containerd/v2/cmd/{name}",
        )
        for name in ("containerd", "containerd-shim-runc-v2", "ctr")
    ),
)
NODE_BUILD_COMMAND = "python -m tests.cluster build --node"


def locate(name: str) -> Path | None:
    """Return a program's path, or None if it has to be built first."""
    assets = os.environ.get(ASSETS_VARIABLE)
    directories = [Path(assets)] if assets else []
    known = {binary.name: binary for binary in (*BINARIES, HELM, *NODE_BINARIES)}
    for directory in (*directories, folder_of(known[name])):
        candidate = directory / name
        if os.access(candidate, os.X_OK) and candidate.is_file():
            return candidate
    return None


def require() -> dict[str, Path]:
    """Return the path of every program of the control plane, by name.

    Raises:
        MissingBinaryError: at least one has to be built first.
    """
    return _located(
        BINARIES,
        command=BUILD_COMMAND,
        cost="7 to 15 min the first time on 2 cores; `make test` does it by itself",
    )


def require_helm() -> Path:
    """Return the path of Helm.

    Raises:
        MissingBinaryError: it has to be built first.
    """
    found = _located(
        (HELM,),
        command=HELM_BUILD_COMMAND,
        cost="4 min the first time on 2 cores; `make test` does it by itself",
    )
    return found[HELM.name]


def require_node() -> dict[str, Path]:
    """Return the path of every program that the node level builds from Go modules, by name.

    Raises:
        MissingBinaryError: at least one has to be built first.
    """
    return _located(
        NODE_BINARIES, command=NODE_BUILD_COMMAND, cost="5 min the first time on 2 cores"
    )


def _located(binaries: Sequence[Binary], *, command: str, cost: str) -> dict[str, Path]:
    found = {binary.name: locate(binary.name) for binary in binaries}
    missing = [name for name, path in found.items() if path is None]
    if missing:
        raise MissingBinaryError(
            f"not built yet: {', '.join(missing)}; build with `{command}` ({cost})"
        )
    return {name: path for name, path in found.items() if path is not None}


def folder_of(binary: Binary) -> Path:
    """Return where a program is kept once it is built."""
    if binary in BINARIES:
        return built_directory()
    group = [other for other in (HELM, *NODE_BINARIES) if other.module == binary.module]
    return cache_directory() / "cluster" / f"{binary.module}-{pins_digest(group)}"


def built_directory() -> Path:
    """Return where the control plane's programs of this checkout's Go modules are kept."""
    return cache_directory() / "cluster" / pins_digest(BINARIES)


def pins_digest(binaries: Sequence[Binary]) -> str:
    """Return the hash of what pins the programs."""
    digest = hashlib.sha256()
    for module in sorted({binary.module for binary in binaries}):
        for name in ("go.mod", "go.sum"):
            digest.update((HERE / module / name).read_bytes())
    return digest.hexdigest()[:16]


def kubernetes_version() -> str:
    """Return the pinned Kubernetes version, such as "v1.36.3"."""
    text = (HERE / "kubernetes" / "go.mod").read_text()
    found = re.search(r"k8s\.io/kubernetes (v\S+)", text)
    if found is None:
        raise AssertionError("kubernetes/go.mod no longer requires k8s.io/kubernetes")
    return found.group(1)


def needed_go() -> tuple[int, ...]:
    """Return the lowest Go version that builds every module."""
    return max(
        version(re.search(r"^go (\S+)$", (HERE / module / "go.mod").read_text(), re.MULTILINE))
        for module in {binary.module for binary in (*BINARIES, HELM, *NODE_BINARIES)}
    )


def version(found: re.Match[str] | None) -> tuple[int, ...]:
    """Return a match's first group ("1.26.0") as numbers; () if there is no match."""
    return tuple(int(part) for part in re.findall(r"\d+", found.group(1))) if found else ()
