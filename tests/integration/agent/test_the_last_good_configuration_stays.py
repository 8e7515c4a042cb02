"""In a cluster: entries arrive and change while requests run, and outlive what made them."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.cluster.controlplane import ControlPlane
from tests.integration.agent.agent import Agent, eventually
from tests.integration.agent.wire import Peer, hashes

from kvoffload_api.models.clusterpolicy import ClusterKVOffloadPolicy
from kvoffload_api.names import NodeName, PodUID
from kvoffload_api.resolution import NodeView, PodView, PolicySet, compile  # noqa: A004
from kvoffload_api.wire.messages import (
    CapsChanged,
    Complete,
    Match,
    MatchReply,
    NewRequest,
    Refused,
)

pytestmark = pytest.mark.cluster

SYSTEM = "kvoffload-system"
RBAC = Path(__file__).resolve().parents[3] / "charts/kvoffload/files/rbac/agent.yaml"
PATH = "/apis/kvoffload.io/v1alpha1/kvoffloadnodes"


class ClusterAgent(Agent):
    """The agent with the restricted credentials of its own pod."""

    def __init__(self, folder: Path, *, kubeconfig: Path, node: str) -> None:
        super().__init__(folder)
        self.replace_source(kubeconfig=kubeconfig, node=node)

    def replace_source(self, *, kubeconfig: Path, node: str) -> None:
        self._source = (
            "--kubeconfig", str(kubeconfig), "--node-name", node, "--host-memory", "64Mi",
            "--state-dir", str(self.folder / "state"),
        )  # fmt: skip

    def source(self) -> list[str]:
        return list(self._source)


class Node:
    """A node's object as the operator would write it, and one engine pod."""

    def __init__(self, plane: ControlPlane, name: str, namespace: str) -> None:
        self.plane = plane
        self.name = name
        self.namespace = namespace
        pod = plane.create_pod(
            name="engine", namespace=namespace, node=name, labels={"kvoffload.io/engine": "true"}
        )
        self.uid: str = pod["metadata"]["uid"]
        self.token = plane.create_token(namespace=namespace, audience="kvoffload", pod="engine")

    def write(self, *, cap: int | None, with_pod: bool = True, generation_mark: str) -> None:
        """Apply a spec with a cap on loads."""
        policies = PolicySet.of(
            cluster=[
                ClusterKVOffloadPolicy.parse(
                    {
                        "apiVersion": "kvoffload.io/v1alpha1",
                        "kind": "ClusterKVOffloadPolicy",
                        "metadata": {"name": "default"},
                        "spec": {"defaults": {"load": {"maxTokens": cap, "minTokens": 0}}},
                    }
                )
            ]
        )
        view = PodView(namespace=self.namespace, name="engine", uid=PodUID(self.uid), labels={})
        entry = compile(policies, view, NodeView(name=NodeName(self.name), labels={})).to_entry()
        pods = [
            {"uid": self.uid, "namespace": self.namespace, "name": "engine", "entry": entry.hash}
        ]
        self.plane.apply(
            [
                {
                    "apiVersion": "kvoffload.io/v1alpha1",
                    "kind": "KVOffloadNode",
                    "metadata": {"name": self.name},
                    "spec": {
                        "hash": generation_mark,
                        "budget": {"hostMemory": "64Mi"},
                        "entries": [entry.document()],
                        "pods": pods if with_pod else [],
                    },
                }
            ]
        )

    def status(self) -> dict[str, Any]:
        found = self.plane.request(method="GET", path=f"{PATH}/{self.name}")
        return dict(found.get("status") or {})


@pytest.fixture
def live(control_plane: ControlPlane, crds: None, node: str, namespace: str) -> Iterator[Node]:
    made = Node(control_plane, node, namespace)
    yield made
    control_plane.kubectl("delete", "kvon", node, "--ignore-not-found", "--wait=false")


@pytest.fixture
def cluster_agent(control_plane: ControlPlane, live: Node) -> Iterator[ClusterAgent]:
    control_plane.apply(RBAC)
    name = f"agent-{live.name}"
    control_plane.create_pod(
        name=name, namespace=SYSTEM, node=live.name, service_account="kvoffload-agent"
    )
    kubeconfig = control_plane.kubeconfig_for_service_account(
        namespace=SYSTEM, service_account="kvoffload-agent", pod=name
    )
    with tempfile.TemporaryDirectory(prefix="kvo") as directory:
        agent = ClusterAgent(Path(directory), kubeconfig=kubeconfig, node=live.name)
        with agent:
            yield agent
    control_plane.delete_pod(name=name, namespace=SYSTEM)


