"""Writes the status of this node's object: on change only, and only what the agent owns."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

import structlog

from kvoffload_agent.config.node import PATH, NodeSource
from kvoffload_agent.kube.client import APPLY, Json, KubeError
from kvoffload_agent.memory.snapshot import MIB
from kvoffload_api.models.node import MAX_PODS
from kvoffload_api.models.status import MESSAGE_MAX
from kvoffload_api.names import API_VERSION, NODE_KIND
from kvoffload_api.reasons import ConditionStatus, ConditionType, Reason

FIELD_MANAGER: Final = "kvoffload-agent"
# Numbers that move all the time must not make a write each time (``operator.md`` 1.4).
ROUND_BYTES: Final = 64 * MIB
# How soon a change is written, and how often changes of bytes alone are.
LOOK_SECONDS: Final = 0.5
BYTES_SECONDS: Final = 10.0
BACKOFF_SECONDS: Final = (1.0, 60.0)

_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class DiskObservation:
    """Bytes of the local disk; ``limited_by``: why it is not used, ``""`` if it is."""

    capacity: int
    used: int
    available: int
    limited_by: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Observation:
    """What there is to report; bytes. ``refusal`` says which bytes the guard refused and why.

    ``stuck``: what engines keep that were told to leave, ``""`` if nothing.
    """

    boot_id: str
    version: str
    requested: int
    mapped: int
    populated: int
    limit: int | None
    headroom: int
    limited_by: str
    refusal: str
    engines: tuple[tuple[str, str, str], ...]
    """(pod uid, fingerprint, connected since) of each."""
    disk: DiskObservation | None = None
    stuck: str = ""


def desired(source: NodeSource, seen: Observation) -> Json:
    """Return the status without transition times."""
    return {
        "appliedHash": source.applied_hash or None,
        "observedGeneration": source.generation,
        "agentVersion": seen.version,
        "bootID": seen.boot_id,
        "memory": {
            "requested": _up(seen.requested),
            # Rounded down, so that it is never above what was requested.
            "mapped": min(_down(seen.mapped), _up(seen.requested)),
            "populated": _down(seen.populated),
            "limit": seen.limit,
            "headroom": max(0, _down(seen.headroom)),
            "verdict": "Refuse" if seen.refusal else "Admit",
            "limitedBy": seen.limited_by[:128],
        },
        "disk": _disk(seen.disk),
        "engines": [
            {"podUID": uid, "fingerprint": fingerprint, "connectedSince": since}
            for uid, fingerprint, since in sorted(seen.engines)[:MAX_PODS]
        ],
        "conditions": conditions(source, seen),
    }


def _disk(seen: DiskObservation | None) -> Json:
    if seen is None:
        return None
    return {
        "capacity": _down(seen.capacity),
        "used": _up(seen.used),
        "available": _down(seen.available),
        "verdict": "Refuse" if seen.limited_by else "Admit",
        "limitedBy": seen.limited_by[:128],
    }


def conditions(source: NodeSource, seen: Observation) -> list[dict[str, Any]]:
    """Return Ready and Degraded without transition times."""
    degraded, text = Reason.AS_EXPECTED, ""
    if source.rejected:
        degraded, text = Reason.CONFIG_REJECTED, source.rejected
    elif seen.stuck:
        degraded, text = Reason.MEMORY_STUCK, seen.stuck
    elif seen.refusal:
        degraded, text = Reason.PREFLIGHT_REFUSED, seen.refusal
    elif seen.disk is not None and seen.disk.limited_by not in {"", "opening"}:
        degraded, text = Reason.DISK_PRESSURE, seen.disk.limited_by
    ready = Reason.PROGRAMMED if not source.rejected else Reason.CONFIG_REJECTED
    return [
        {
            "type": str(ConditionType.READY),
            "status": str(_status(not source.rejected)),
            "reason": str(ready),
            "message": source.rejected[:MESSAGE_MAX],
            "observedGeneration": source.generation,
        },
        {
            "type": str(ConditionType.DEGRADED),
            "status": str(_status(degraded is not Reason.AS_EXPECTED)),
            "reason": str(degraded),
            "message": text[:MESSAGE_MAX],
            "observedGeneration": source.generation,
        },
    ]


def with_times(status: Json, *, before: Json, now: datetime) -> Json:
    """Return the status with transition times: kept from ``before`` unless the status flipped."""
    known = {item["type"]: item for item in (before or {}).get("conditions") or ()}
    timed = []
    for item in status["conditions"]:
        old = known.get(item["type"])
        same = old is not None and old.get("status") == item["status"]
        time = old["lastTransitionTime"] if same and old else now.strftime("%Y-%m-%dT%H:%M:%SZ")
        timed.append({**item, "lastTransitionTime": time})
    return {**status, "conditions": timed}


def without_times(status: Json) -> Json:
    """Return a stored status as ``desired`` would have written it, for comparison."""
    if not isinstance(status, dict):
        return None
    stripped = [
        {key: value for key, value in item.items() if key != "lastTransitionTime"}
        for item in status.get("conditions") or ()
    ]
    return {**status, "conditions": sorted(stripped, key=lambda item: str(item.get("type")))}


class StatusWriter:
    """Compares what should stand there with what stands there, and writes the difference."""

    def __init__(
        self,
        *,
        source: NodeSource,
        observe: Callable[[], Observation],
        clock: Callable[[], float],
    ) -> None:
        self._source = source
        self._observe = observe
        self._clock = clock
        self._bytes_at = float("-inf")
        self._written: Json = None
        self._written_for = ""

    async def run(self) -> None:
        """Write changes until cancelled."""
        delay = BACKOFF_SECONDS[0]
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            try:
                await self._write_if_different()
            except KubeError as error:
                _log.warning("status not written", error=str(error), status=error.status)
                await asyncio.sleep(delay * random.uniform(0.5, 1.5))  # noqa: S311 - jitter
                delay = min(2 * delay, BACKOFF_SECONDS[1])
            else:
                delay = BACKOFF_SECONDS[0]

    async def _write_if_different(self) -> None:
        source = self._source
        if not source.object_uid:
            return
        before = source.stored_status
        if self._written_for == source.object_uid:
            before = self._written
        wanted = _pruned(desired(source, self._observe()))
        there = _pruned(without_times(before) or {})
        if _settled(wanted) == _settled(there):
            return
        if _without_bytes(wanted) == _without_bytes(there) and (
            self._clock() - self._bytes_at < BYTES_SECONDS
        ):
            return
        status = with_times(wanted, before=before, now=datetime.now(tz=UTC))
        await source.client.request(
            "PATCH",
            f"{PATH}/{source.node_name}/status",
            params={"fieldManager": FIELD_MANAGER, "force": "true"},
            body={
                "apiVersion": API_VERSION,
                "kind": NODE_KIND,
                "metadata": {"name": source.node_name},
                "status": status,
            },
            content_type=APPLY,
        )
        self._bytes_at = self._clock()
        self._written, self._written_for = status, source.object_uid


def _settled(status: Json) -> Json:
    """Return what a change of is worth a write: headroom moves with everything on the node."""
    memory = {key: value for key, value in status.get("memory", {}).items() if key != "headroom"}
    disk = {
        key: value
        for key, value in (status.get("disk") or {}).items()
        if key not in {"available", "capacity"}
    }
    return {**_comparable(status), "memory": memory, "disk": disk}


def _comparable(status: Json) -> Json:
    ordered = sorted(status.get("conditions") or (), key=lambda item: str(item["type"]))
    return {**status, "conditions": ordered}


def _without_bytes(status: Json) -> Json:
    memory = {key: status.get("memory", {}).get(key) for key in ("verdict",)}
    disk = {key: (status.get("disk") or {}).get(key) for key in ("verdict",)}
    return {**_comparable(status), "memory": memory, "disk": disk}


def _pruned(status: Json) -> Json:
    """Drop what is None: apply would read it as a value."""
    return {
        key: _pruned(value) if isinstance(value, dict) else value
        for key, value in status.items()
        if value is not None
    }


def _status(value: bool) -> ConditionStatus:  # noqa: FBT001 - a conversion
    return ConditionStatus.TRUE if value else ConditionStatus.FALSE


def _down(value: int) -> int:
    return value // ROUND_BYTES * ROUND_BYTES


def _up(value: int) -> int:
    return -(-value // ROUND_BYTES) * ROUND_BYTES
