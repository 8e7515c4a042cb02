"""Puts the agent together and runs it: one task group owns every task."""

from __future__ import annotations

import asyncio
import contextlib
import resource
import secrets
import signal
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import structlog
from prometheus_client import Histogram

from kvoffload_agent import version
from kvoffload_agent.config.node import NodeSource
from kvoffload_agent.config.source import Source
from kvoffload_agent.config.status import StatusWriter
from kvoffload_agent.kube.events import NodeEvents
from kvoffload_agent.localdisk import LocalDisk
from kvoffload_agent.memory.arena import Arena
from kvoffload_agent.memory.guard import headroom
from kvoffload_agent.memory.pressure import Step
from kvoffload_agent.memory.reader import SnapshotReader
from kvoffload_agent.memory.relief import PressureLoop
from kvoffload_agent.partitions.manager import PartitionManager
from kvoffload_agent.partitions.partition import Partition, Pool
from kvoffload_agent.scheduling import make_engine, make_pool
from kvoffload_agent.server.decisions import Decisions
from kvoffload_agent.server.hub import Hub
from kvoffload_agent.server.listener import accept_forever, listen, remove
from kvoffload_agent.server.registry import SessionRegistry
from kvoffload_agent.server.stats import Metrics
from kvoffload_agent.state import DiskCollector, Health, Introspection, MemoryCollector
from kvoffload_agent.web import make_app, measure_loop, serving

# Without any budget the agent takes at most this share of what was free when it started: the
# engines and everything else on the node need the rest.
DEFAULT_BUDGET_SHARE: Final = 2
# With STOP_SECONDS less than Kubernetes' default grace of 30 s. Loads take up to some seconds.
DRAIN_SECONDS: Final = 10.0
# Jobs end on messages of engines; this is only how soon the end of the last one is seen.
DRAIN_LOOK_SECONDS: Final = 0.02
# A step of memory takes some tens of milliseconds.
STOP_SECONDS: Final = 10.0
# Buckets around the goals for the event loop while memory is populated: 10 and 50 ms.
LOOP_GAP_BUCKETS: Final = (0.001, 0.005, 0.01, 0.02, 0.05, 0.1, 0.25, 1.0)

_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """``host_memory``: bytes this agent takes at most, whatever policy says; None: no own bound.

    ``disk``: a directory for chunks; None: no disk is used.
    ``snapshot``: reads the limits of memory that apply here.
    ``http``: where metrics and probes are served; ``""``: nowhere.
    ``drain_seconds``: how long running loads may take to end once the agent is asked to stop.
    """

    socket: Path
    http: str
    snapshot: SnapshotReader
    host_memory: int | None
    disk: Path | None = None
    drain_seconds: float = DRAIN_SECONDS


