"""Writes the status of policies, and only what changed of it."""

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any, Final

from kvoffload_operator.kube.client import KubeClient
from kvoffload_operator.kube.errors import NotFoundError
from kvoffload_operator.kube.store import Store
from kvoffload_operator.pacing import TokenBucket
from kvoffload_operator.policyfacts import PolicyFacts
from kvoffload_operator.reconcile.keys import Key, Kind
from kvoffload_operator.reconcile.policystatus import OnNode, decide, same, without_counters
from kvoffload_operator.reconcile.result import After, Done, Result
from kvoffload_operator.resources import CLUSTER_POLICIES, POLICIES
from kvoffload_operator.world import World

# Counters alone are not worth a write to etcd at every agent's answer.
_COUNTERS_EVERY_S: Final = 30.0


class PolicyReconciler:
    """Makes one policy's status be as decided.

    Args:
        world: What is known.
        client: Open client.
        bucket: Paces writes of statuses.
        clock: Monotonic seconds.
    """

    def __init__(
        self,
        *,
        world: World,
        client: KubeClient,
        bucket: TokenBucket,
        clock: Callable[[], float],
    ) -> None:
        self._world = world
        self._client = client
        self._bucket = bucket
        self._clock = clock
        self._counted_at: dict[Key, float] = {}

    async def reconcile(self, key: Key) -> Result:
        """Write the status of that policy if it says something else by now.

        Raises:
            KubeError: The write failed.
        """
        store, resource = (
            (self._world.policies, POLICIES)
            if key.kind is Kind.POLICY
            else (self._world.cluster_policies, CLUSTER_POLICIES)
        )
        wait = self._wait(key, store)
        if wait is None:
            return Done()
        if wait > 0.0:
            return After(seconds=wait)
        await self._bucket.acquire()
        # The wait may have been long: decide again on what is known now.
        policy = store.get(namespace=key.namespace, name=key.name)
        status = self._status(key, policy)
        if policy is None or status is None or same(policy.status, status):
            return Done()
        try:
            answer = await self._client.apply(
                resource,
                {"metadata": {"name": key.name, "uid": policy.uid}, "status": status},
                name=key.name,
                namespace=key.namespace,
                subresource="status",
            )
        except NotFoundError:
            return Done()
        store.absorb(answer)
        self._counted_at[key] = self._clock()
        return Done(wrote=True)

    def _wait(self, key: Key, store: Store[PolicyFacts]) -> float | None:
        """Return in how many seconds to write, ``None`` if there is nothing to write."""
        policy = store.get(namespace=key.namespace, name=key.name)
        status = self._status(key, policy)
        if policy is None or status is None:
            self._counted_at.pop(key, None)
            return None
        if same(policy.status, status):
            return None
        if without_counters(policy.status) != without_counters(status):
            return 0.0
        last = self._counted_at.get(key, float("-inf"))
        return max(0.0, last + _COUNTERS_EVERY_S - self._clock())

    def _status(self, key: Key, policy: PolicyFacts | None) -> dict[str, Any] | None:
        if policy is None:
            return None
        nodes = {
            name: OnNode(plan=plan, live=self._world.offload_nodes.get(name=name))
            for name, plan in self._world.plans_of(key).items()
        }
        return decide(
            key=key,
            policy=policy,
            nodes=nodes,
            conflict=self._world.conflict(key),
            now=datetime.now(tz=UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        )
