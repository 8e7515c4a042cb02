"""How fast the operator writes, under virtual time, with a server that accepts everything."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

import pytest
from tests.harness.virtual_time import in_virtual_time

from kvoffload_operator.kube.client import KubeClient
from kvoffload_operator.kube.errors import ClusterError
from kvoffload_operator.kube.resources import Resource
from kvoffload_operator.metrics import Metrics
from kvoffload_operator.pacing import TokenBucket
from kvoffload_operator.queue import WorkQueue
from kvoffload_operator.reconcile.keys import Key, Kind
from kvoffload_operator.reconcile.nodes import NodeReconciler
from kvoffload_operator.reconcile.policies import PolicyReconciler
from kvoffload_operator.resources import CLUSTER_POLICIES, OFFLOAD_NODES
from kvoffload_operator.worker import Workers
from kvoffload_operator.world import World


class Accepting(KubeClient):
    """Accepts every apply at once, notes when, and answers as the server would."""

    def __init__(self) -> None:
        self.version = 1_000_000
        self.writes: list[tuple[float, str]] = []
        self.fail = 0

    async def apply(  # type: ignore[override]
        self,
        resource: Resource,
        body: Mapping[str, Any],
        *,
        name: str,
        namespace: str = "",
        subresource: str = "",
    ) -> dict[str, Any]:
        if self.fail:
            self.fail -= 1
            raise ClusterError("etcd is away", status=500)
        self.version += 1
        self.writes.append((asyncio.get_running_loop().time(), f"{resource.kind}/{name}"))
        metadata = {
            **body["metadata"],
            "uid": body["metadata"].get("uid", f"uid-{name}"),
            "resourceVersion": str(self.version),
            "generation": 1,
        }
        spec = body.get("spec", POLICY["spec"])
        return {**body, "metadata": metadata, "spec": spec}


POLICY: dict[str, Any] = {
    "metadata": {
        "name": "default",
        "uid": "u",
        "generation": 1,
        "resourceVersion": "1",
        "creationTimestamp": "2026-01-01T00:00:00Z",
    },
    "spec": {"nodeBudget": {"hostMemory": "1Gi"}},
}


class Running:
    """Workers over a world, without a cluster."""

    def __init__(self) -> None:
        clock = asyncio.get_running_loop().time
        self.client = Accepting()
        self.queue: WorkQueue[Key] = WorkQueue(clock=clock)
        self.world = World(
            enqueue=lambda key, lane: self.queue.add(key, lane=lane), node_selector={}
        )
        nodes = NodeReconciler(
            world=self.world,
            client=self.client,
            bucket=TokenBucket(rate=50.0, burst=100, clock=clock),
        )
        policies = PolicyReconciler(
            world=self.world,
            client=self.client,
            bucket=TokenBucket(rate=20.0, burst=40, clock=clock),
            clock=clock,
        )
        self.metrics = Metrics()
        self.workers = Workers(
            queue=self.queue,
            reconcilers={
                Kind.NODE: nodes.reconcile,
                Kind.POLICY: policies.reconcile,
                Kind.CLUSTER_POLICY: policies.reconcile,
            },
            metrics=self.metrics,
        )
        self.queue.open()

    def add_node(self, name: str) -> None:
        self.world.nodes.put({"metadata": {"name": name, "uid": name, "resourceVersion": "1"}})

    def acknowledge(self, name: str) -> None:
        """Do what the node's agent does."""
        live = self.world.offload_nodes.get(name=name)
        assert live is not None
        self.client.version += 1
        metadata = {**live["metadata"], "resourceVersion": str(self.client.version)}
        status = {"appliedHash": live["spec"]["hash"]}
        self.world.offload_nodes.put({**live, "metadata": metadata, "status": status})

    def writes(self, kind: str) -> list[float]:
        return [at for at, name in self.client.writes if name.startswith(f"{kind}/")]

    async def run(self, seconds: float) -> None:
        task = asyncio.create_task(self.workers.run())
        await asyncio.sleep(seconds)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


def test_specs_go_out_at_fifty_a_second_after_a_burst_of_a_hundred() -> None:
    async def main() -> None:
        running = Running()
        for number in range(400):
            running.add_node(f"n{number}")
        await running.run(30)
        times = running.writes(OFFLOAD_NODES.kind)

        assert len(times) == 400
        assert sum(at < times[0] + 0.1 for at in times) <= 108
        assert times[-1] - times[0] == pytest.approx(300 / 50, abs=0.5)

    in_virtual_time(main())


def test_when_agents_answer_one_by_one_counters_are_written_every_half_minute() -> None:
    async def main() -> None:
        running = Running()
        for number in range(60):
            running.add_node(f"n{number}")
        running.world.cluster_policies.put(POLICY)
        task = asyncio.create_task(running.workers.run())
        await asyncio.sleep(5)
        first = len(running.writes(CLUSTER_POLICIES.kind))
        for number in range(60):
            running.acknowledge(f"n{number}")
            await asyncio.sleep(1)
        await asyncio.sleep(1)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        status = (running.world.cluster_policies.get(name="default") or POLICY).status

        # Two rounds of counters and the flip to Ready, which waits for nobody.
        assert len(running.writes(CLUSTER_POLICIES.kind)) - first <= 3
        assert status["nodes"] == {"selected": 60, "current": 60, "stale": 0, "failed": 0}
        assert {item["type"]: item["status"] for item in status["conditions"]}["Ready"] == "True"

    in_virtual_time(main())


def test_a_second_look_at_everything_writes_nothing() -> None:
    async def main() -> None:
        running = Running()
        for number in range(20):
            running.add_node(f"n{number}")
        running.world.cluster_policies.put(POLICY)
        await running.run(5)
        before = len(running.client.writes)
        running.world.enqueue_all()
        await running.run(60)

        assert before > 20
        assert len(running.client.writes) == before

    in_virtual_time(main())


def test_a_failed_write_is_tried_again_and_counted() -> None:
    async def main() -> None:
        running = Running()
        running.client.fail = 3
        running.add_node("n1")
        await running.run(5)
        failed = running.metrics.registry.get_sample_value(
            "controller_runtime_reconcile_errors_total", {"controller": "node"}
        )

        assert len(running.writes(OFFLOAD_NODES.kind)) == 1
        assert failed == 3

    in_virtual_time(main())


def test_a_fault_of_ours_in_one_object_does_not_stop_the_others() -> None:
    async def main() -> None:
        running = Running()
        running.add_node("n1")
        running.queue.add(Key(kind=Kind.NODE, name="n2"))

        async def reconcile(key: Key) -> Any:
            if key.name == "n2":
                raise ZeroDivisionError
            running.client.writes.append((0.0, key.name))

        workers = Workers(
            queue=running.queue, reconcilers={Kind.NODE: reconcile}, metrics=running.metrics
        )
        running.workers = workers
        await running.run(1)

        assert (0.0, "n1") in running.client.writes

    in_virtual_time(main())
