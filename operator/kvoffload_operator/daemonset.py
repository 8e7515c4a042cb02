"""The DaemonSet of one agent pool: a pure function of the chart's ConfigMap."""

from collections.abc import Mapping
from typing import Any, Final

from kvoffload_api.hashing import config_hash
from kvoffload_operator.pools import INTENT_ANNOTATION, POOL_LABEL, AgentsConfig, Pool
from kvoffload_operator.resources import MANAGED_BY

Json = Mapping[str, Any]

SERVICE_ACCOUNT: Final = "kvoffload-agent"
# Of the agent's image; the socket's and the state's folder are given to it.
AGENT_UID: Final = 65532
HTTP_PORT: Final = 9808
_SOCKET: Final = "agent.sock"
# A new agent must hold up this long before the next node's is restarted.
_MIN_READY_S: Final = 30
# Stores in flight end within 20 s; twice that and the agent's own end.
_GRACE_S: Final = 60
_TOKEN_S: Final = 3600
# Importing the program alone takes 96 MiB; twice that.
_PROGRAM_MEMORY: Final = "192Mi"
# Kubelet's own constant, whatever its root directory is.
_KUBELET: Final = "/var/lib/kubelet/device-plugins"


def daemonset_name(pool: Pool) -> str:
    """Return the name of a pool's DaemonSet."""
    return f"kvoffload-agent-{pool.name}"


def render(*, config: AgentsConfig, pool: Pool, owner: Json) -> Json:
    """Return every field of a pool's DaemonSet that is ours, without ``apiVersion`` and ``kind``.

    Nothing of it comes from policies, so a changed policy restarts no agent.

    Args:
        config: What the chart says about agents.
        pool: One of its pools.
        owner: The ConfigMap's ``metadata``; it owns the DaemonSet.
    """
    labels = {"app.kubernetes.io/name": "kvoffload-agent", POOL_LABEL: pool.name}
    body = {
        "spec": {
            "selector": {"matchLabels": labels},
            "updateStrategy": {
                "type": "RollingUpdate",
                "rollingUpdate": {"maxUnavailable": config.max_unavailable, "maxSurge": 0},
            },
            "minReadySeconds": _MIN_READY_S,
            "revisionHistoryLimit": 3,
            "template": {
                "metadata": {"labels": {**labels, "app.kubernetes.io/part-of": "kvoffload"}},
                "spec": _pod(config, pool),
            },
        },
    }
    metadata = {
        "name": daemonset_name(pool),
        "namespace": owner["namespace"],
        "labels": {**labels, **MANAGED_BY, "app.kubernetes.io/part-of": "kvoffload"},
        "annotations": {INTENT_ANNOTATION: config_hash(body)},
        "ownerReferences": [
            {
                "apiVersion": "v1",
                "kind": "ConfigMap",
                "name": owner["name"],
                "uid": owner["uid"],
            }
        ],
    }
    return {"metadata": metadata, **body}


def _pod(config: AgentsConfig, pool: Pool) -> Json:
    pod: dict[str, Any] = {
        "serviceAccountName": SERVICE_ACCOUNT,
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "terminationGracePeriodSeconds": _GRACE_S,
        "nodeSelector": dict(pool.node_selector),
        "securityContext": {"seccompProfile": {"type": "RuntimeDefault"}},
        "initContainers": [_prepare(config)],
        "containers": [_agent(config, pool)],
        "volumes": [
            _host("sockets", config.socket_directory),
            _host("state", config.state_directory),
            _credentials(),
            {"name": "tmp", "emptyDir": {"sizeLimit": "64Mi"}},
        ],
    }
    if config.device_plugin:
        pod["containers"].append(_plugin(config))
        pod["volumes"].append(_host("kubelet", _KUBELET))
    if pool.tolerations:
        pod["tolerations"] = [dict(item) for item in pool.tolerations]
    if config.priority_class_name:
        pod["priorityClassName"] = config.priority_class_name
    if config.image_pull_secrets:
        pod["imagePullSecrets"] = [{"name": name} for name in config.image_pull_secrets]
    return pod


def _prepare(config: AgentsConfig) -> Json:
    """Return the container that gives the node's folders, which kubelet makes, to the agent."""
    return {
        **_container(config, name="prepare"),
        "args": [
            "prepare",
            f"--owner={AGENT_UID}",
            "--public=/run/kvoffload",
            "--private=/var/lib/kvoffload",
        ],
        "resources": {
            "requests": {"cpu": "10m", "memory": _PROGRAM_MEMORY},
            "limits": {"memory": _PROGRAM_MEMORY},
        },
        "securityContext": {
            **_SECURITY,
            "runAsUser": 0,
            "runAsGroup": 0,
            "capabilities": {"drop": ["ALL"], "add": ["CHOWN"]},
        },
        "volumeMounts": _MOUNTS[:2],
    }


