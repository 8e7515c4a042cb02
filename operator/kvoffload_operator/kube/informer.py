"""A local copy of one collection, kept fresh by LIST and WATCH.

Contract: a LIST in pages, then a watch with bookmarks;
the server ends each watch after some minutes and a silent one is given up;
after 410 or any ERROR the list is taken again and compared in full,
so that a deletion that nobody saw is reported like any other.
``synced`` is set after the first complete list:
before it, absence means nothing and nobody may act on it.
"""

import asyncio
import random
from collections.abc import Callable, Mapping
from typing import Any, Final, Generic, TypeVar

import structlog

from kvoffload_operator.kube.backoff import Backoff
from kvoffload_operator.kube.client import KubeClient
from kvoffload_operator.kube.errors import AccessError, ClusterError, GoneError, RequestError
from kvoffload_operator.kube.resources import Resource
from kvoffload_operator.kube.store import Store, key_of

T = TypeVar("T")

log = structlog.get_logger(__name__)

_RBAC_HINT: Final = "the manifests in charts/kvoffload/files/rbac grant what is needed"
# The server's default is 5 to 10 minutes too; a spread keeps the watches of a fleet apart.
_WATCH_S: Final = (300, 600)
# A schema change closes every watch within seconds: do not return in the same instant.
_REOPEN_S: Final = (0.1, 0.5)


class Informer(Generic[T]):
    """Keeps a store equal to a collection.

    Args:
        client: Open client.
        resource: Which collection.
        store: Where to keep the objects; it says what of them is kept and who hears of changes.
        namespace: Of its objects; empty for all.
        selectors: ``labelSelector`` and ``fieldSelector``.
        metadata_only: Ask for ``PartialObjectMetadata``.
        relisted: Called with the reason of each LIST, for metrics.
    """

    def __init__(
        self,
        *,
        client: KubeClient,
        resource: Resource,
        store: Store[T],
        namespace: str = "",
        selectors: Mapping[str, str] | None = None,
        metadata_only: bool = False,
        relisted: Callable[[str], None] = lambda _reason: None,
    ) -> None:
        self._client = client
        self._resource = resource
        self._namespace = namespace
        self._selectors = dict(selectors or {})
        self._metadata_only = metadata_only
        self._relisted = relisted
        self.store = store
        self._rng = random.Random()  # noqa: S311 - jitter is no secret
        self._version = ""
        self.synced = asyncio.Event()
        self.last_event_at = 0.0

    @property
    def name(self) -> str:
        """Name of the collection."""
        return self._resource.plural

    async def run(self) -> None:
        """List and watch until cancelled.

        Raises:
            NotFoundError: The collection itself does not exist (its CRD is gone).
        """
        backoff = Backoff(initial=1.0, maximum=30.0)
        reason = "start"
        while True:
            try:
                if not self._version:
                    await self._list(reason=reason)
                    self.synced.set()
                await self._watch()
                backoff.reset()
                await asyncio.sleep(self._rng.uniform(*_REOPEN_S))
            except (ClusterError, AccessError, RequestError) as error:
                # Only these say that the version is of no use; others leave it good.
                if isinstance(error, GoneError | RequestError):
                    self._version, reason = "", f"status-{error.status}"
                delay = backoff.next()
                hint = _RBAC_HINT if isinstance(error, AccessError) else None
                log.warning(
                    "watch_failed",
                    resource=self.name,
                    err=str(error),
                    hint=hint,
                    retry_s=round(delay, 1),
                )
                await asyncio.sleep(delay)

    async def _list(self, *, reason: str) -> None:
        self._relisted(reason)
        seen: list[Mapping[str, Any]] = []
        version = ""
        async for page in self._client.list_pages(
            self._resource,
            namespace=self._namespace,
            selectors=self._selectors,
            metadata_only=self._metadata_only,
            # The first list may come from the server's cache; after an error it must be current.
            resource_version="0" if reason == "start" else "",
        ):
            version = page["metadata"]["resourceVersion"]
            seen.extend(page.get("items") or ())
        self.store.replace(seen, version=version)
        self._version = version
        self.last_event_at = asyncio.get_running_loop().time()

    async def _watch(self) -> None:
        loop = asyncio.get_running_loop()
        async for kind, item in self._client.watch(
            self._resource,
            namespace=self._namespace,
            selectors=self._selectors,
            metadata_only=self._metadata_only,
            resource_version=self._version,
            timeout_s=self._rng.randint(*_WATCH_S),
        ):
            self.last_event_at = loop.time()
            if kind == "DELETED":
                self.store.drop(key_of(item))
            elif kind in {"ADDED", "MODIFIED"}:
                self.store.put(item)
            self._version = item["metadata"]["resourceVersion"]
            self.store.passed(self._version)
