"""The real operator process, with the restricted credentials of the shipped RBAC manifests."""

from __future__ import annotations

import json
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from tests.cluster.controlplane import ControlPlane
from tests.harness.processes import Process

RBAC = Path(__file__).resolve().parents[3] / "charts" / "kvoffload" / "files" / "rbac"
SYSTEM = "kvoffload-system"
PROGRAM = Path(sys.executable).with_name("kvoffload-operator")
CLI = Path(sys.executable).with_name("kubectl-kvoffload")
START_S = 60.0


@dataclass
class Operator:
    """A running operator."""

    process: Process
    url: str

    def ready(self) -> bool:
        """Return whether it says that it is ready."""
        try:
            with urllib.request.urlopen(f"{self.url}/readyz", timeout=5) as answer:
                return bool(answer.status == 200)
        except urllib.error.URLError:
            return False

    def metric(self, name: str) -> float:
        """Return the sum of a metric's samples."""
        with urllib.request.urlopen(f"{self.url}/metrics", timeout=5) as answer:
            lines = answer.read().decode().splitlines()
        values = [
            float(line.rsplit(" ", 1)[1])
            for line in lines
            if line.startswith((f"{name}{{", f"{name} "))
        ]
        return sum(values)

    def writes(self) -> float:
        """Return how many writes other than the Lease's it has sent."""
        with urllib.request.urlopen(f"{self.url}/metrics", timeout=5) as answer:
            lines = answer.read().decode().splitlines()
        return sum(
            float(line.rsplit(" ", 1)[1])
            for line in lines
            if line.startswith("rest_client_requests_total{")
            and any(f'method="{verb}"' in line for verb in ("PATCH", "DELETE"))
        )

    def log(self) -> list[dict[str, Any]]:
        """Return its log records."""
        return [json.loads(line) for line in self.process.log.read_text().splitlines()]


Start = Callable[..., Operator]


def wait_for(
    condition: Callable[[], Any], *, what: str, deadline_s: float = 20.0, every_s: float = 0.05
) -> Any:
    """Return the first true answer of ``condition``."""
    until = time.monotonic() + deadline_s
    while not (answer := condition()):
        assert time.monotonic() < until, f"{what} did not happen within {deadline_s:.0f} s"
        time.sleep(every_s)
    return answer


def launch(kubeconfig: Path, log: Path, *arguments: str) -> Operator:
    """Start an operator and wait until it listens; it may not be ready yet."""
    process = Process(
        [
            str(PROGRAM), "run", "--kubeconfig", str(kubeconfig),
            "--host", "127.0.0.1", "--port", "0", "--namespace", SYSTEM, *arguments,
        ],
        name="operator",
        log=log,
    )  # fmt: skip
    port: list[int] = []

    def listening() -> bool:
        text = log.read_text()
        # Only whole lines: the last one may still be written.
        whole = text[: text.rfind("\n") + 1].splitlines()
        port.extend(json.loads(line)["port"] for line in whole if '"listening"' in line)
        return bool(port)

    process.wait_until(listening, what="listening", deadline_seconds=START_S)
    return Operator(process=process, url=f"http://127.0.0.1:{port[0]}")


def grant(plane: ControlPlane) -> Path:
    """Apply the shipped RBAC manifests, and return the operator's kubeconfig."""
    for name in ("operator", "agent"):
        plane.kubectl("apply", "-f", str(RBAC / f"{name}.yaml"))
    return plane.kubeconfig_for_service_account(
        namespace=SYSTEM, service_account="kvoffload-operator"
    )


@pytest.fixture(scope="session")
def operator_kubeconfig(control_plane: ControlPlane, crds: None) -> Path:
    """Give the kubeconfig of the operator's own ServiceAccount."""
    return grant(control_plane)


@pytest.fixture(scope="session")
def start_operator(
    operator_kubeconfig: Path,
    operator_processes: list[Process],
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Start]:
    """Give a function that starts an operator and waits until it is ready."""

    def start(*arguments: str) -> Operator:
        log = tmp_path_factory.mktemp("operator") / "operator.log"
        operator = launch(operator_kubeconfig, log, *arguments)
        operator_processes.append(operator.process)
        operator.process.wait_until(operator.ready, what="ready", deadline_seconds=START_S)
        return operator

    yield start
    for process in operator_processes:
        process.stop()


@pytest.fixture(scope="session")
def operators() -> list[Operator]:
    """Give the list whose last member leads; a test may end it."""
    return []


@pytest.fixture
def operator(start_operator: Start, operators: list[Operator]) -> Operator:
    """Give a running operator that leads, the same for all tests as long as it lives."""
    if not operators or not operators[-1].process.running:
        operators.append(start_operator())
    leader = operators[-1]
    wait_for(
        lambda: leader.metric("leader_election_master_status") == 1,
        what="leading",
        deadline_s=30,
    )
    return leader


