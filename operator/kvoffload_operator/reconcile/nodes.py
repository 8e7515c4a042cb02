"""One KVOffloadNode for each configured Node: its spec is the compiled configuration."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import structlog

from kvoffload_api.models import MAX_ENTRIES, MAX_PODS
from kvoffload_operator.facts import NodeFacts
from kvoffload_operator.kube.client import KubeClient
from kvoffload_operator.kube.errors import NotFoundError
from kvoffload_operator.pacing import TokenBucket
from kvoffload_operator.plan import NodePlan
from kvoffload_operator.reconcile.diff import contains
from kvoffload_operator.reconcile.keys import Key
from kvoffload_operator.reconcile.result import Done, Result
from kvoffload_operator.resources import MANAGED_BY, OFFLOAD_NODES
from kvoffload_operator.world import World

log = structlog.get_logger(__name__)

Json = Mapping[str, Any]


@dataclass(frozen=True, kw_only=True)
class Apply:
    """Write these fields.

    Attributes:
        body: Every field of ours.
    """

    body: Json


@dataclass(frozen=True, kw_only=True)
class Delete:
    """Delete the object with this uid."""

    uid: str


def decide(
    *, name: str, node: NodeFacts | None, plan: NodePlan | None, live: Json | None
) -> Apply | Delete | None:
    """Return what to do about one KVOffloadNode, ``None`` for nothing.

    Args:
        name: Of the Node and of the KVOffloadNode.
        node: The Node, if there is one.
        plan: What the node's configuration should be, if it is to have one.
        live: The KVOffloadNode, if there is one.
    """
    if plan is None or node is None:
        # A vanished Node takes its KVOffloadNode with it by the owner reference.
        if live is None or node is None or node.deleting or not contains(_labels(live), MANAGED_BY):
            return None
        return Delete(uid=live["metadata"]["uid"])
    owner = {"apiVersion": "v1", "kind": "Node", "name": name, "uid": node.uid}
    body = {
        "metadata": {"name": name, "labels": dict(MANAGED_BY), "ownerReferences": [owner]},
        "spec": plan.spec,
    }
    return None if live is not None and contains(live, body) else Apply(body=body)


class NodeReconciler:
    """Makes one KVOffloadNode be as planned.

    Args:
        world: What is known.
        client: Open client.
        bucket: Paces writes of specs.
    """

    def __init__(self, *, world: World, client: KubeClient, bucket: TokenBucket) -> None:
        self._world = world
        self._client = client
        self._bucket = bucket

    async def reconcile(self, key: Key) -> Result:
        """Write the KVOffloadNode of that name if it differs from the plan.

        Raises:
            KubeError: The write failed.
        """
        action = self._decide(key.name)
        if action is None:
            return Done()
        await self._bucket.acquire()
        # The wait may have been long: decide again on what is known now.
        action = self._decide(key.name)
        if isinstance(action, Apply):
            self._tell_left_out(key.name)
            answer = await self._client.apply(OFFLOAD_NODES, action.body, name=key.name)
            self._world.offload_nodes.absorb(answer)
        elif isinstance(action, Delete):
            try:
                await self._client.delete(OFFLOAD_NODES, name=key.name, uid=action.uid)
            except NotFoundError:
                return Done()
        return Done(wrote=action is not None)

    def _tell_left_out(self, name: str) -> None:
        plan = self._world.plan(name)
        if plan is not None and plan.left_out:
            log.warning(
                "pods_left_out",
                node=name,
                pods=plan.left_out[:5],
                number=len(plan.left_out),
                err=f"a node has room for {MAX_PODS} engine pods and {MAX_ENTRIES} entries; "
                "these load and store nothing",
            )

    def _decide(self, name: str) -> Apply | Delete | None:
        if not self._world.pools_known:
            return None
        return decide(
            name=name,
            node=self._world.nodes.get(name=name),
            plan=self._world.plan(name),
            live=self._world.offload_nodes.get(name=name),
        )


def _labels(live: Json) -> Json:
    labels: Json = live["metadata"].get("labels") or {}
    return labels
