"""kopf as the informer of the two policy kinds.

Only low-level ``on.event`` handlers are used: they write nothing to users' objects (no finalizer,
no annotation), so kopf runs in every replica, and a standby is warm.
kopf has a thread and a loop of its own, because at its end it cancels every task of its loop
that it did not find at its start.

kopf neither says when its first list is complete nor reports what was deleted while its watch was
broken. So after each of its lists the collection is listed once more by us and compared in full
(``Caches``); that it is synced follows from that.
"""

import asyncio
import concurrent.futures
import threading
from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any, Final

import aiohttp
import kopf
import structlog

from kvoffload_operator.kube.access import Access
from kvoffload_operator.kube.resources import Resource

log = structlog.get_logger(__name__)

Deliver = Callable[[Resource, str | None, Mapping[str, Any]], None]

# The kubelet renews a projected token at 80 % of its hour: the file's is good for 12 minutes more.
_TOKEN_LIFE: Final = timedelta(minutes=10)
# One watch and one list of each kind; kopf's own default is without limit.
_CONNECTIONS: Final = 8
_STOP_S: Final = 8.0


class PolicyWatch:
    """Runs kopf in a thread and delivers events on the caller's loop.

    Args:
        access: Where the API server is and who we are.
        resources: The kinds to watch.
        deliver: Called on the caller's loop with resource, event type (``None`` when listed) and
            object.
    """

    def __init__(
        self,
        *,
        access: Access,
        resources: tuple[Resource, ...],
        deliver: Deliver,
    ) -> None:
        self._access = access
        self._resources = resources
        self._deliver = deliver
        self._stop = threading.Event()
        self._ready = asyncio.Event()

    async def ready(self) -> None:
        """Return when kopf is about to list and watch."""
        await self._ready.wait()

    async def run(self) -> None:
        """Watch until cancelled.

        Raises:
            RuntimeError: kopf ended by itself, which means that its watch is gone.
        """
        loop = asyncio.get_running_loop()
        ended: asyncio.Future[None] = loop.create_future()
        registry = self._registry(loop)
        # kopf sets a flag on whose result a callback hangs, and so wakes this loop.
        ready: concurrent.futures.Future[None] = concurrent.futures.Future()
        ready.add_done_callback(lambda _: loop.call_soon_threadsafe(self._ready.set))

        def thread() -> None:
            failure: BaseException | None = None
            try:
                asyncio.run(
                    kopf.operator(
                        registry=registry,
                        clusterwide=True,
                        standalone=True,
                        stop_flag=self._stop,
                        ready_flag=ready,
                    )
                )
            except BaseException as error:  # noqa: BLE001 - told to the owner, who raises it
                failure = error
            loop.call_soon_threadsafe(_settle, ended, failure)

        runner = threading.Thread(target=thread, name="kopf", daemon=True)
        runner.start()
        try:
            await asyncio.shield(ended)
        finally:
            self._stop.set()
            await asyncio.to_thread(runner.join, _STOP_S)
        raise RuntimeError("kopf ended although nobody asked it to")

    def _registry(self, loop: asyncio.AbstractEventLoop) -> kopf.OperatorRegistry:
        registry = kopf.OperatorRegistry()
        kopf.on.startup(registry=registry)(_configure)
        kopf.on.login(registry=registry)(self._login)
        for resource in self._resources:
            kopf.on.event(resource.group, resource.version, resource.plural, registry=registry)(
                self._handler(loop, resource)
            )
        return registry

    def _handler(self, loop: asyncio.AbstractEventLoop, resource: Resource) -> Callable[..., Any]:
        async def enqueue(event: Mapping[str, Any], **_: object) -> None:
            loop.call_soon_threadsafe(self._deliver, resource, event["type"], dict(event["object"]))

        return enqueue

    async def _login(self, **_: object) -> kopf.AiohttpSession:
        token = self._access.token()
        session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=_CONNECTIONS, ssl=self._access.tls or False),
            headers={"Authorization": f"Bearer {token}"} if token else {},
        )
        return kopf.AiohttpSession(
            server=self._access.server,
            default_namespace=self._access.namespace,
            aiohttp_session=session,
            expiration=datetime.now(tz=UTC) + _TOKEN_LIFE if token else None,
        )


def _settle(ended: asyncio.Future[None], failure: BaseException | None) -> None:
    if ended.done():
        return
    if failure is None or isinstance(failure, asyncio.CancelledError):
        ended.set_result(None)
    else:
        ended.set_exception(failure)


async def _configure(settings: kopf.OperatorSettings, **_: object) -> None:
    settings.peering.standalone = True  # the Lease decides; peering would pause equals
    settings.scanning.disabled = True  # no watch of CRDs and namespaces: smaller RBAC
    settings.posting.enabled = False  # kopf's Events have no de-duplication
    # Nothing of ours may ever be written to a policy; should it be, then under our own names.
    settings.persistence.finalizer = "kvoffload.io/operator"
    settings.persistence.progress_storage = kopf.AnnotationsProgressStorage(
        prefix="kvoffload.io", v1=False
    )
    settings.persistence.diffbase_storage = kopf.AnnotationsDiffBaseStorage(
        prefix="kvoffload.io", v1=False
    )
    settings.watching.server_timeout = 540  # an int: a float breaks the query string
    settings.watching.client_timeout = 600  # longer than the server's
    settings.watching.connect_timeout = 10
    settings.watching.inactivity_timeout = 80  # bookmarks come about every minute
    settings.watching.reconnect_backoff = 1.0  # 0.1 s hammers a dying API server
    settings.watching.chunk_size = 500
    settings.networking.request_timeout = 30
    settings.networking.connect_timeout = 10
    settings.networking.error_backoffs = (1, 2, 4, 8, 15, 30)
    settings.networking.enforce_retry_after = True
    settings.queueing.worker_limit = None  # throughput under a limit is limit / idle_timeout
    settings.queueing.idle_timeout = 1.0  # 5 s keep thousands of bodies and tasks alive longer
    settings.queueing.exit_timeout = 5
    settings.process.ultimate_exiting_timeout = 25  # less than the pod's grace period
    settings.background.cancellation_polling = 5
