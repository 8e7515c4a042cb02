"""The command lines of the control plane's programs."""

from __future__ import annotations

from pathlib import Path

from tests.cluster.credentials import KeyPair

LOOPBACK = "127.0.0.1"
# There is no kubelet: these would taint Nodes for missing heartbeats, evict their pods, and patch
# every Node with address ranges and hints.
ABSENT_CONTROLLERS = (
    "node-lifecycle-controller",
    "taint-eviction-controller",
    "node-ipam-controller",
    "ttl-controller",
)


def etcd_flags(*, url: str, data: Path) -> list[str]:
    """Return etcd's flags: one member, and no waiting for a disk whose data nobody keeps."""
    return [
        f"--data-dir={data}",
        f"--listen-client-urls={url}",
        f"--advertise-client-urls={url}",
        f"--listen-peer-urls=http://{LOOPBACK}:0",
        "--unsafe-no-fsync",
        "--log-level=warn",
    ]


def api_server_flags(
    *,
    port: int,
    etcd_url: str,
    ca_file: Path,
    serving: KeyPair,
    signing: KeyPair,
    bind: str = LOOPBACK,
) -> list[str]:
    """Return kube-apiserver's flags: certificates, tokens and RBAC as in a real cluster."""
    return [
        f"--etcd-servers={etcd_url}",
        f"--bind-address={bind}",
        f"--secure-port={port}",
        # Nothing reaches it through its Service, and a loopback address is refused there.
        f"--advertise-address={LOOPBACK}",
        "--endpoint-reconciler-type=none",
        "--service-cluster-ip-range=10.0.0.0/24",
        f"--client-ca-file={ca_file}",
        f"--tls-cert-file={serving.certificate}",
        f"--tls-private-key-file={serving.key}",
        # The default API audience is the issuer: a token for the agent's audience is of no use
        # at the API server, as in a real cluster.
        "--service-account-issuer=https://kubernetes.default.svc.cluster.local",
        f"--service-account-key-file={signing.certificate}",
        f"--service-account-signing-key-file={signing.key}",
        "--authorization-mode=Node,RBAC",
        "--enable-admission-plugins=NodeRestriction",
        "--allow-privileged=true",
        "--profiling=false",
        # Without it SIGTERM waits a minute for clients to close their watches.
        "--shutdown-watch-termination-grace-period=1s",
    ]


def controller_manager_flags(
    *,
    kubeconfig: Path,
    ca_file: Path,
    signing: KeyPair,
    absent: tuple[str, ...] = ABSENT_CONTROLLERS,
) -> list[str]:
    """Return kube-controller-manager's flags: every controller that makes sense here."""
    controllers = ",".join(["*", *(f"-{name}" for name in absent)])
    return [
        f"--kubeconfig={kubeconfig}",
        f"--controllers={controllers}",
        "--leader-elect=false",
        "--use-service-account-credentials",
        f"--service-account-private-key-file={signing.key}",
        f"--root-ca-file={ca_file}",
        "--secure-port=0",
        # Its defaults of 20 and 30 are what a test with thousands of objects would wait for.
        "--kube-api-qps=200",
        "--kube-api-burst=400",
    ]
