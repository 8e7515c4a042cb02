"""Keeps a ``World`` equal to the cluster: informers, and kopf for the policies."""

import asyncio
import random
from collections.abc import Mapping
from typing import Any, Final

import structlog

from kvoffload_operator.facts import BOUND_AND_ALIVE, ENGINE_SELECTOR
from kvoffload_operator.kube.access import Access
from kvoffload_operator.kube.client import KubeClient
from kvoffload_operator.kube.errors import AccessError, ClusterError
from kvoffload_operator.kube.informer import Informer
from kvoffload_operator.kube.resources import (
    CONFIG_MAPS,
    DAEMONSETS,
    NAMESPACES,
    NODES,
    PODS,
    Resource,
)
from kvoffload_operator.kube.store import Store, key_of
from kvoffload_operator.metrics import Metrics
from kvoffload_operator.policies import PolicyWatch
from kvoffload_operator.resources import CLUSTER_POLICIES, MANAGED_BY, OFFLOAD_NODES, POLICIES
from kvoffload_operator.world import World

log = structlog.get_logger(__name__)

# kopf reports its list object by object; this long after the last one it is complete.
_KOPF_QUIET_S: Final = 1.0
# What a compare in full finds was missed by kopf; it happens when a watch broke at a deletion.
_COMPARE_S: Final = 600.0
# Everything is looked at again this often, should an event have been lost anywhere.
_RESYNC_S: Final = 36_000.0


class Caches:
    """The informers of a process.

    Args:
        access: For kopf, which has connections of its own.
        client: Open client.
        world: What to keep up to date.
        metrics: Where to count.
        pools: Namespace and name of the ConfigMap of agent pools, if there are any.
    """

    def __init__(
        self,
        *,
        access: Access,
        client: KubeClient,
        world: World,
        metrics: Metrics,
        pools: tuple[str, str] | None = None,
    ) -> None:
        self._client = client
        self._metrics = metrics
        self.world = world
        self._informers: tuple[Informer[Any], ...] = (
            self._informer(NODES, world.nodes, metadata_only=True),
            self._informer(NAMESPACES, world.namespaces, metadata_only=True),
            self._informer(OFFLOAD_NODES, world.offload_nodes),
            self._informer(
                PODS,
                world.pods,
                selectors={"labelSelector": ENGINE_SELECTOR, "fieldSelector": BOUND_AND_ALIVE},
            ),
            *(self._pool_informers(*pools) if pools else ()),
        )
        self._policy_stores: Mapping[Resource, Store[Any]] = {
            POLICIES: world.policies,
            CLUSTER_POLICIES: world.cluster_policies,
        }
        self._watch = PolicyWatch(
            access=access, resources=tuple(self._policy_stores), deliver=self._deliver
        )
        self._compare = asyncio.Event()
        self._compared = asyncio.Event()

    async def run(self) -> None:
        """Keep the world up to date until cancelled.

        Raises:
            ExceptionGroup: A collection is gone, or kopf ended.
        """
        async with asyncio.TaskGroup() as group:
            for informer in self._informers:
                group.create_task(informer.run(), name=f"informer-{informer.name}")
            group.create_task(self._watch.run(), name="kopf")
            group.create_task(self._compare_policies(), name="compare-policies")
            group.create_task(self._resync(), name="resync")

    @property
    def synced(self) -> bool:
        """Whether absence from the world means absence from the cluster."""
        return self._compared.is_set() and all(
            informer.synced.is_set() for informer in self._informers
        )

    async def wait_synced(self) -> None:
        """Return when every cache is complete."""
        for informer in self._informers:
            await informer.synced.wait()
        await self._compared.wait()

    def sizes(self) -> dict[str, int]:
        """Return how many objects each cache holds."""
        sizes = {informer.name: len(informer.store) for informer in self._informers}
        return sizes | {item.plural: len(store) for item, store in self._policy_stores.items()}

    def oldest_event_age(self) -> float:
        """Return for how many seconds the quietest watch has said nothing."""
        now = asyncio.get_running_loop().time()
        return max(now - informer.last_event_at for informer in self._informers)

    def refresh_metrics(self) -> None:
        """Set the gauges of the caches."""
        now = asyncio.get_running_loop().time()
        for name, size in self.sizes().items():
            self._metrics.informer_objects.labels(name).set(size)
        for informer in self._informers:
            age = now - informer.last_event_at
            self._metrics.informer_age.labels(informer.name).set(age)
        for state, count in self.world.node_states().items():
            self._metrics.nodes.labels(state).set(count)
        self._metrics.policy_conditions.clear()
        for (kind, status), count in self.world.policy_conditions().items():
            self._metrics.policy_conditions.labels(kind, status).set(count)

    def _informer(
        self,
        resource: Resource,
        store: Store[Any],
        *,
        namespace: str = "",
        selectors: Mapping[str, str] | None = None,
        metadata_only: bool = False,
    ) -> Informer[Any]:
        relists = self._metrics.informer_relists
        return Informer(
            client=self._client,
            resource=resource,
            store=store,
            namespace=namespace,
            selectors=selectors,
            metadata_only=metadata_only,
            relisted=lambda reason: relists.labels(resource.plural, reason).inc(),
        )

    def _pool_informers(self, namespace: str, name: str) -> tuple[Informer[Any], Informer[Any]]:
        labels = ",".join(f"{key}={value}" for key, value in MANAGED_BY.items())
        return (
            self._informer(
                CONFIG_MAPS,
                self.world.pools_config,
                namespace=namespace,
                # The very selector that a right to one name allows.
                selectors={"fieldSelector": f"metadata.name={name}"},
            ),
            self._informer(
                DAEMONSETS,
                self.world.daemonsets,
                namespace=namespace,
                selectors={"labelSelector": labels},
            ),
        )

    def _deliver(self, resource: Resource, kind: str | None, item: Mapping[str, Any]) -> None:
        store = self._policy_stores[resource]
        if kind == "DELETED":
            store.drop(key_of(item), version=item["metadata"]["resourceVersion"])
        else:
            store.put(item)
        store.passed(item["metadata"]["resourceVersion"])
        if kind is None:
            self._compare.set()

    async def _compare_policies(self) -> None:
        await self._watch.ready()
        while True:
            try:
                for resource, store in self._policy_stores.items():
                    await self._list(resource, store)
                self._compared.set()
            except (ClusterError, AccessError) as error:
                log.warning("policy_list_failed", err=str(error))
                await asyncio.sleep(_KOPF_QUIET_S)
                continue
            try:
                async with asyncio.timeout(_COMPARE_S * random.uniform(0.9, 1.1)):  # noqa: S311
                    await self._compare.wait()
            except TimeoutError:
                pass
            while self._compare.is_set():
                self._compare.clear()
                await asyncio.sleep(_KOPF_QUIET_S)

    async def _list(self, resource: Resource, store: Store[Any]) -> None:
        items: list[Mapping[str, Any]] = []
        version = ""
        async for page in self._client.list_pages(resource):
            version = page["metadata"]["resourceVersion"]
            items.extend(page.get("items") or ())
        store.replace(items, version=version)

    async def _resync(self) -> None:
        while True:
            await asyncio.sleep(_RESYNC_S * random.uniform(0.9, 1.1))  # noqa: S311 - jitter
            self.world.enqueue_all()
