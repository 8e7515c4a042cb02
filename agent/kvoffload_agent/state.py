"""What the agent says about itself: health, the debug state, memory gauges."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from typing import Any

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, InfoMetricFamily
from prometheus_client.registry import Collector

from kvoffload_agent.config.status import DiskObservation, Observation
from kvoffload_agent.localdisk import LocalDisk
from kvoffload_agent.memory.guard import Headroom, headroom
from kvoffload_agent.memory.snapshot import Snapshot
from kvoffload_agent.partitions.manager import PartitionManager
from kvoffload_agent.partitions.partition import Partition
from kvoffload_agent.server.hub import Hub
from kvoffload_agent.server.session import Session
from kvoffload_agent.server.stats import Metrics
from kvoffload_agent.server.stuck import Stuck, stuck_memory


@dataclass(frozen=True, slots=True, kw_only=True)
class Health:
    """``reason`` says what is missing; ``""`` if nothing is."""

    ready: bool
    reason: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Introspection:
    """Reads the parts of a running agent; changes nothing."""

    version: str
    boot_id: int
    hub: Hub
    manager: PartitionManager
    snapshot: Callable[[], Snapshot]
    configuration: Callable[[], dict[str, Any]]
    budget: Callable[[], int]
    metrics: Metrics
    disk: LocalDisk | None = None

    def headroom(self) -> Headroom:
        """Return the tightest limit now."""
        return headroom(self.snapshot())

    def stuck(self) -> Stuck:
        """Return what engines keep that were told to leave."""
        return stuck_memory(self.hub.sessions, now=time.monotonic())

    def observe(self) -> Observation:
        """Return what goes into the status of the node's object."""
        figures, room = self.manager.figures, self.headroom()
        return Observation(
            boot_id=f"{self.boot_id:016x}",
            version=self.version,
            requested=figures.requested,
            mapped=figures.mapped,
            populated=figures.populated,
            limit=room.limit,
            headroom=room.bytes,
            limited_by=figures.refusal.limited_by if figures.refusal else room.limited_by,
            refusal=figures.refusal.reason if figures.refusal else "",
            engines=tuple(
                (session.identity.uid, session.registration.fingerprint, _rfc3339(session.since))
                for session in self.hub.sessions
                if session.registration is not None
            ),
            disk=self._observe_disk(),
            stuck=self.stuck().text,
        )

    def _observe_disk(self) -> DiskObservation | None:
        if self.disk is None:
            return None
        store = self.disk.store
        return DiskObservation(
            capacity=store.capacity,
            used=store.used,
            available=store.available,
            limited_by=store.limited_by,
        )

    def state(self) -> dict[str, Any]:
        """Return everything as JSON, for ``/debug/state`` and the demo's table."""
        sessions = self.hub.sessions
        figures = self.manager.figures
        room = self.headroom()
        return {
            "version": self.version,
            "boot_id": f"{self.boot_id:016x}",
            "configuration": self.configuration(),
            "memory": {
                "budget": self.budget(),
                "requested": figures.requested,
                "mapped": figures.mapped,
                "populated": figures.populated,
                "stuck": asdict(self.stuck()),
                "ceiling": self.manager.ceiling,
                "headroom": room.bytes,
                "limit": room.limit,
                "limited_by": room.limited_by,
                "refusal": asdict(figures.refusal) if figures.refusal else None,
            },
            "disk": self.disk.as_json() if self.disk is not None else None,
            "partitions": [partition_json(part) for part in self.manager.partitions],
            "sessions": [session_json(session) for session in sessions],
            "namespaces": {
                name: figures.as_json() for name, figures in sorted(self.metrics.namespaces.items())
            },
        }


def partition_json(partition: Partition) -> dict[str, Any]:
    """Return one partition's figures; bytes."""
    return {
        "namespace": partition.key.namespace,
        "fingerprint": partition.key.fingerprint,
        "bucket": partition.bucket,
        "capacity": partition.capacity,
        "disk_bucket": partition.disk_bucket,
        "disk_capacity": partition.disk_capacity,
        "row_bytes": partition.geometry.row_bytes,
        "ranks": partition.geometry.ranks,
        "slots": partition.slots,
        "free_slots": partition.pool.free_slots,
        "mapped": partition.mapped,
        "segments": sum(len(row.segments) for row in partition.every_row()),
        "pending_segments": sum(len(row.segments) for row in partition.pending),
        "leaving_segments": sum(len(row.segments) for row in partition.leaving),
        "sessions": len(partition.members),
        "refusal": partition.refusal.reason if partition.refusal else "",
    }