def _agent(config: AgentsConfig, pool: Pool) -> Json:
    resources = {kind: dict(values) for kind, values in pool.resources.items()}
    # What is requested is what may be used: kube-scheduler counts the chunks as this pod's.
    requests = {**resources.get("requests", {}), "memory": resources["limits"]["memory"]}
    bound = [f"--host-memory={pool.host_memory}"] if pool.host_memory is not None else []
    return {
        **_container(config, name="agent"),
        "args": [
            "run",
            "--in-cluster",
            f"--socket=/run/kvoffload/{_SOCKET}",
            "--state-dir=/var/lib/kvoffload",
            f"--http=0.0.0.0:{HTTP_PORT}",
            f"--log-format={config.log_format}",
            *bound,
        ],
        "env": [
            {
                "name": "NODE_NAME",
                "valueFrom": {"fieldRef": {"apiVersion": "v1", "fieldPath": "spec.nodeName"}},
            },
            {
                "name": "KVOFFLOAD_MEMORY_LIMIT",
                "valueFrom": {
                    "resourceFieldRef": {"resource": "limits.memory", "divisor": "0"},
                },
            },
        ],
        "ports": [{"name": "http", "containerPort": HTTP_PORT, "protocol": "TCP"}],
        "livenessProbe": _probe("/healthz", period_s=10, failures=6),
        "readinessProbe": _probe("/readyz", period_s=5, failures=2),
        "resources": {**resources, "requests": requests},
        "securityContext": {
            **_SECURITY,
            "runAsNonRoot": True,
            "runAsUser": AGENT_UID,
            "runAsGroup": AGENT_UID,
            "capabilities": {"drop": ["ALL"]},
        },
        "volumeMounts": _MOUNTS,
    }


def _plugin(config: AgentsConfig) -> Json:
    """Return the container that offers kubelet the device; only root may, and it does only that."""
    return {
        **_container(config, name="device-plugin"),
        "args": [
            "device-plugin",
            f"--socket=/run/kvoffload/{_SOCKET}",
            f"--host-directory={config.socket_directory}",
            f"--kubelet-directory={_KUBELET}",
        ],
        "resources": {
            "requests": {"cpu": "10m", "memory": _PROGRAM_MEMORY},
            "limits": {"memory": _PROGRAM_MEMORY},
        },
        "securityContext": {
            **_SECURITY,
            "runAsUser": 0,
            "runAsGroup": 0,
            "capabilities": {"drop": ["ALL"]},
        },
        "volumeMounts": [
            {"name": "sockets", "mountPath": "/run/kvoffload", "readOnly": True},
            {"name": "kubelet", "mountPath": _KUBELET},
        ],
    }


_SECURITY: Final[Json] = {"allowPrivilegeEscalation": False, "readOnlyRootFilesystem": True}
# The folder, never the socket's file: a restarted agent makes another one.
_MOUNTS: Final = [
    {"name": "sockets", "mountPath": "/run/kvoffload"},
    {"name": "state", "mountPath": "/var/lib/kvoffload"},
    {
        "name": "credentials",
        "mountPath": "/var/run/secrets/kubernetes.io/serviceaccount",
        "readOnly": True,
    },
    {"name": "tmp", "mountPath": "/tmp"},  # noqa: S108 - in the container, of this pod alone
]


def _container(config: AgentsConfig, *, name: str) -> Json:
    return {"name": name, "image": config.image, "imagePullPolicy": config.image_pull_policy}


def _host(name: str, path: str) -> Json:
    return {"name": name, "hostPath": {"path": path, "type": "DirectoryOrCreate"}}


def _probe(path: str, *, period_s: int, failures: int) -> Json:
    return {
        "httpGet": {"path": path, "port": "http"},
        "periodSeconds": period_s,
        "timeoutSeconds": 5,
        "failureThreshold": failures,
    }


def _credentials() -> Json:
    return {
        "name": "credentials",
        "projected": {
            "defaultMode": 0o444,
            "sources": [
                {"serviceAccountToken": {"path": "token", "expirationSeconds": _TOKEN_S}},
                {
                    "configMap": {
                        "name": "kube-root-ca.crt",
                        "items": [{"key": "ca.crt", "path": "ca.crt"}],
                    }
                },
            ],
        },
    }
