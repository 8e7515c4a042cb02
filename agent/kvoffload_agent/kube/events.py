"""Events on this node's Node object: what memory pressure did, told at a bounded rate.

Source: events.k8s.io/v1. The Event of an object without namespace is in ``default``, and its uid is
the node's name, as the kubelet writes both, so that ``kubectl describe node`` finds it.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final

import structlog

from kvoffload_agent.kube.client import Json, KubeClient, KubeError
from kvoffload_agent.memory.pressure import Grow, Shrink, Step
from kvoffload_agent.memory.snapshot import MIB
from kvoffload_api.reasons import EventReason

NAMESPACE: Final = "default"
PATH: Final = f"/apis/events.k8s.io/v1/namespaces/{NAMESPACE}/events"
CONTROLLER: Final = "kvoffload.io/agent"
# client-go's spam filter: so many Events about one object at once, then one each five minutes.
BURST: Final = 25
REFILL_SECONDS: Final = 300.0
# Lengths that events.k8s.io/v1 takes.
NOTE_MAX: Final = 1024
INSTANCE_MAX: Final = 128

_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Told:
    """One Event: ``kind`` is Normal or Warning, the others as in events.k8s.io/v1."""

    kind: str
    reason: str
    action: str
    note: str


class Allowance:
    """A token bucket: ``BURST`` Events at once, then one each ``REFILL_SECONDS``.

    ``clock``: monotonic seconds.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._left = float(BURST)
        self._at = clock()

    def take(self) -> bool:
        """Use one; False if none is left."""
        now = self._clock()
        self._left = min(float(BURST), self._left + (now - self._at) / REFILL_SECONDS)
        self._at = now
        if self._left < 1:
            return False
        self._left -= 1
        return True


def describe(step: Step, *, untold: int = 0) -> Told | None:
    """Return the Event of a step, None for one that changed nothing.

    ``untold``: steps since the last Event that were one too many.
    """
    more = f"; {untold} more steps since the last Event" if untold else ""
    if isinstance(step, Shrink):
        return Told(
            kind="Warning",
            reason=EventReason.MEMORY_PRESSURE,
            action="ShrinkHostMemory",
            note=(
                f"KV cache in host memory gives back {_mib(step.bytes)} and keeps at most"
                f" {_mib(step.ceiling)}: {step.limited_by} has {_mib(step.slack)} left{more}"
            )[:NOTE_MAX],
        )
    if isinstance(step, Grow):
        bound = "its budget" if step.ceiling is None else _mib(step.ceiling)
        return Told(
            kind="Normal",
            reason=EventReason.MEMORY_PRESSURE_ENDED,
            action="GrowHostMemory",
            note=f"KV cache in host memory may grow to {bound} again{more}",
        )
    return None


def manifest(told: Told, *, node_name: str, now: datetime) -> Json:
    """Return the object to be created."""
    return {
        "apiVersion": "events.k8s.io/v1",
        "kind": "Event",
        "metadata": {"generateName": f"{node_name}-kvoffload-", "namespace": NAMESPACE},
        "eventTime": now.isoformat(timespec="microseconds"),
        "reportingController": CONTROLLER,
        "reportingInstance": node_name[:INSTANCE_MAX],
        "type": told.kind,
        "reason": told.reason,
        "action": told.action,
        "note": told.note,
        "regarding": {"apiVersion": "v1", "kind": "Node", "name": node_name, "uid": node_name},
    }


class NodeEvents:
    """Tells the steps of memory pressure. ``note`` only remembers, ``run`` asks the API server.

    Memory is given back whether or not anybody can be told: an Event that is refused is logged.
    """

    def __init__(self, *, client: KubeClient, node_name: str, clock: Callable[[], float]) -> None:
        self._client = client
        self._node_name = node_name
        self._allowance = Allowance(clock)
        self._untold = 0
        # As many as may be told at once; while the API server is away the oldest are forgotten.
        self._waiting: deque[Told] = deque(maxlen=BURST)
        self._news = asyncio.Event()

    def note(self, step: Step) -> None:
        """Remember a step to be told; never waits."""
        told = describe(step, untold=self._untold)
        if told is None:
            return
        if not self._allowance.take():
            self._untold += 1
            return
        self._untold = 0
        self._waiting.append(told)
        self._news.set()

    async def run(self) -> None:
        """Tell what is waiting, until cancelled; a request has its own deadline."""
        while True:
            await self._news.wait()
            self._news.clear()
            while self._waiting:
                await self._tell(self._waiting.popleft())

    async def _tell(self, told: Told) -> None:
        body = manifest(told, node_name=self._node_name, now=datetime.now(UTC))
        try:
            await self._client.request("POST", PATH, body=body)
        except KubeError as error:
            _log.warning(
                "event not told", reason=told.reason, error=str(error), status=error.status
            )


def _mib(size: int) -> str:
    return f"{size / MIB:.0f} MiB"