def session_json(session: Session) -> dict[str, Any]:
    """Return one session's figures."""
    registration = session.registration
    return {
        "session": session.number,
        "namespace": session.identity.namespace,
        "pod": session.identity.pod,
        "pod_uid": session.identity.uid,
        "since": _rfc3339(session.since),
        "partition": str(registration.partition.key) if registration else "",
        "fingerprint": registration.fingerprint if registration else "",
        "copies": "agent" if registration and registration.shape.delegated else "engine",
        "ready": session.ready,
        "ending": session.ending,
        "workers": sorted(session.workers),
        "live_requests": len(session.requests),
        "jobs_in_flight": len(registration.jobs) if registration else 0,
        "entry": session.entry.name if session.entry else "",
        "policy": session.entry.source if session.entry else "",
        **session.stats.figures.as_json(),
    }


def _rfc3339(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, tz=UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


class MemoryCollector(Collector):
    """Gauges that are read when somebody asks."""

    def __init__(self, introspection: Introspection) -> None:
        self._introspection = introspection

    def collect(self) -> Iterable[GaugeMetricFamily | InfoMetricFamily]:
        """Return memory, partition and session gauges of this moment."""
        view = self._introspection
        figures, room = view.manager.figures, view.headroom()
        memory = GaugeMetricFamily(
            "kvoffload_memory_bytes", "Host memory of the arena", labels=["state"]
        )
        for name, value in (
            ("budget", view.budget()),
            ("requested", figures.requested),
            ("mapped", figures.mapped),
            ("populated", figures.populated),
            ("stuck", view.stuck().bytes),
            ("headroom", room.bytes),
            ("limit", room.limit or 0),
        ):
            memory.add_metric([name], value)
        yield memory
        slots = GaugeMetricFamily(
            "kvoffload_slots", "Chunk slots of partitions", labels=["namespace", "state"]
        )
        tally: Counter[tuple[str, str]] = Counter()
        for part in view.manager.partitions:
            tally[part.key.namespace, "free"] += part.pool.free_slots
            tally[part.key.namespace, "all"] += part.slots
        for (namespace, state), count in sorted(tally.items()):
            slots.add_metric([namespace, state], count)
        yield slots
        sessions = GaugeMetricFamily(
            "kvoffload_sessions", "Engines connected", labels=["namespace"]
        )
        connected = Counter(session.identity.namespace for session in view.hub.sessions)
        for namespace, count in sorted(connected.items()):
            sessions.add_metric([namespace], count)
        yield sessions
        yield InfoMetricFamily(
            "kvoffload_build", "Version of the agent", value={"version": view.version}
        )


class DiskCollector(Collector):
    """Gauges and counters of the local disk."""

    def __init__(self, disk: LocalDisk) -> None:
        self._store = disk.store

    def collect(self) -> Iterable[GaugeMetricFamily | CounterMetricFamily]:
        """Return the figures of this moment."""
        store, counters = self._store, self._store.counters
        held = GaugeMetricFamily("kvoffload_disk_bytes", "Local disk", labels=["state"])
        for name, value in (
            ("capacity", store.capacity),
            ("used", store.used),
            ("available", store.available),
        ):
            held.add_metric([name], value)
        yield held
        yield GaugeMetricFamily(
            "kvoffload_disk_chunks", "Chunks on the local disk", value=store.index.chunks
        )
        yield GaugeMetricFamily(
            "kvoffload_disk_usable",
            "1 if the local disk takes loads and stores",
            value=float(not store.limited_by),
        )
        moved = CounterMetricFamily(
            "kvoffload_disk_moved_chunks", "Chunks on the local disk, by event", labels=["event"]
        )
        for name in ("stored", "loaded", "adopted", "evicted"):
            moved.add_metric([name], getattr(counters, name))
        yield moved
        for name, text, tally in (
            ("rejected_files", "Files that were not what they should be", counters.rejected),
            ("not_stored_chunks", "Chunks that the disk did not take", counters.not_stored),
            ("not_loaded_chunks", "Chunks that could not be read", counters.not_loaded),
        ):
            failed = CounterMetricFamily(f"kvoffload_disk_{name}", text, labels=["reason"])
            for reason, count in sorted(tally.items()):
                failed.add_metric([reason], count)
            yield failed
