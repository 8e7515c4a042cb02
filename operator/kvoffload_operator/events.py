"""Events about objects that the operator keeps, each told once in a while only."""

import time
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any, Final

import structlog

from kvoffload_operator.kube.client import KubeClient
from kvoffload_operator.kube.errors import KubeError
from kvoffload_operator.kube.resources import EVENTS

log = structlog.get_logger(__name__)

Json = Mapping[str, Any]

CONTROLLER: Final = "kvoffload.io/operator"
# client-go's correlator, too, folds equal Events of ten minutes into one.
_SAME_S: Final = 600.0
# events.k8s.io/v1 takes 1,024 characters.
_NOTE: Final = 1024
# More different Events than an operator has reasons for; the oldest are told anew.
_REMEMBERED: Final = 1024


class EventRecorder:
    """Tells Events; one that cannot be told is only logged.

    Args:
        client: Open client.
        instance: Who reports: the pod's name.
        clock: Monotonic seconds.
    """

    def __init__(
        self,
        *,
        client: KubeClient,
        instance: str,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._client = client
        self._instance = instance
        self._clock = clock
        self._told: dict[tuple[str, str, str], float] = {}

    async def warn(self, about: Json, *, reason: str, action: str, note: str) -> None:
        """Tell a Warning about an object."""
        await self._post(about, kind="Warning", reason=reason, action=action, note=note)

    async def tell(self, about: Json, *, reason: str, action: str, note: str) -> None:
        """Tell a Normal Event about an object."""
        await self._post(about, kind="Normal", reason=reason, action=action, note=note)

    async def _post(self, about: Json, *, kind: str, reason: str, action: str, note: str) -> None:
        metadata = about["metadata"]
        same = (metadata["uid"], reason, note)
        now = self._clock()
        if now - self._told.get(same, -_SAME_S) < _SAME_S:
            return
        while len(self._told) >= _REMEMBERED:
            del self._told[next(iter(self._told))]
        self._told[same] = now
        namespace = metadata["namespace"]
        body = {
            "apiVersion": EVENTS.api_version,
            "kind": EVENTS.kind,
            "metadata": {"generateName": f"{metadata['name']}-", "namespace": namespace},
            "eventTime": datetime.now(UTC).isoformat(timespec="microseconds"),
            "reportingController": CONTROLLER,
            "reportingInstance": self._instance[:128],
            "type": kind,
            "reason": reason,
            "action": action,
            "note": note[:_NOTE],
            "regarding": {
                "apiVersion": about["apiVersion"],
                "kind": about["kind"],
                "name": metadata["name"],
                "namespace": namespace,
                "uid": metadata["uid"],
            },
        }
        try:
            await self._client.create(EVENTS, body, namespace=namespace)
        except KubeError as error:
            log.warning("event_not_told", reason=reason, err=str(error))
