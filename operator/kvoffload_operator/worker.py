"""Takes keys from the queue, runs their reconciler, and deals with what it answers."""

import asyncio
import itertools
from collections.abc import Awaitable, Callable, Mapping
from typing import Final

import structlog

from kvoffload_operator.kube.errors import ClusterError, KubeError
from kvoffload_operator.metrics import Metrics
from kvoffload_operator.queue import WorkQueue
from kvoffload_operator.reconcile.keys import Key, Kind
from kvoffload_operator.reconcile.result import After, Result

log = structlog.get_logger(__name__)

Reconcile = Callable[[Key], Awaitable[Result]]

# Reconciling waits for the API server, hardly ever for the processor.
WORKERS: Final = 8
# A request has a deadline of its own; a pass is a few of them, and some waiting for tokens.
_PASS_S: Final = 120.0
QUEUE_NAME: Final = "kvoffload"


class Workers:
    """A fixed number of workers on one queue.

    Args:
        queue: Where keys come from.
        reconcilers: One for each kind of key.
        metrics: Where to count.
    """

    def __init__(
        self, *, queue: WorkQueue[Key], reconcilers: Mapping[Kind, Reconcile], metrics: Metrics
    ) -> None:
        self._queue = queue
        self._reconcilers = reconcilers
        self._metrics = metrics
        self._ids = itertools.count(1)

    async def run(self) -> None:
        """Work until cancelled."""
        for kind in self._reconcilers:
            self._metrics.workers.labels(kind).set(WORKERS)
        async with asyncio.TaskGroup() as group:
            for number in range(WORKERS):
                group.create_task(self._work(), name=f"worker-{number}")

    async def _work(self) -> None:
        while True:
            key, waited = await self._queue.take()
            self._metrics.queue_seconds.labels(QUEUE_NAME).observe(waited)
            try:
                await self._pass(key)
            finally:
                self._metrics.work_seconds.labels(QUEUE_NAME).observe(self._queue.done(key))

    async def _pass(self, key: Key) -> None:
        loop = asyncio.get_running_loop()
        attempt = self._queue.core.attempts(key) + 1
        bound = log.bind(
            controller=key.kind.value, key=str(key), reconcile_id=next(self._ids), attempt=attempt
        )
        active = self._metrics.active_workers.labels(key.kind)
        active.inc()
        started = loop.time()
        try:
            async with asyncio.timeout(_PASS_S):
                result = await self._reconcilers[key.kind](key)
        except (KubeError, TimeoutError) as error:
            self._failed(key, bound, error)
        except Exception as error:  # noqa: BLE001 - one broken object must not stop the others
            self._failed(key, bound, error)
        else:
            self._succeeded(key, bound, result, seconds=loop.time() - started)
        finally:
            active.dec()
            seconds = self._metrics.reconcile_seconds.labels(key.kind)
            seconds.observe(loop.time() - started)

    def _succeeded(
        self, key: Key, bound: structlog.stdlib.BoundLogger, result: Result, *, seconds: float
    ) -> None:
        self._queue.core.forget(key)
        if isinstance(result, After):
            self._queue.add_after(key, delay=result.seconds)
        label = "requeue_after" if isinstance(result, After) else "success"
        self._metrics.reconciles.labels(key.kind, label).inc()
        emit = bound.info if result.wrote else bound.debug
        emit("reconciled", wrote=result.wrote, duration_ms=round(seconds * 1000, 1))

    def _failed(self, key: Key, bound: structlog.stdlib.BoundLogger, error: BaseException) -> None:
        delay = self._queue.retry(key)
        self._metrics.reconciles.labels(key.kind, "error").inc()
        self._metrics.reconcile_errors.labels(key.kind).inc()
        self._metrics.queue_retries.labels(QUEUE_NAME).inc()
        # The cluster's trouble is one line; ours comes with its trace, once for each series.
        ours = not isinstance(error, KubeError | TimeoutError)
        first = self._queue.core.attempts(key) == 1
        emit = bound.warning if isinstance(error, ClusterError | TimeoutError) else bound.error
        emit(
            "reconcile_failed",
            err=str(error) or type(error).__name__,
            retry_s=round(delay, 2),
            exc_info=error if ours and first else None,
        )