@dataclass
class Cluster:
    """Short forms of what the tests of this folder do to the API server."""

    plane: ControlPlane
    namespace: str
    node: str

    def policy(self, name: str, spec: dict[str, Any], *, namespace: str = "") -> None:
        """Apply a KVOffloadPolicy, as a user does."""
        self.apply("KVOffloadPolicy", name, spec, namespace=namespace or self.namespace)

    def cluster_policy(self, name: str, spec: dict[str, Any]) -> None:
        """Apply a ClusterKVOffloadPolicy, as an administrator does."""
        self.apply("ClusterKVOffloadPolicy", name, spec, namespace="")

    def apply(self, kind: str, name: str, spec: dict[str, Any], *, namespace: str) -> None:
        """Apply an object with kubectl."""
        metadata = {"name": name} | ({"namespace": namespace} if namespace else {})
        body = {
            "apiVersion": "kvoffload.io/v1alpha1",
            "kind": kind,
            "metadata": metadata,
            "spec": spec,
        }
        self.plane.kubectl("apply", "-f", "-", input=json.dumps(body))

    def engine(self, name: str, **labels: str) -> str:
        """Create an opted-in engine pod on the node and return its uid."""
        pod = self.plane.create_pod(
            name=name,
            namespace=self.namespace,
            node=self.node,
            labels={"kvoffload.io/engine": "true", **labels},
        )
        return str(pod["metadata"]["uid"])

    def get(self, kind: str, name: str, *, namespace: str = "") -> dict[str, Any]:
        """Return an object."""
        arguments = ["get", kind, name, "-o", "json"]
        if namespace:
            arguments += ["-n", namespace]
        found: dict[str, Any] = json.loads(self.plane.kubectl(*arguments).stdout)
        return found

    def offload_node(self) -> dict[str, Any]:
        """Return the KVOffloadNode of the node, waiting until there is one."""
        path = f"/apis/kvoffload.io/v1alpha1/kvoffloadnodes/{self.node}"

        def read() -> dict[str, Any] | None:
            try:
                return self.plane.request(method="GET", path=path)
            except Exception as error:
                if "not found" in str(error):
                    return None
                raise

        found: dict[str, Any] = wait_for(read, what=f"a KVOffloadNode for {self.node}")
        return found

    def entry(self, uid: str) -> dict[str, Any] | None:
        """Return the effective block of a pod, if it has one."""
        spec = self.offload_node()["spec"]
        hashes = {pod["uid"]: pod["entry"] for pod in spec.get("pods", [])}
        for entry in spec.get("entries", []):
            if entry["hash"] == hashes.get(uid):
                return dict(entry)
        return None

    def wait_entry(self, uid: str, condition: Callable[[dict[str, Any]], Any]) -> dict[str, Any]:
        """Return a pod's effective block as soon as it fulfils a condition."""

        def read() -> dict[str, Any] | None:
            entry = self.entry(uid)
            return entry if entry is not None and condition(entry) else None

        found: dict[str, Any] = wait_for(read, what="the expected entry")
        return found

    def acknowledge(self) -> str:
        """Do what an agent does once the configuration is in force, and return its hash."""
        live = self.offload_node()["spec"]["hash"]
        self.plane.kubectl(
            "patch", "kvoffloadnode", self.node, "--subresource=status", "--type=merge",
            "-p", json.dumps({"status": {"appliedHash": live}}),
        )  # fmt: skip
        return str(live)

    def wait_ready(self, target: str, *, namespace: str = "", deadline: str = "20s") -> None:
        """Run ``kubectl wait --for=condition=Ready``."""
        arguments = ["wait", "--for=condition=Ready", target, f"--timeout={deadline}"]
        self.plane.kubectl(*arguments, *(["-n", namespace] if namespace else []))


@pytest.fixture
def cluster(
    control_plane: ControlPlane, operator: Operator, namespace: str, node: str
) -> Iterator[Cluster]:
    """Give a namespace and a node under a running operator, without any cluster policy."""
    yield Cluster(plane=control_plane, namespace=namespace, node=node)
    control_plane.kubectl("delete", "ckvop", "--all")


def populate(cluster: Cluster) -> None:
    """Make a pod with a policy of its own and a cluster default, both in force."""
    uid = cluster.engine("vllm-0")
    cluster.cluster_policy("default", {"defaults": {"load": {"maxTokens": 100}}})
    cluster.policy("chat", {"load": {"maxTokens": 50}})
    cluster.wait_entry(uid, lambda entry: entry.get("load", {}).get("maxTokens") == 50)
    cluster.acknowledge()
    cluster.wait_ready("kvop/chat", namespace=cluster.namespace)
    cluster.wait_ready("ckvop/default")