class Agent:
    """All parts of one agent, wired; ``run`` lives as long as it does."""

    def __init__(self, *, options: Options, source: Source, tasks: asyncio.TaskGroup) -> None:
        self.options = options
        self.source = source
        # 63 bits: fits the frame header and a signed integer of any peer; never 0, which is "none".
        self.boot_id = secrets.randbits(62) + 1
        self.metrics = Metrics()
        self._snapshot = options.snapshot
        self._default_budget = max(0, headroom(self._snapshot()).bytes) // DEFAULT_BUDGET_SHARE
        self.arena = Arena(snapshot=self._snapshot)
        self.disk: LocalDisk | None = None
        if options.disk is not None:
            self.disk = LocalDisk(options.disk, budget=lambda: source.budget.local_disk)
        self.manager = PartitionManager(
            arena=self.arena, budget=self.budget, make_pool=self._make_pool, clock=time.monotonic
        )
        self.pressure = PressureLoop(
            snapshot=self._snapshot,
            arena=self.arena,
            keeper=self.manager,
            policy=self.budget,
            clock=time.monotonic,
            on_step=self._pressure_moved,
        )
        self.on_pressure: list[Callable[[Step], None]] = []
        """Told each step of memory pressure, beside the metrics."""
        self._tasks = tasks
        self._running: set[asyncio.Task[None]] = set()
        self.hub = Hub(
            boot_id=self.boot_id,
            identifier=source.identifier,
            registry=SessionRegistry(
                version=version(),
                policies=source.policies,
                manager=self.manager,
                make_engine=make_engine,
                metrics=self.metrics,
                spawn=self.spawn,
            ),
            decisions=Decisions(manager=self.manager),
            metrics=self.metrics,
            spawn=self.spawn,
        )
        self.introspection = Introspection(
            version=version(),
            boot_id=self.boot_id,
            hub=self.hub,
            manager=self.manager,
            snapshot=self._snapshot,
            configuration=source.describe,
            budget=self.budget,
            metrics=self.metrics,
            disk=self.disk,
        )
        self.metrics.registry.register(MemoryCollector(self.introspection))
        if self.disk is not None:
            self.metrics.registry.register(DiskCollector(self.disk))
        self._gap = Histogram(
            "kvoffload_loop_gap_seconds",
            "How late the event loop ran",
            buckets=LOOP_GAP_BUCKETS,
            registry=self.metrics.registry,
        )

    def budget(self) -> int:
        """Return the bytes of host memory that may be used now."""
        bounds = [
            bound
            for bound in (self.source.budget.host_memory, self.options.host_memory)
            if bound is not None
        ]
        return min(bounds) if bounds else self._default_budget

    def _make_pool(self, partition: Partition, min_reuse_count: int) -> Pool:
        tiers = [self.disk.tier(partition)] if self.disk is not None else []
        return make_pool(partition, min_reuse_count, tiers)

    def health(self) -> Health:
        """Return whether engines are served as policy says."""
        waiting = "the agent stops" if self.hub.draining else self.source.waiting_for
        return Health(ready=not waiting, reason=waiting)

    def spawn(self, work: Coroutine[Any, Any, None]) -> None:
        """Start a task that ends with the agent."""
        task = self._tasks.create_task(work)
        self._running.add(task)
        task.add_done_callback(self._running.discard)

    def configuration_changed(self) -> None:
        """Let everything follow a new configuration at once."""
        self.arena.reserved = self.source.budget.reserved_memory
        self.hub.follow_policy()
        self.manager.wake()

    def _pressure_moved(self, step: Step) -> None:
        self.metrics.pressure.labels(step=type(step).__name__.lower()).inc()
        for tell in self.on_pressure:
            tell(step)

    async def drain(self, at_once: asyncio.Event) -> None:
        """Take no new engine, load or store, and let running loads end within their time.

        ``at_once`` being set ends it.
        """
        self.hub.drain()
        before = self.hub.loads_in_flight
        loop = asyncio.get_running_loop()
        give_up_at = loop.time() + self.options.drain_seconds
        while self.hub.loads_in_flight and not at_once.is_set() and loop.time() < give_up_at:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(DRAIN_LOOK_SECONDS):
                    await at_once.wait()
        _log.info("loads drained", before=before, left=self.hub.loads_in_flight)

    async def stop(self) -> None:
        """End every task and connection; memory may be closed once this returns."""
        running = list(self._running)
        for task in running:
            task.cancel()
        self.hub.close_all()
        if running:
            # A thread that populates memory ends its step first.
            await asyncio.wait(running, timeout=STOP_SECONDS)

    @asynccontextmanager
    async def serving(self) -> AsyncIterator[None]:
        """Serve engines and probes while the block runs.

        Raises:
            ListenError: the socket can't be made.
            WebError: the HTTP address can't be used.
        """
        listener = listen(self.options.socket)
        async with contextlib.AsyncExitStack() as stack:
            stack.callback(self.arena.close_all)
            stack.callback(remove, self.options.socket, listener)
            http = ""
            if self.options.http:
                app = make_app(
                    registry=self.metrics.registry,
                    health=self.health,
                    state=self.introspection.state,
                )
                http = await stack.enter_async_context(serving(app, self.options.http))
            self.arena.reserved = self.source.budget.reserved_memory
            self.spawn(self.manager.run())
            self.spawn(self.pressure.run())
            if self.disk is not None:
                stack.callback(self.disk.close)
                self.spawn(self.disk.run(lambda: self.manager.partitions))
            self.spawn(self.source.run(self.configuration_changed))
            self.spawn(measure_loop(self._gap.observe))
            self.spawn(accept_forever(listener, make=self.hub.accept))
            _log.info(
                "agent serves",
                socket=str(self.options.socket),
                http=http,
                boot_id=f"{self.boot_id:016x}",
                budget=self.budget(),
                version=version(),
            )
            yield


async def run(
    *,
    options: Options,
    make_source: Callable[[], contextlib.AbstractAsyncContextManager[Source]],
    extra: Callable[[Agent], list[Coroutine[Any, Any, None]]] = lambda _agent: [],
) -> None:
    """Run an agent until SIGTERM or SIGINT; a second one skips the drain.

    Args:
        options: of this agent.
        make_source: opens its source of configuration.
        extra: further work that lives with it, such as writing its status.

    Raises:
        ListenError, WebError: it can't serve.
    """
    allow_descriptors()
    stop, at_once = asyncio.Event(), asyncio.Event()
    loop = asyncio.get_running_loop()

    def asked() -> None:
        if stop.is_set():
            at_once.set()
        stop.set()

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, asked)
    async with make_source() as source, asyncio.TaskGroup() as tasks:
        agent = Agent(options=options, source=source, tasks=tasks)
        async with agent.serving():
            for work in extra(agent):
                agent.spawn(work)
            await stop.wait()
            _log.info("agent stops")
            await agent.drain(at_once)
            await agent.stop()


def report_to_cluster(agent: Agent) -> list[Coroutine[Any, Any, None]]:
    """Return the work that keeps the status of this node's object, and tells Events on the Node."""
    source = agent.source
    assert isinstance(source, NodeSource)
    writer = StatusWriter(source=source, observe=agent.introspection.observe, clock=time.monotonic)
    events = NodeEvents(client=source.client, node_name=source.node_name, clock=time.monotonic)
    agent.on_pressure.append(events.note)
    return [writer.run(), events.run()]


def allow_descriptors() -> None:
    """Raise the soft limit of open files to the hard one: one per segment and connection."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        with contextlib.suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
