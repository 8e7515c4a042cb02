"""The whole path on a real control plane: CRDs, RBAC, operator, one node, its agent, engine pods.

Operator and agent are real processes with the restricted ServiceAccounts that the shipped RBAC
manifests grant; an engine is identified by a token that is bound to its pod.
"""

from __future__ import annotations

import json
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

from tests.cluster.controlplane import ControlPlane
from tests.cluster.fixtures import apply_crds
from tests.harness.processes import Process

ROOT = Path(__file__).resolve().parents[2]
RBAC = ROOT / "charts" / "kvoffload" / "files" / "rbac"
SYSTEM = "kvoffload-system"
ENGINE_LABEL = "kvoffload.io/engine"
# Python's imports on a busy two-core machine take seconds; nothing else here is slow.
START_SECONDS = 60.0


def program(name: str) -> str:
    """Return the path of one of our console scripts."""
    return str(Path(sys.executable).with_name(name))


class Installation:
    """kvoffload on one control plane with one node."""

    def __init__(self, cluster: ControlPlane, *, directory: Path, node: str) -> None:
        self.cluster = cluster
        self.directory = directory
        self.node = node
        self.processes: list[Process] = []
        self.socket = directory / "run" / "agent.sock"
        self.debug_address = ""
        self.agent_pid = 0
        self._starts = 0

    def install(self) -> None:
        """Apply CRDs and RBAC, and make the node with the pod that stands for its agent."""
        apply_crds(self.cluster)
        for name in ("operator", "agent"):
            self.cluster.kubectl("apply", "-f", str(RBAC / f"{name}.yaml"))
        self.cluster.create_node(name=self.node)
        self.cluster.create_pod(
            name=f"kvoffload-agent-{self.node}",
            namespace=SYSTEM,
            node=self.node,
            service_account="kvoffload-agent",
        )

    def start_operator(self) -> Process:
        """Start an operator; returns when it answers ready."""
        kubeconfig = self.cluster.kubeconfig_for_service_account(
            namespace=SYSTEM, service_account="kvoffload-operator"
        )
        process = self._start(
            [
                program("kvoffload-operator"), "run",
                "--kubeconfig", str(kubeconfig), "--namespace", SYSTEM,
                "--host", "127.0.0.1", "--port", "0",
            ],
            name="operator",
        )  # fmt: skip
        url = f"http://{self._listening(process)}"
        process.wait_until(
            lambda: answers(f"{url}/readyz"), what="readiness", deadline_seconds=START_SECONDS
        )
        return process

    def agent_kubeconfig(self) -> Path:
        """Return credentials of the agent's ServiceAccount, bound to its pod."""
        return self.cluster.kubeconfig_for_service_account(
            namespace=SYSTEM,
            service_account="kvoffload-agent",
            pod=f"kvoffload-agent-{self.node}",
        )

    def start_agent(self, *arguments: str, kubeconfig: Path | None = None) -> Process:
        """Start the node's agent; returns when its socket serves."""
        kubeconfig = kubeconfig or self.agent_kubeconfig()
        self.socket.parent.mkdir(exist_ok=True)
        process = self._start(
            [
                program("kvoffload-agent"), "run",
                "--kubeconfig", str(kubeconfig), "--node-name", self.node,
                "--socket", str(self.socket), "--state-dir", str(self.directory / "state"),
                "--http", "127.0.0.1:0", *arguments,
            ],
            name="agent",
        )  # fmt: skip
        self.debug_address = self._listening(process)
        self.agent_pid = process.popen.pid
        return process

    def engine_pod(
        self, name: str, *, namespace: str, labels: dict[str, str] | None = None
    ) -> Path:
        """Make an opted-in engine pod on the node; returns the file with its token."""
        self.cluster.create_pod(
            name=name,
            namespace=namespace,
            node=self.node,
            labels={ENGINE_LABEL: "true", **(labels or {})},
        )
        token = self.directory / f"token-{namespace}-{name}"
        token.write_text(
            self.cluster.create_token(namespace=namespace, audience="kvoffload", pod=name)
        )
        token.chmod(0o600)
        return token

    def debug_state(self) -> dict[str, Any]:
        """Return the agent's own account of itself."""
        return read_debug_state(self.debug_address)

    def stop(self) -> None:
        """Stop every process, last started first."""
        for process in reversed(self.processes):
            process.stop()

    def _start(self, command: list[str], *, name: str) -> Process:
        self._starts += 1
        log = self.directory / f"{name}-{self._starts}.log"
        log.touch()
        process = Process(command, name=name, log=log)
        self.processes.append(process)
        return process

    def _listening(self, process: Process) -> str:
        return wait_listening(process)


def wait_listening(process: Process) -> str:
    """Return the HTTP address that a process logged, once it did.

    The operator logs its port as it listens, the agent its address as it serves.
    """
    found: list[str] = []

    def logged() -> bool:
        text = process.log.read_text()
        # Only whole lines: the last one may still be written.
        for line in text[: text.rfind("\n") + 1].splitlines():
            if not line.startswith("{"):
                continue
            record = json.loads(line)
            if record.get("event") == "listening":
                found.append(f"127.0.0.1:{record['port']}")
            elif record.get("event") == "agent serves":
                found.append(record["http"])
        return bool(found)

    process.wait_until(logged, what="listening", deadline_seconds=START_SECONDS)
    return found[0]


def answers(url: str) -> bool:
    """Whether a GET is answered with 200."""
    try:
        with urllib.request.urlopen(url, timeout=2) as answer:
            return bool(answer.status == 200)
    except (urllib.error.URLError, ConnectionError, TimeoutError):
        return False


def read_debug_state(address: str) -> dict[str, Any]:
    """Return an agent's ``/debug/state``."""
    with urllib.request.urlopen(f"http://{address}/debug/state", timeout=5) as answer:
        state = json.load(answer)
    assert isinstance(state, dict)
    return state


def wait_for(condition: Any, *, what: str, deadline_seconds: float = 30.0) -> Any:
    """Return the first true answer of ``condition``."""
    until = time.monotonic() + deadline_seconds
    while not (answer := condition()):
        assert time.monotonic() < until, f"{what} did not happen within {deadline_seconds:.0f} s"
        time.sleep(0.02)
    return answer
