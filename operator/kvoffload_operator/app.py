"""Puts the parts together and runs them until somebody asks to stop.

Every replica keeps its caches warm; the Lease opens the queue of one of them.
"""

import asyncio
import contextlib
import signal
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

import structlog

from kvoffload_operator.caches import Caches
from kvoffload_operator.crds import access_hint, wait_for_crds
from kvoffload_operator.election import Elector
from kvoffload_operator.events import EventRecorder
from kvoffload_operator.kube.access import Access
from kvoffload_operator.kube.client import KubeClient
from kvoffload_operator.kube.errors import AccessError, KubeError
from kvoffload_operator.kube.resources import LEASES
from kvoffload_operator.lease import LeadershipLostError, LeaseHolder, start_watchdog
from kvoffload_operator.metrics import Metrics
from kvoffload_operator.pacing import TokenBucket
from kvoffload_operator.queue import Lane, WorkQueue
from kvoffload_operator.reconcile.agents import AgentsReconciler
from kvoffload_operator.reconcile.keys import Key, Kind
from kvoffload_operator.reconcile.nodes import NodeReconciler
from kvoffload_operator.reconcile.policies import PolicyReconciler
from kvoffload_operator.web import Heartbeat, WebServer
from kvoffload_operator.worker import QUEUE_NAME, Workers
from kvoffload_operator.world import World

log = structlog.get_logger(__name__)

LEASE: Final = "kvoffload-operator"
# Bookmarks come about every minute; readiness fails when three in a row stayed away.
_WATCH_AGE_S: Final = 180.0
# A small control plane takes about 55 applies a second of one object each; more only builds a queue
# in front of it, in which the agents' answers wait too.
_SPECS_PER_S: Final = 50.0
_SPECS_BURST: Final = 100
# A fleet-wide change touches every policy's status; nobody watches all of them at once.
_STATUSES_PER_S: Final = 20.0
_STATUSES_BURST: Final = 40


@dataclass(frozen=True, kw_only=True)
class Options:
    """How to run.

    Attributes:
        namespace: Where the Lease is.
        leader_elect: Whether to write only while holding it.
        node_selector: Labels of the nodes to configure.
        host: Address of the HTTP port; empty for all.
        port: HTTP port, 0 for any.
        identity: Unique for each process.
        pools: Namespace and name of the ConfigMap of agent pools; ``None`` if agents are somebody
            else's.
    """

    namespace: str
    leader_elect: bool
    node_selector: Mapping[str, str]
    host: str
    port: int
    identity: str
    pools: tuple[str, str] | None = None


async def run_operator(access: Access, options: Options) -> int:
    """Run until SIGTERM or SIGINT.

    Returns:
        The exit code: 0 when asked to stop, 1 when a part failed and the process must start again,
        3 when the server refused our credentials or rights at the start.
    """
    stop = asyncio.Event()
    metrics = Metrics()

    def observe(method: str, code: int) -> None:
        metrics.requests.labels(str(code) if code else "<error>", method).inc()

    async with KubeClient(access, user_agent="kvoffload-operator", observe=observe) as client:
        runtime = Runtime(access=access, client=client, options=options, metrics=metrics)
        code = 0
        try:
            with _signals(stop):
                await runtime.run(stop)
        except* AccessError as errors:
            # Once started, its watches, the Lease and the workers wait for rights to come back.
            for error in _leaves(errors):
                _tell_no_access(error, access=access)
            code = 3
        except* Exception as errors:
            for error in _leaves(errors):
                # These say all there is to know; anything else is ours to mend.
                known = isinstance(error, KubeError | LeadershipLostError | OSError)
                log.error("failed", err=str(error), exc_info=None if known else error)  # noqa: TRY400
            code = 1
        finally:
            await runtime.close()
    log.info("stopped", exit_code=code)
    return code


