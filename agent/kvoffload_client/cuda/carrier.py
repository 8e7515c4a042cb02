"""A lane's copies by a GPU: queued on a stream of its own, and waited for off the engine's step."""

from __future__ import annotations

import contextlib
import time
from collections import deque
from typing import Final

from kvoffload_client.carrier import Addresses, DeviceError, Mark
from kvoffload_client.cuda.device import Device, Stream
from kvoffload_client.cuda.pins import Pins
from kvoffload_client.cuda.plan import Batch, batches
from kvoffload_client.jobs import Kind

# 0.6 ms at the 50 GB/s of a fast link: long against a call (some 10 us) and against the time
# between two looks, short for one that must stop.
SLICE_BYTES: Final = 32 * 1024 * 1024
# The next slice is queued before the one in front of it ends, so that the link never idles.
_SLICES_IN_FLIGHT: Final = 2
# A look costs some microseconds and a sleep some fifty: 1 % of a core while copies run.
_LOOK_SECONDS: Final = 0.0001


class CudaCarrier:
    """A ``Carrier``. Its stream is made by the first copy, on the lane's thread."""

    slice_bytes = SLICE_BYTES

    def __init__(self, device: Device, pins: Pins, kind: Kind) -> None:
        self._device = device
        self._pins = pins
        self._loads = kind == "load"
        self._made: Stream | None = None
        self._flying: deque[Mark] = deque()

    def move(self, src: Addresses, dst: Addresses, lengths: Addresses) -> None:
        """See ``Carrier``."""
        stream = self._made = self._made or self._device.stream()
        try:
            for batch in batches(
                src,
                dst,
                lengths,
                loads=self._loads,
                pieces=self._pins.pieces,
                abilities=self._device.abilities,
            ):
                _queue(stream, batch)
            self._flying.append(stream.record())
        except DeviceError:
            # What was queued before the failure is marked by nothing.
            with contextlib.suppress(DeviceError):
                stream.synchronize()
            raise
        while len(self._flying) > _SLICES_IN_FLIGHT:
            self._await_oldest()

    def drain(self) -> None:
        """See ``Carrier``.

        There is no deadline: memory that a GPU may still write must not be handed to anyone. Who
        waits for the job has one (``RankSession.wait``).
        """
        try:
            while self._flying:
                self._await_oldest()
        finally:
            while self._flying:
                self._flying.popleft().close()

    def _await_oldest(self) -> None:
        mark = self._flying.popleft()
        try:
            while not mark.reached():
                time.sleep(_LOOK_SECONDS)
        finally:
            mark.close()


def _queue(stream: Stream, batch: Batch) -> None:
    match batch.method:
        case "kernel":
            stream.copy_kernel(batch.src, batch.dst, batch.lengths)
        case "batch":
            stream.copy_batch(batch.src, batch.dst, batch.lengths)
        case "single":
            columns = (batch.src.tolist(), batch.dst.tolist(), batch.lengths.tolist())
            for source, target, nbytes in zip(*columns, strict=True):
                stream.copy(source, target, nbytes)
