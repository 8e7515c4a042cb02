"""Drives an ``Elector`` against a Lease object."""

import asyncio
import os
import random
import threading
import time
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any, Final, NoReturn

import structlog

from kvoffload_operator.election import (
    JITTER_FACTOR,
    RENEW_DEADLINE_S,
    RETRY_PERIOD_S,
    Elector,
    Intent,
    Record,
)
from kvoffload_operator.kube.client import KubeClient
from kvoffload_operator.kube.errors import KubeError, NotFoundError
from kvoffload_operator.kube.resources import LEASES

log = structlog.get_logger(__name__)

# A healthy API server answers a Lease write in milliseconds; two tries must fit the deadline.
_REQUEST_S: Final = 4.0
_RELEASE_S: Final = 2.0


class LeadershipLostError(Exception):
    """Another replica may lead by now: the process must end, at once and with an error."""


class LeaseHolder:
    """Acquires a Lease, keeps it and releases it.

    Args:
        client: Open client.
        elector: The decisions.
        name: Name of the Lease.
        namespace: Namespace of the Lease.
        clock: Monotonic seconds.
    """

    def __init__(
        self,
        *,
        client: KubeClient,
        elector: Elector,
        name: str,
        namespace: str,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._client = client
        self._elector = elector
        self._name = name
        self._namespace = namespace
        self._clock = clock
        self._live: Mapping[str, Any] | None = None
        self.leading = asyncio.Event()

    async def run(self) -> None:
        """Try every two seconds, for ever; ``leading`` is set while we lead.

        Raises:
            LeadershipLostError: We led and do so no more.
        """
        rng = random.Random()  # noqa: S311 - jitter is no secret
        while True:
            await self._step()
            wait = RETRY_PERIOD_S * rng.uniform(1.0, JITTER_FACTOR)
            remaining = self._elector.remaining(now=self._clock())
            # Once that moment has passed, only the usual pace is left: a server that is away
            # must not be asked without pause.
            await asyncio.sleep(min(wait, remaining) if remaining > 0.0 else wait)

    async def release(self) -> None:
        """Give the lease back, so that the next replica need not wait; errors are only logged."""
        if not self._elector.leading or self._live is None:
            return
        self._elector.leading = False
        self.leading.clear()
        record = _record(self._live)
        released = Record(
            holder="", renewed=_now(), acquired=record.acquired, transitions=record.transitions
        )
        try:
            async with asyncio.timeout(_RELEASE_S):
                await self._write(released)
            log.info("lease_released", lease=self._name)
        except (KubeError, TimeoutError) as error:
            log.warning("lease_release_failed", lease=self._name, err=str(error))

    async def _step(self) -> None:
        try:
            async with asyncio.timeout(_REQUEST_S):
                await self._try()
        except (KubeError, TimeoutError) as error:
            log.warning("lease_try_failed", lease=self._name, err=str(error) or "timeout")
        if self._elector.expired(now=self._clock()):
            raise LeadershipLostError(
                "leader election lost: the lease could not be renewed in time"
            )

    def _lose(self, why: str) -> NoReturn:
        self._elector.leading = False
        self.leading.clear()
        raise LeadershipLostError(f"leader election lost: {why}")

    async def _try(self) -> None:
        try:
            self._live = await self._client.get(LEASES, name=self._name, namespace=self._namespace)
        except NotFoundError:
            self._live = None
        seen = _record(self._live) if self._live is not None else None
        intent = self._elector.observe(seen, now=self._clock())
        if intent is Intent.LOST:
            self._lose("another replica holds the lease")
        if intent is Intent.WAIT:
            return
        record = self._next(seen, intent=intent)
        sent_at = self._clock()
        await self._write(record)
        self._elector.wrote(record, sent_at=sent_at)
        if not self.leading.is_set():
            log.info("lease_acquired", lease=self._name, identity=self._elector.identity)
            self.leading.set()

    def _next(self, seen: Record | None, *, intent: Intent) -> Record:
        now = _now()
        if intent is Intent.RENEW and seen is not None:
            return Record(
                holder=seen.holder,
                renewed=now,
                acquired=seen.acquired,
                transitions=seen.transitions,
            )
        transitions = seen.transitions + 1 if seen is not None else 0
        return Record(
            holder=self._elector.identity, renewed=now, acquired=now, transitions=transitions
        )

    async def _write(self, record: Record) -> None:
        spec = {
            "holderIdentity": record.holder,
            "leaseDurationSeconds": int(self._elector.lease_duration) if record.holder else 1,
            "acquireTime": record.acquired,
            "renewTime": record.renewed,
            "leaseTransitions": record.transitions,
        }
        if self._live is None:
            body = {
                "apiVersion": LEASES.api_version,
                "kind": LEASES.kind,
                "metadata": {"name": self._name, "namespace": self._namespace},
                "spec": spec,
            }
            self._live = await self._client.create(LEASES, body, namespace=self._namespace)
        else:
            # The version read a moment ago makes the server refuse if somebody was faster.
            body = {**self._live, "spec": spec}
            self._live = await self._client.replace(
                LEASES, body, name=self._name, namespace=self._namespace
            )


def start_watchdog(elector: Elector, *, clock: Callable[[], float] = time.monotonic) -> None:
    """Kill the process if the loop is blocked past the renew deadline while we lead.

    A blocked loop cannot notice by itself that others may lead by now.
    """

    def bark() -> None:
        while True:
            time.sleep(RENEW_DEADLINE_S / 10)
            # Half-way between giving up by ourselves and the moment another may take over.
            grace = (elector.lease_duration - elector.renew_deadline) / 2
            if elector.expired(now=clock() - grace):
                os._exit(1)

    threading.Thread(target=bark, name="lease-watchdog", daemon=True).start()


def _record(lease: Mapping[str, Any]) -> Record:
    spec = lease.get("spec") or {}
    return Record(
        holder=str(spec.get("holderIdentity") or ""),
        renewed=str(spec.get("renewTime") or ""),
        acquired=str(spec.get("acquireTime") or ""),
        transitions=int(spec.get("leaseTransitions") or 0),
    )


def _now() -> str:
    return datetime.now(tz=UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