class Runtime:
    """The tasks of one process.

    Args:
        access: Where the API server is and who we are.
        client: Open client.
        options: How to run.
        metrics: Where to count.
    """

    def __init__(
        self, *, access: Access, client: KubeClient, options: Options, metrics: Metrics
    ) -> None:
        self._options = options
        self._metrics = metrics
        self._client = client
        self._server = access.server
        self._heartbeat = Heartbeat()
        self._queue: WorkQueue[Key] = WorkQueue(
            clock=asyncio.get_running_loop().time,
            added=metrics.queue_adds.labels(QUEUE_NAME).inc,
        )
        self._world = World(
            enqueue=lambda key, lane: self._queue.add(key, lane=lane),
            node_selector=options.node_selector,
            follow_pools=options.pools is not None,
        )
        self._caches = Caches(
            access=access,
            client=client,
            world=self._world,
            metrics=metrics,
            pools=options.pools,
        )
        elector = Elector(identity=options.identity)
        self._elector = elector
        self._lease = LeaseHolder(
            client=client, elector=elector, name=LEASE, namespace=options.namespace
        )
        self._web = WebServer(
            host=options.host,
            port=options.port,
            heartbeat=self._heartbeat,
            checks={"caches-synced": lambda: self._caches.synced, "watches-fresh": self._fresh},
            metrics=metrics,
            refresh=self._refresh,
        )

    async def run(self, stop: asyncio.Event) -> None:
        """Run until ``stop`` is set.

        Raises:
            ExceptionGroup: A part failed.
        """
        async with asyncio.TaskGroup() as group:
            main = group.create_task(self._main(), name="main")
            await stop.wait()
            log.info("stopping")
            main.cancel()

    async def close(self) -> None:
        """Release the lease and stop listening; everything else has ended already."""
        await self._lease.release()
        await self._web.close()

    async def _main(self) -> None:
        port = await self._web.start()
        log.info("listening", port=port, identity=self._options.identity)
        async with asyncio.TaskGroup() as group:
            group.create_task(self._heartbeat.run(), name="heartbeat")
            lease = LEASES.path(namespace=self._options.namespace, name=LEASE)
            await wait_for_crds(
                self._client,
                server=self._server,
                reads=[lease] if self._options.leader_elect else [],
            )
            group.create_task(self._caches.run(), name="caches")
            if self._options.leader_elect:
                group.create_task(self._lease.run(), name="lease")
                start_watchdog(self._elector)
            else:
                self._lease.leading.set()
            await self._caches.wait_synced()
            # From now on a change is somebody's, not part of the first lists.
            self._world.lane = Lane.CHANGE
            log.info("caches_synced", **self._caches.sizes())
            await self._lease.leading.wait()
            self._metrics.leading.labels(LEASE).set(1)
            group.create_task(self._workers().run(), name="workers")
            self._queue.open()

    def _workers(self) -> Workers:
        clock = asyncio.get_running_loop().time
        nodes = NodeReconciler(
            world=self._world,
            client=self._client,
            bucket=TokenBucket(rate=_SPECS_PER_S, burst=_SPECS_BURST, clock=clock),
        )
        policies = PolicyReconciler(
            world=self._world,
            client=self._client,
            bucket=TokenBucket(rate=_STATUSES_PER_S, burst=_STATUSES_BURST, clock=clock),
            clock=clock,
        )
        agents = AgentsReconciler(
            world=self._world,
            client=self._client,
            events=EventRecorder(client=self._client, instance=self._options.identity),
            namespace=self._options.pools[0] if self._options.pools else "",
        )
        return Workers(
            queue=self._queue,
            reconcilers={
                Kind.NODE: nodes.reconcile,
                Kind.POLICY: policies.reconcile,
                Kind.CLUSTER_POLICY: policies.reconcile,
                Kind.AGENTS: agents.reconcile,
            },
            metrics=self._metrics,
        )

    def _fresh(self) -> bool:
        return self._caches.oldest_event_age() < _WATCH_AGE_S

    def _refresh(self) -> None:
        self._metrics.queue_depth.labels(QUEUE_NAME).set(self._queue.core.depth)
        now = asyncio.get_running_loop().time()
        running = [now - since for since in self._queue.core.processing()]
        self._metrics.unfinished.labels(QUEUE_NAME).set(sum(running))
        self._metrics.longest.labels(QUEUE_NAME).set(max(running, default=0.0))
        self._caches.refresh_metrics()


def _tell_no_access(error: BaseException, *, access: Access) -> None:
    assert isinstance(error, AccessError)
    log.error(
        "no_access",
        server=access.server,
        user=access.user,
        status=error.status or None,
        err=str(error),
        hint=access_hint(error),
    )


@contextlib.contextmanager
def _signals(stop: asyncio.Event) -> Iterator[None]:
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    try:
        yield
    finally:
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.remove_signal_handler(number)


def _leaves(errors: BaseExceptionGroup[BaseException]) -> Iterator[BaseException]:
    for error in errors.exceptions:
        if isinstance(error, BaseExceptionGroup):
            yield from _leaves(error)
        else:
            yield error
