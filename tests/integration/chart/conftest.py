"""Helm, and a control plane on which the chart alone is installed."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pytest
from tests.cluster.binaries import MissingBinaryError, require_helm
from tests.cluster.controlplane import ControlPlane
from tests.cluster.fixtures import start
from tests.harness.helm import AGENTS, NAMESPACE, Helm
from tests.integration.operator.conftest import Operator, launch

NODE = "gpu-0"
LINUX = {"kubernetes.io/os": "linux"}
# Tokens, above every cap that a test sets as a default.
LIMIT = 8192
# Every upgrade names them again: Helm forgets what it is not told.
LIMITS = (
    "--set", f"clusterLimits.load.maxTokens={LIMIT}",
    "--set", "clusterLimits.hostMemory.capacity=1Gi",
)  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Installed:
    """The chart on a cluster with one node; its operator is a process with the chart's rights."""

    helm: Helm
    plane: ControlPlane
    operator: Operator


def wait_for(condition: Callable[[], Any], *, what: str, deadline_s: float = 30.0) -> Any:
    """Return the first true answer of ``condition``."""
    until = time.monotonic() + deadline_s
    while not (answer := condition()):
        assert time.monotonic() < until, f"{what} did not happen within {deadline_s:.0f} s"
        time.sleep(0.05)
    return answer


GROUPS = {
    "ckvop": "/apis/kvoffload.io/v1alpha1/clusterkvoffloadpolicies",
    "clusterrole": "/apis/rbac.authorization.k8s.io/v1/clusterroles",
    "configmap": "/api/v1/{}configmaps",
    "crd": "/apis/apiextensions.k8s.io/v1/customresourcedefinitions",
    "deployment": "/apis/apps/v1/{}deployments",
    "ds": "/apis/apps/v1/{}daemonsets",
    "kvon": "/apis/kvoffload.io/v1alpha1/kvoffloadnodes",
    "kvop": "/apis/kvoffload.io/v1alpha1/{}kvoffloadpolicies",
    "mutatingadmissionpolicy": "/apis/admissionregistration.k8s.io/v1/mutatingadmissionpolicies",
    "namespace": "/api/v1/namespaces",
    "pdb": "/apis/policy/v1/{}poddisruptionbudgets",
    "pods": "/api/v1/{}pods",
    "validatingadmissionpolicy": (
        "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicies"
    ),
}


def names(plane: ControlPlane, kind: str, namespace: str = "") -> set[str]:
    """Return the names of the objects of a kind; a request costs a tenth of a kubectl."""
    path = GROUPS[kind].format(f"namespaces/{namespace}/" if namespace else "")
    items = plane.request(method="GET", path=path)["items"]
    return {item["metadata"]["name"] for item in items}


@pytest.fixture(scope="session")
def helm(tmp_path_factory: pytest.TempPathFactory) -> Helm:
    """Give Helm without a cluster."""
    try:
        program = require_helm()
    except MissingBinaryError as error:
        missing = str(error)
    else:
        return Helm(program=program, home=tmp_path_factory.mktemp("helm"))
    pytest.fail(missing, pytrace=False)


def install(helm: Helm, plane: ControlPlane, tmp_path_factory: pytest.TempPathFactory) -> Installed:
    """Install the chart and start its operator."""
    installer = Helm(program=helm.program, home=helm.home, kubeconfig=plane.kubeconfig)
    plane.create_node(name=NODE, labels=LINUX)
    installer.install("--set", "clusterDefaults.load.maxTokens=4096", *LIMITS)
    kubeconfig = plane.kubeconfig_for_service_account(
        namespace=NAMESPACE, service_account="kvoffload-operator"
    )
    log = tmp_path_factory.mktemp("operator") / "operator.log"
    operator = launch(
        kubeconfig, log, "--namespace", NAMESPACE, "--agents", f"{AGENTS}/kvoffload-agents"
    )
    operator.process.wait_until(operator.ready, what="ready", deadline_seconds=60)
    return Installed(helm=installer, plane=plane, operator=operator)


@pytest.fixture(scope="session")
def installed(helm: Helm, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Installed]:
    """Give an installation that no test takes away."""
    with start() as plane:
        made = install(helm, plane, tmp_path_factory)
        yield made
        made.operator.process.stop()