@pytest.fixture
def engine(cluster_agent: ClusterAgent, live: Node) -> Iterator[Callable[[], tuple[Peer, Peer]]]:
    made: list[Peer] = []

    def connect() -> tuple[Peer, Peer]:
        scheduler, worker = Peer(cluster_agent.socket), Peer(cluster_agent.socket)
        made.extend((scheduler, worker))
        scheduler.open(token=live.token)
        worker.join(token=live.token)
        return scheduler, worker

    yield connect
    for peer in made:
        peer.close()


def ask(peer: Peer, handle: int, *, blocks: int = 8) -> MatchReply:
    tokens = blocks * 16 + 1
    peer.send(
        NewRequest(
            handle=handle,
            request_id=f"r{handle}",
            num_tokens=tokens,
            num_prompt_tokens=tokens,
            hashes=hashes(blocks),
        )
    )
    return again(peer, handle)


def again(peer: Peer, handle: int) -> MatchReply:
    peer.send(Match(seq=handle, handle=handle, computed=0))
    return peer.expect(MatchReply)


def test_a_pod_without_an_entry_gets_nothing_and_then_what_policy_says_at_once(
    live: Node,
    cluster_agent: ClusterAgent,
    engine: Callable[[], tuple[Peer, Peer]],
) -> None:
    live.write(cap=1000, with_pod=False, generation_mark="0" * 15 + "1")
    eventually(lambda: live.status().get("appliedHash") == "0" * 15 + "1", what="the first spec")
    scheduler, worker = engine()
    nothing = ask(scheduler, 1)
    assert (nothing.tokens, nothing.limited_by, nothing.policy) == (
        0, "load.maxTokens", "no-entry",
    )  # fmt: skip
    live.write(cap=1000, generation_mark="0" * 15 + "2")
    while scheduler.expect(CapsChanged).max_load_tokens != 1000:
        pass

    def ready() -> bool:
        worker.map_some()
        return bool(cluster_agent.sessions()[0]["ready"])

    eventually(ready, what="mapped memory")
    plan = scheduler.store(handle=2, blocks=8)
    assert plan is not None
    worker.send(Complete(done=[plan.job], failed=[]))
    eventually(lambda: cluster_agent.sessions()[0]["stores"] == 1, what="the store")
    assert ask(scheduler, 3).tokens == 128
    live.write(cap=40, generation_mark="0" * 15 + "3")
    while scheduler.expect(CapsChanged).max_load_tokens != 40:
        pass
    limited = again(scheduler, 3)
    assert (limited.tokens, limited.policy) == (32, "ClusterKVOffloadPolicy/default#defaults")
    eventually(lambda: live.status().get("engines"), what="the engine in the status")
    status = live.status()
    assert status["engines"][0]["podUID"] == live.uid
    assert status["memory"]["mapped"] <= status["memory"]["requested"]
    ready_now = {item["type"]: item["status"] for item in status["conditions"]}
    assert ready_now == {"Ready": "True", "Degraded": "False"}


def test_it_outlives_the_object_and_a_restart_without_an_api_server(
    live: Node, cluster_agent: ClusterAgent, engine: Callable[[], tuple[Peer, Peer]]
) -> None:
    live.write(cap=16, generation_mark="0" * 15 + "7")

    def applied() -> bool:
        return bool(cluster_agent.state()["configuration"]["applied_hash"] == "0" * 15 + "7")

    eventually(applied, what="the spec")
    kept = cluster_agent.folder / "state" / "last-good.json"
    assert kept.stat().st_mode & 0o777 == 0o600
    live.plane.kubectl("delete", "kvon", live.name)
    scheduler, _ = engine()
    scheduler.expect(CapsChanged)
    assert applied()
    cluster_agent.process.kill()
    nowhere = cluster_agent.folder / "nowhere"
    nowhere.write_text(
        json.dumps(
            {
                "current-context": "c",
                "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
                "clusters": [{"name": "c", "cluster": {"server": "http://127.0.0.1:1"}}],
                "users": [{"name": "u", "user": {}}],
            }
        )
    )
    cluster_agent.replace_source(kubeconfig=nowhere, node=live.name)
    cluster_agent.start()
    assert applied()
    stranger = Peer(cluster_agent.socket)
    stranger.hello(token=live.token)
    refused = stranger.receive()
    assert isinstance(refused, Refused)
    assert refused.code == "identity"
    stranger.close()


def test_a_token_of_another_audience_or_node_is_refused(
    live: Node, cluster_agent: ClusterAgent
) -> None:
    plain = live.plane.create_token(namespace=live.namespace, pod="engine")
    unbound = live.plane.create_token(namespace=live.namespace, audience="kvoffload")
    for token in ("", "garbage", plain, unbound):
        peer = Peer(cluster_agent.socket)
        peer.hello(token=token)
        refused = peer.receive()
        assert isinstance(refused, Refused)
        assert refused.code == "identity"
        peer.close()
